"""One run of the memory store. Callers read copies in stored form, as from Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner import scheduler
from runner.approvals.ballots import Standing
from runner.definition.model import index_of, map_of
from runner.limits.limit import input_key
from runner.limits.setting import LimitSetting
from runner.limits.slots import KeyedLimit, QueuePosition
from runner.records import codec
from runner.records.checkpoints import Saved, SessionUpdate
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.interrupts import Decision, Interrupt, InterruptStatus
from runner.records.listings import RunSummary
from runner.records.run import (
    Arrivals,
    LoopRecord,
    MapRecord,
    NodeRecord,
    RunRecord,
    Status,
    VisitEntry,
    VisitKey,
)
from runner.scheduler import IDLE, drain_order
from runner.scheduler.changes import Changes, TransitionResult
from runner.store.encoding import pack_copy
from runner.store.interface import Claim, Event, RunSnapshot, Start, Token
from runner.store.memory.semaphores import Semaphores
from runner.store.memory.sessions import Sessions

KEPT = 10_000
"""The fewest events that a long run keeps; it keeps at most a tenth more."""


class EventLog:
    """A run's events, numbered in order: only the last are kept, but the length counts all."""

    def __init__(self) -> None:
        self._gone = 0
        self._kept: list[Event] = []

    def __len__(self) -> int:
        return self._gone + len(self._kept)

    def add(self, event: Event) -> Event:
        """Number an event and keep it; the oldest may be dropped."""
        numbered = replace(event, position=str(len(self) + 1))
        self._kept.append(numbered)
        if len(self._kept) > KEPT + KEPT // 10:
            gone = len(self._kept) - KEPT
            self._gone += gone
            del self._kept[:gone]
        return numbered

    def after(self, position: int, limit: int) -> list[Event]:
        """Return the events after a position that are still kept."""
        first = max(0, position - self._gone)
        return self._kept[first : first + limit]


