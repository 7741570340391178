"""One run as the memory store keeps it, and the View of it that transitions look at.

Everything a caller gets out of it is a copy in stored form, as from a real store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner import expiry, schedule
from runner.actions import Conclude
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.interrupts import Answer, Interrupt, InterruptStatus
from runner.limits import Turn
from runner.listings import RunSummary
from runner.maps import index_of, map_of
from runner.outcomes import Saved
from runner.ports import Claim, RunSnapshot, Settlement, Start, Token
from runner.run import Arrivals, LoopRecord, MapRecord, NodeRecord, Rewrite, RunRecord, Status
from runner.store import told
from runner.store.history import History
from runner.store.layout import dump
from runner.store.places import Places
from runner.store.stored import pack_copy
from runner.store.weights import Piece, Weights

JSON = Any

IDLE = frozenset({Status.READY, Status.RETRYING, Status.WAITING})


@dataclass
class KeptRun:
    """One run: its records, and what its nodes left behind."""

    record: RunRecord
    start: Start
    created_at: int
    places: Places
    root_tags: Mapping[str, str]
    weights: Weights
    ended_at: int = 0
    reopened: str = ""
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    loops: dict[int, LoopRecord] = field(default_factory=dict)
    maps: dict[str, MapRecord] = field(default_factory=dict)
    items: dict[tuple[str, int], list[JSON]] = field(default_factory=dict)
    arrived: dict[tuple[int, str], Arrivals] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    order: list[tuple[str, int]] = field(default_factory=list)
    outputs: dict[tuple[str, int], JSON] = field(default_factory=dict)
    entries: dict[tuple[str, int], dict[str, JSON]] = field(default_factory=dict)
    given: dict[tuple[str, int], JSON] = field(default_factory=dict)
    documents: dict[str, JSON] = field(default_factory=dict)
    reports: dict[str, JSON] = field(default_factory=dict)
    messages: dict[str, list[JSON]] = field(default_factory=dict)
    questions: dict[str, Interrupt] = field(default_factory=dict)
    winners: dict[str, str] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    events: History = field(default_factory=History)

    # -- the View ----------------------------------------------------------------------------------

    def run(self) -> RunRecord:
        """Return the run's counters."""
        return self.record

    def node(self, node: str) -> NodeRecord:
        """Return a node's record, or the defaults."""
        return self.nodes.get(node) or NodeRecord()

    def loop(self, loop: int) -> LoopRecord:
        """Return a loop's record, or the defaults."""
        return self.loops.get(loop) or LoopRecord()

    def map(self, node: str) -> MapRecord:
        """Return a map's record, or the defaults."""
        return self.maps.get(node) or MapRecord()

    def arrivals(self, scope: int, node: str) -> Arrivals:
        """Return what has arrived at a node over the edges of one scope."""
        return self.arrived.get((scope, node)) or Arrivals()

    def live(self) -> set[str]:
        """Name the nodes that a stop must still look at."""
        return self.idle

    def standing(self, interrupt_id: str) -> str:
        """Return "" for a question never asked, else its status."""
        found = self.questions.get(interrupt_id)
        if found is not None and found.withdrawal is not None:
            return "retracted"
        return found.status if found else ""

    def asked(self, interrupt_id: str) -> Interrupt | None:
        """Return a question as it was asked."""
        return self.questions.get(interrupt_id)

    def tag(self, name: str) -> str:
        """Return the value of a tag of the outermost run."""
        value: object = self.root_tags.get(name, "")
        return value if isinstance(value, str) else ""

    def next_start(self, key: str) -> int:
        """Return when the next execution of a rate may begin."""
        return self.places.starts.get(key, 0)

    def turn(self, key: str, node: str, since: int, now: int) -> Turn:
        """Return how a node stands at a limit."""
        return self.places.turn(key, (self.record.run_id, node), since, now)

    def reported(self, reference: str) -> bool:
        """Tell whether another system has said how the work of that name ended."""
        return reference in self.reports

    # -- writing -----------------------------------------------------------------------------------

    def write(self, step: Step) -> None:
        """Take over the records that a transition changed."""
        self.record = step.run
        self.nodes.update(step.nodes)
        self.loops.update(step.loops)
        self.maps.update(step.maps)
        self.arrived.update(step.arrivals)
        for name, record in step.nodes.items():
            (self.idle.add if record.status in IDLE else self.idle.discard)(name)

    def erase(self, again: Rewrite) -> None:
        """Take away what other records will replace, and what no longer counts."""
        self.nodes, self.loops, self.arrived, self.idle = {}, {}, {}, set()
        for at, entry in again.undone.items():
            self.entries[at] = pack_copy(entry)
            self.outputs.pop(at, None)
            self.weights.drop(self.output_piece(*at))
        self.order = [at for at in self.order if at not in again.undone]
        for node in again.forgets:
            self.documents.pop(node, None)
            self.messages.pop(node, None)
            self.weights.forget(self.record.run_id, node)
        self.ended_at = 0

    def output_piece(self, node: str, visit: int) -> Piece:
        """Name an output among what is counted."""
        return ("o", self.record.run_id, node, visit)

    def stops(self, node: str) -> bool:
        """Tell whether a node must not go on: its run stops, or its map does."""
        owner = map_of(node)
        return bool(self.record.stopping) or (bool(owner) and self.map(owner).stopped)

    def keep(self, node: str, saved: Saved | None) -> None:
        """Write what a node keeps: its document, and its messages after the first `saved.keep`."""
        if saved is not None:
            self.documents[node] = pack_copy(saved.document)
            self.messages.setdefault(node, [])[saved.keep :] = pack_copy(saved.messages)
            self.weights.keep(self.record.run_id, node, saved)

    def finish(self, node: str, visit: int, settlement: Settlement) -> None:
        """Write what a visit that ended leaves behind."""
        self.entries[node, visit] = pack_copy(settlement.entry)
        if settlement.status is Status.COMPLETED:
            self.outputs[node, visit] = pack_copy(settlement.output)
            self.order += [] if map_of(node) else [(node, visit)]
        self.keep(node, settlement.saved)

    def open(self, asked: Interrupt) -> None:
        """Write a question; one that is asked again counts as the newest."""
        self.questions.pop(asked.id, None)
        self.questions[asked.id] = asked

    def decide(self, answer: Answer, nonce: str, now: int) -> None:
        """Write an accepted answer."""
        self.winners[answer.interrupt_id] = nonce
        self.questions[answer.interrupt_id] = replace(
            self.questions[answer.interrupt_id],
            status=InterruptStatus.ANSWERED,
            response=pack_copy(answer.response),
            responder=answer.responder,
            idempotency_key=answer.idempotency_key,
            answered_at=now,
        )

    def conclude(self, action: Conclude) -> dict[str, JSON]:
        """Write what a node leaves behind that ended with its question; give what its events tell."""
        at, asked = (action.node, action.visit), self.questions[action.interrupt_id]
        self.entries[at] = pack_copy(expiry.entry(asked, action.edges))
        if not expiry.route(asked):
            return {EventKind.NODE_FAILED: told.error(self.entries[at])}
        self.outputs[at] = pack_copy(expiry.output(asked))
        written = self.weights.reference(dump(self.outputs[at]))
        self.weights.put(self.output_piece(*at), len(written))
        self.order.append(at)
        return {EventKind.NODE_COMPLETED: told.value(self.outputs[at])}

    def remind(self, interrupt_id: str) -> dict[str, JSON]:
        """Count a reminder; give what its event tells."""
        asked = self.questions[interrupt_id]
        self.questions[interrupt_id] = replace(asked, reminded=asked.reminded + 1)
        return {EventKind.INTERRUPT_REMINDED: {"count": asked.reminded + 1}}

    def close(self, interrupt_id: str, status: str, now: int) -> None:
        """Give a question a final state that is no answer."""
        self.questions[interrupt_id] = replace(
            self.questions[interrupt_id], status=InterruptStatus(status), answered_at=now
        )

    # -- reading -----------------------------------------------------------------------------------

    def claim(self, draft: Draft, node: str, current: str, child: RunSnapshot | None) -> Claim:
        """Collect what a worker needs that has claimed a node."""
        record = draft.node(node)
        asked = [
            found for found in self.questions.values() if (found.node_id, found.visit) == (node, record.visit)
        ]
        return Claim(
            token=Token(self.record.run_id, node, record.visit, record.fence),
            graph_id=self.record.graph_id,
            fingerprint=self.record.fingerprint,
            current=current,
            signature=draft.shape(node).signature,
            record=record,
            task=pack_copy(self._task(node, record.visit)),
            given=pack_copy(self.start.given),
            inputs=[(*at, pack_copy(self.outputs.get(at))) for at in schedule.live_inputs(draft, node)],
            answers=[found for found in asked if found.is_decided],
            document=pack_copy(self.documents.get(node)),
            messages=pack_copy(self.messages.get(node, [])),
            child=child,
            map=self.maps[node] if self.map(node).visit == record.visit else None,
            report=pack_copy(self.reports.get(record.handed)),
        )

    def _task(self, node: str, visit: int) -> JSON:
        """The run's task, what was given in its place, or the item that a node works on."""
        index = index_of(node)
        if index is not None:
            return self.items[map_of(node), visit][index]
        return self.given.get((node, visit), self.start.task)

    def fetch(self, draft: Draft, node: str) -> tuple[NodeRecord, JSON, dict[str, JSON] | None]:
        """Give a node with its latest output and entry; one without a record has no round either."""
        record = draft.node(node) if node in self.nodes else NodeRecord()
        at = (node, record.visit)
        return record, pack_copy(self.outputs.get(at)), pack_copy(self.entries.get(at))

    def snapshot(self, draft: Draft) -> RunSnapshot:
        """Give the whole run."""
        return RunSnapshot(
            record=self.record,
            nodes={name: draft.node(name) for name in self.nodes},
            task=pack_copy(self.start.task),
            given=pack_copy(self.start.given),
            tags=dict(self.start.tags),
            created_at=self.created_at,
            ended_at=self.ended_at,
            order=tuple(node for node, _ in self.order),
            outputs=_copies(self.outputs),
            entries=_copies(self.entries),
            interrupts=tuple(self.questions.values()),
            messages=_copies(self.messages),
            maps=dict(self.maps),
            events=len(self.events),
            size=0 if self.record.parent else self.weights.total,
        )

    def summary(self) -> RunSummary:
        """Give one line of a listing."""
        record = self.record
        tags = dict(self.start.tags)
        return RunSummary(
            record.run_id, record.graph_id, record.status, self.created_at, tags, record.fingerprint
        )


def _copies(values: Mapping[Any, JSON]) -> dict[Any, JSON]:
    return {key: pack_copy(value) for key, value in values.items()}
