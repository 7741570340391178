"""The events of a run in AG-UI's form: steps, subagents, messages, and changes of the state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from runner.doors.transcript import Transcript
from runner.errors import needs_extra
from runner.operations.exports import event_of, node_status
from runner.records.codec import plain
from runner.records.run import EventKind, existing
from runner.store.interface import Event, RunSnapshot, Store

with needs_extra("agui", "the AG-UI agent"):
    from ag_ui import core

STEP_ENDS = {
    EventKind.NODE_COMPLETED,
    EventKind.NODE_FAILED,
    EventKind.NODE_CANCELLED,
    EventKind.NODE_WAITING,
    EventKind.NODE_RETRYING,
    EventKind.NODE_HELD,
    EventKind.NODE_FROZEN,
    EventKind.NODE_LOST,
    EventKind.NODE_LEFT,
}
"""Events after which a node is not running."""


class RunProgress:
    """One run, whose events are written as they come; `reached` is its last event's position.

    `id` is the run's id; `nodes` holds the nodes' states known to the client.
    """

    def __init__(self, store: Store, *, can_read: bool) -> None:
        """Start without a run; with `can_read` the client also gets agents' messages and calls."""
        self._store, self._can_read = store, can_read
        self.id = ""
        self.reached = 0
        self.transcript = Transcript((), "")
        self.nodes: dict[str, Any] = {}
        self._steps: dict[str, str | None] = {}
        self._subagents: dict[str, str | None] = {"": None}
        self._snapshots: dict[str, RunSnapshot] = {}

    def late(self) -> list[core.BaseEvent]:
        """Return the events after `reached`, read from the store."""
        written = list[core.BaseEvent]()
        while batch := self._store.events(self.id, str(self.reached)):
            written += self.batch(batch)
        return written

    def batch(self, events: Iterable[Event]) -> list[core.BaseEvent]:
        """Return the protocol's events for new events of the run, with their state changes."""
        self._snapshots.clear()
        written = list[core.BaseEvent]()
        is_changed = False
        for event in events:
            if int(event.position) > self.reached:
                self.reached = int(event.position)
                written += self._event(event_of(event))
                is_changed |= event.kind.startswith("node.")
        changes = [*self._changes()] if is_changed else ()
        return [*written, core.StateDeltaEvent(delta=changes)] if changes else written

    def _changes(self) -> Iterator[Any]:
        """Yield the nodes whose state is new to the client, as JSON patch operations."""
        for name, record in self.snapshot(self.id).nodes.items():
            node = {"status": node_status(record), "visit": record.visit}
            if self.nodes.get(name) != node:
                self.nodes[name] = node
                pointer = name.replace("~", "~0").replace("/", "~1")
                yield {"op": "add", "path": f"/runner/nodes/{pointer}", "value": node}

    def _event(self, event: Event) -> Iterator[core.BaseEvent]:
        node = event.node
        data = event.data
        path, _, _ = node.rpartition("/")
        step = f"{node}#{event.visit}" if event.visit > 1 else node
        if event.kind == EventKind.NODE_STARTED and step not in self._steps:
            yield from self._enter(path)
            self._steps[step] = owner = self._subagents.get(path)
            yield core.StepStartedEvent(step_name=step, subagent_run_id=owner)
        elif event.kind == EventKind.AGENT and isinstance(data, dict):
            # If a node's start was not heard, its text would lack the beginning.
            if "text" in data and step in self._steps and self._can_read:
                name = f"{self.id}/{event.position}"
                yield from self.transcript.piece(node, name, data["text"], self._steps[step])
            elif "tool" in data:
                yield from self.transcript.end(node)
        elif event.kind in STEP_ENDS:
            yield from self.transcript.end(node)
            yield from self._conversation(
                self._run_of(path), path, node.removeprefix(f"{path}/")
            )
            yield from self.leave(node)
            if step in self._steps:
                owner = self._steps.pop(step)
                yield core.StepFinishedEvent(step_name=step, subagent_run_id=owner)

    def _enter(self, path: str) -> Iterator[core.BaseEvent]:
        """Begin the subagent for a graph inside the graph, and the subagents around it."""
        if path in self._subagents:
            return
        outer, _, name = path.rpartition("/")
        yield from self._enter(outer)
        self._subagents[path] = child = self._run_of(path) or path
        yield core.SubagentStartedEvent(
            subagent_run_id=child, name=name, parent_subagent_run_id=self._subagents.get(outer)
        )

    def leave(
        self, path: str, interrupts: Sequence[core.Interrupt] = ()
    ) -> Iterator[core.BaseEvent]:
        """End the subagents at and inside a path, the innermost first, each after its steps."""
        inside = [
            name for name in self._subagents if not path or f"{name}/".startswith(f"{path}/")
        ]
        for name in sorted(inside, key=len, reverse=True):
            owner = self._subagents.pop(name)
            for step in [step for step, its_owner in self._steps.items() if its_owner == owner]:
                del self._steps[step]
                yield core.StepFinishedEvent(step_name=step, subagent_run_id=owner)
            if owner is None:
                continue
            outcome: Any = core.SubagentFinishedSuccessOutcome()
            if interrupts:
                names = [item.id for item in interrupts if item.subagent_run_id == owner]
                outcome = core.SubagentFinishedSuspendedOutcome(interrupt_ids=names)
            yield core.SubagentFinishedEvent(subagent_run_id=owner, outcome=outcome)

    def _run_of(self, path: str) -> str:
        """Return the run of the inner graph at a path, or "" if a migration removed it."""
        if not path:
            return self.id
        outer, _, name = path.rpartition("/")
        run_id = self._run_of(outer)
        node = self.snapshot(run_id).nodes.get(name) if run_id else None
        return node.child if node else ""

    def _conversation(self, run_id: str, path: str, node: str) -> Iterator[core.BaseEvent]:
        """Yield an agent's messages and calls, after its events were heard."""
        messages = self.snapshot(run_id).messages.get(node, ()) if run_id else ()
        if messages and self._can_read:
            source = "/".join(filter(None, (self.id, path, node)))
            visits = self.snapshot(run_id).nodes[node].visit
            owner = self._subagents.get(path)
            items = [plain(item) for item in messages]
            if "role" in items[0]:  # agents of other frameworks may store another form
                yield from self.transcript.conversation(source, items, visits, owner)

    def conversations(self, run_id: str, path: str = "") -> Iterator[core.BaseEvent]:
        """Yield the conversations of all agents in a run and in the runs inside it."""
        for node, record in self.snapshot(run_id).nodes.items():
            yield from self._conversation(run_id, path, node)
            if record.child:
                yield from self.conversations(record.child, f"{path}/{node}".lstrip("/"))

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Read a run once for all events heard together."""
        if run_id not in self._snapshots:
            self._snapshots[run_id] = existing(self._store.read(run_id, messages=True), run_id)
        return self._snapshots[run_id]

    def forget(self) -> None:
        """Forget the runs that were read, so that they are read again."""
        self._snapshots.clear()