class MemoryRun:
    """One run: its records, and the results of its nodes. Transitions read it as their View."""

    def __init__(
        self,
        record: RunRecord,
        start: Start,
        created_at: int,
        semaphores: Semaphores,
        sessions: Sessions,
        *,
        root: MemoryRun | None = None,
    ) -> None:
        """Begin an empty run at a time; `root` is its outermost run, if that is another one."""
        self.record = record
        self.start = start
        self.created_at = created_at
        self.semaphores, self.sessions = semaphores, sessions
        self.root = root or self
        self.audited = self.ended_at = 0
        self.cancelled = ""
        self.nodes: dict[str, NodeRecord] = {}
        self.loops: dict[int, LoopRecord] = {}
        self.maps: dict[str, MapRecord] = {}
        self.items: dict[tuple[str, int], list[JSON]] = {}
        self.arrived: dict[tuple[int, str], Arrivals] = {}
        self.order: list[tuple[str, int]] = []
        self.outputs: dict[tuple[str, int], JSON] = {}
        self.entries: dict[VisitKey, VisitEntry] = {}
        self.documents: JSONObject = {}
        self.reports: JSONObject = {}
        self.messages: dict[str, list[JSON]] = {}
        self.questions: dict[str, Interrupt] = {}
        self.winners: dict[str, str] = {}
        self.standings: dict[str, bytes] = {}
        self.voters: dict[tuple[str, str], JSON] = {}
        self.votes: dict[str, dict[int, JSON]] = {}
        self.children: list[str] = []
        self.events = EventLog()

    def audit(self, entry: JSONObject) -> None:
        """Do nothing: a run in process has no audit."""

    # The view of a transition

    def run(self) -> RunRecord:
        return self.record

    def node(self, node: str) -> NodeRecord:
        return self.nodes.get(node) or NodeRecord()

    def loop(self, loop: int) -> LoopRecord:
        return self.loops.get(loop) or LoopRecord()

    def map(self, node: str) -> MapRecord:
        return self.maps.get(node) or MapRecord()

    def arrivals(self, scope: int, node: str) -> Arrivals:
        return self.arrived.get((scope, node)) or Arrivals()

    def idle(self, after: str) -> list[str]:
        names = [node for node, record in self.nodes.items() if record.status in IDLE]
        return sorted(
            (node for node in names if drain_order(node) > drain_order(after)), key=drain_order
        )

    def question_status(self, interrupt_id: str) -> str:
        question = self.questions.get(interrupt_id)
        return question.status if question else ""

    def question(self, interrupt_id: str) -> Interrupt | None:
        return self.questions.get(interrupt_id)

    def tag(self, name: str) -> str:
        value: object = self.root.start.tags.get(name, "")
        return value if isinstance(value, str) else ""

    def next_start(self, key: str, interval: int) -> int:  # noqa: ARG002 - it is written with the claim
        return self.semaphores.starts.get(key, 0)

    def limit_setting(self, name: str) -> LimitSetting | None:
        return self.semaphores.settings.get(name)

    def input_key(self, node: str, visit: int, path: str) -> str | None:
        return input_key(self._task(node, visit), path)

    def queue_position(
        self, limit: KeyedLimit, node: str, since: int, now: int
    ) -> QueuePosition:
        return self.semaphores.queue_position(limit.key, (self.record.run_id, node), since, now)

    def reported(self, reference: str) -> bool:
        return reference in self.reports

    # Writing

    def write(self, result: TransitionResult) -> None:
        self.record = result.run
        self.nodes.update(result.nodes)
        self.loops.update(result.loops)
        self.maps.update(result.maps)
        self.arrived.update(result.arrivals)

    def keep(self, node: str, saved: Saved | None) -> None:
        """Write a node's checkpoint: its document, and its messages after the first `saved.keep`."""
        if saved is not None:
            self.documents[node] = pack_copy(saved.document)
            self.messages.setdefault(node, [])[saved.keep :] = pack_copy(saved.messages)

    def leave_result(
        self, node: str, visit: int, status: Status, entry: VisitEntry, output: JSON
    ) -> None:
        self.entries[node, visit] = pack_copy(entry)
        if status is Status.COMPLETED:
            self.outputs[node, visit] = pack_copy(output)
            self.order += [] if map_of(node) else [(node, visit)]

    def note_error(self, node: str, visit: int, entry: VisitEntry) -> None:
        self.entries[node, visit] = pack_copy(entry)

    def remember(self, node: str, session: SessionUpdate) -> None:
        self.sessions.add(session, self.messages.get(node, []))

    def put_report(self, reference: str, outcome: JSON) -> None:
        self.reports[reference] = pack_copy(outcome)

    def put_items(self, node: str, visit: int, items: Sequence[JSON]) -> None:
        self.items.setdefault((node, visit), pack_copy(list(items)))

    def winner(self, interrupt_id: str) -> str:
        return self.winners.get(interrupt_id, "")

    def assign(self, interrupt_id: str, person: str) -> None:
        assignees = self.questions[interrupt_id].assignees
        if person not in assignees:
            self._revise(interrupt_id, assignees=[*assignees, person])

    def note_use(self, question: Interrupt, used: JSONMapping) -> None:
        self._revise(question.id, used=pack_copy(dict(used)))

    def note_withdrawal(self, interrupt_id: str, attempt: int, withdrawal: JSONMapping) -> None:
        self._revise(interrupt_id, withdrawal={**withdrawal, "attempt": attempt})

    def end(self, now: int) -> None:
        self.ended_at = now

    def open(self, question: Interrupt) -> None:
        # A question that is asked again under an old id, when a node has its old name back, is the newest.
        self.questions.pop(question.id, None)
        self.questions[question.id] = question

    def decide(self, question: Interrupt, answer: Decision, nonce: str, now: int) -> None:
        self.winners[answer.interrupt_id] = nonce
        self._revise(
            question.id,
            status=InterruptStatus.ANSWERED,
            response=pack_copy(answer.response),
            responder=answer.responder,
            idempotency_key=answer.idempotency_key,
            answered_at=now,
            decision=answer.decision,
            effect=answer.effect,
        )

    def requester(self) -> JSONMapping:
        return self.root.start.requester or {}

    def standing(self, interrupt_id: str) -> Standing:
        stored = self.standings.get(interrupt_id)
        return codec.decode(Standing, stored) if stored else Standing()

    def put_standing(self, interrupt_id: str, standing: Standing) -> None:
        self.standings[interrupt_id] = codec.encode(standing)

    def voter(self, interrupt_id: str, principal: str) -> JSONMapping:
        return self.voters.get((interrupt_id, principal)) or {}

    def put_voter(self, interrupt_id: str, principal: str, part: JSONMapping) -> None:
        self.voters[interrupt_id, principal] = pack_copy(dict(part))

    def vote(self, interrupt_id: str, number: int) -> JSONMapping:
        return self.votes.get(interrupt_id, {}).get(number) or {}

    def put_vote(self, interrupt_id: str, number: int, vote: JSONMapping | None) -> None:
        numbered = self.votes.setdefault(interrupt_id, {})
        if vote is None:
            numbered.pop(number, None)
        else:
            numbered[number] = pack_copy(dict(vote))

    def remind(self, interrupt_id: str) -> int:
        reminded = self.questions[interrupt_id].reminded + 1
        self._revise(interrupt_id, reminded=reminded)
        return reminded

    def close(self, interrupt_id: str, status: str, now: int) -> None:
        self._revise(interrupt_id, status=InterruptStatus(status), answered_at=now)

    def _revise(self, interrupt_id: str, **changes: Any) -> None:
        self.questions[interrupt_id] = replace(self.questions[interrupt_id], **changes)

    # Reading, in copies

    def claim(self, changes: Changes, node: str, child: RunSnapshot | None) -> Claim:
        """Collect the data for the worker that has claimed a node."""
        record = changes.node(node)
        return Claim(
            token=Token(self.record.run_id, node, record.visit, record.fence),
            graph_id=self.record.graph_id,
            fingerprint=self.record.fingerprint,
            signature=changes.shape(node).signature,
            record=record,
            task=pack_copy(self._task(node, record.visit)),
            invocation_state=pack_copy(self.start.invocation_state),
            inputs=[
                (*visit, pack_copy(self.outputs.get(visit)))
                for visit in scheduler.live_inputs(changes, node)
            ],
            answers=[
                question
                for question in self.questions.values()
                if (question.node_id, question.visit) == (node, record.visit)
                and not question.is_open
            ],
            document=pack_copy(self.documents.get(node)),
            messages=pack_copy(self.messages.get(node, [])),
            child=child,
            map=self.maps[node] if self.map(node).visit == record.visit else None,
            report=pack_copy(self.reports.get(record.handed)),
        )

    def _task(self, node: str, visit: int) -> JSON:
        """Return the run's task, or the item that a node works on."""
        index = index_of(node)
        if index is not None:
            return self.items[map_of(node), visit][index]
        return self.start.task

    def fetch(self, changes: Changes, node: str) -> tuple[NodeRecord, JSON, VisitEntry | None]:
        """Return a node with its latest output and entry; a node without a record has no round either."""
        record = changes.node(node) if node in self.nodes else NodeRecord()
        visit = (node, record.visit)
        return record, pack_copy(self.outputs.get(visit)), pack_copy(self.entries.get(visit))

    def snapshot(self, changes: Changes, *, messages: bool) -> RunSnapshot:
        return RunSnapshot(
            record=self.record,
            nodes={name: changes.node(name) for name in self.nodes},
            task=pack_copy(self.start.task),
            invocation_state=pack_copy(self.start.invocation_state),
            tags=dict(self.start.tags),
            created_at=self.created_at,
            ended_at=self.ended_at,
            order=tuple(node for node, _ in self.order),
            outputs=_copies(self.outputs),
            entries=_copies(self.entries),
            interrupts=tuple(self.questions.values()),
            messages=_copies(self.messages if messages else {}),
            maps=dict(self.maps),
            events=len(self.events),
        )

    def summary(self) -> RunSummary:
        record = self.record
        start = self.start
        place = (record.run_id, record.graph_id, record.status, self.created_at)
        return RunSummary(*place, dict(start.tags), parent=record.parent)


def _copies(values: Mapping[Any, JSON]) -> dict[Any, JSON]:
    return {key: pack_copy(value) for key, value in values.items()}
