"""The events of a run as AG-UI has them: steps, subagents, messages, and changes of the state."""

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
"""Events after which a node does not run."""


class RunProgress:
    """One run, whose events are written as they come: `id` is its own, `reached` its last event's position.

    `nodes` are as the client knows them.
    """

    def __init__(self, store: Store, *, can_read: bool) -> None:
        """With `can_read` the client also gets what agents say and do."""
        self._store, self._can_read = store, can_read
        self.id = ""
        self.reached = 0
        self.transcript = Transcript((), "")
        self.nodes: dict[str, Any] = {}
        self._steps: dict[str, str | None] = {}
        self._subagents: dict[str, str | None] = {"": None}
        self._snapshots: dict[str, RunSnapshot] = {}

    def late(self) -> list[core.BaseEvent]:
        """Return what has happened by now and was not heard."""
        written = list[core.BaseEvent]()
        while batch := self._store.events(self.id, str(self.reached)):
            written += self.batch(batch)
        return written

    def batch(self, events: Iterable[Event]) -> list[core.BaseEvent]:
        """Return the events of the protocol for new ones of the run, and what they change of the state."""
        self._snapshots.clear()
        written, is_changed = list[core.BaseEvent](), False
        for event in events:
            if int(event.position) > self.reached:
                self.reached = int(event.position)
                written += self._event(event_of(event))
                is_changed |= event.kind.startswith("node.")
        changes = [*self._changes()] if is_changed else ()
        return [*written, core.StateDeltaEvent(delta=changes)] if changes else written

    def _changes(self) -> Iterator[Any]:
        """Return the nodes that are not as the client knows them, as operations of a JSON patch."""
        for name, record in self.snapshot(self.id).nodes.items():
            node = {"status": node_status(record), "visit": record.visit}
            if self.nodes.get(name) != node:
                self.nodes[name] = node
                pointer = name.replace("~", "~0").replace("/", "~1")
                yield {"op": "add", "path": f"/runner/nodes/{pointer}", "value": node}

    def _event(self, event: Event) -> Iterator[core.BaseEvent]:
        node, data = event.node, event.data
        path, _, _ = node.rpartition("/")
        step = f"{node}#{event.visit}" if event.visit > 1 else node
        if event.kind == EventKind.NODE_STARTED and step not in self._steps:
            yield from self._enter(path)
            self._steps[step] = owner = self._subagents.get(path)
            yield core.StepStartedEvent(step_name=step, subagent_run_id=owner)
        elif event.kind == EventKind.AGENT and isinstance(data, dict):
            # The text of a node whose start was not heard would lack its beginning.
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
        """Begin the subagent that a graph inside the graph is, and those around it."""
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
        """End the subagents of a path and inside it, the innermost first, each behind its steps."""
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
        """Return the run of the graph inside the graph that a path names; "" where a migration removed it."""
        if not path:
            return self.id
        outer, _, name = path.rpartition("/")
        run_id = self._run_of(outer)
        node = self.snapshot(run_id).nodes.get(name) if run_id else None
        return node.child if node else ""

    def _conversation(self, run_id: str, path: str, node: str) -> Iterator[core.BaseEvent]:
        """Write what an agent has said and done, now that its events were heard."""
        messages = self.snapshot(run_id).messages.get(node, ()) if run_id else ()
        if messages and self._can_read:
            source = "/".join(filter(None, (self.id, path, node)))
            visits, owner = self.snapshot(run_id).nodes[node].visit, self._subagents.get(path)
            items = [plain(item) for item in messages]
            if "role" in items[0]:  # agents of other frameworks may store another form
                yield from self.transcript.conversation(source, items, visits, owner)

    def conversations(self, run_id: str, path: str = "") -> Iterator[core.BaseEvent]:
        """Write that of all agents of a run and of those inside it."""
        for node, record in self.snapshot(run_id).nodes.items():
            yield from self._conversation(run_id, path, node)
            if record.child:
                yield from self.conversations(record.child, f"{path}/{node}".lstrip("/"))

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Read a run, once for all events that were heard together."""
        if run_id not in self._snapshots:
            snapshot = self._store.read(run_id, messages=True)
            self._snapshots[run_id] = existing(snapshot, run_id)
        return self._snapshots[run_id]

    def forget(self) -> None:
        """Have runs read again."""
        self._snapshots.clear()
