"""One run in the memory store. Callers read copies in stored form, as from Redis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner import scheduler
from runner.approvals.ballots import Standing
from runner.definition.model import index_of, map_of
from runner.limits.limit import input_key
from runner.limits.setting import LimitSetting
from runner.limits.slots import KeyedLimit, QueuePosition
from runner.records import codec
from runner.records.checkpoints import Remembered, Saved
from runner.records.codec import JSON
from runner.records.interrupts import Decision, Interrupt, InterruptStatus
from runner.records.listings import RunSummary
from runner.records.migration import Migration
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
from runner.store.interface import Claim, Event, Fork, RunSnapshot, Start, Token
from runner.store.memory.semaphores import Semaphores
from runner.store.memory.sessions import Sessions

PARTITION = "p00"
"""The partition that audit entries name: the memory store has only one."""

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


@dataclass
class MemoryRun:
    """One run: its records, and the results of its nodes. Transitions read it as their View."""

    record: RunRecord
    start: Start
    created_at: int
    semaphores: Semaphores
    sessions: Sessions
    root_tags: Mapping[str, str]
    root_requester: Mapping[str, Any] = field(default_factory=dict)
    entries_of_all: list[dict[str, JSON]] = field(default_factory=list)
    audited: int = 0
    ended_at: int = 0
    reopened: str = ""
    cancelled: str = ""
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    loops: dict[int, LoopRecord] = field(default_factory=dict)
    maps: dict[str, MapRecord] = field(default_factory=dict)
    items: dict[tuple[str, int], list[JSON]] = field(default_factory=dict)
    arrived: dict[tuple[int, str], Arrivals] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)
    outputs: dict[tuple[str, int], JSON] = field(default_factory=dict)
    entries: dict[VisitKey, VisitEntry] = field(default_factory=dict)
    tasks: dict[tuple[str, int], JSON] = field(default_factory=dict)
    documents: dict[str, JSON] = field(default_factory=dict)
    reports: dict[str, JSON] = field(default_factory=dict)
    messages: dict[str, list[JSON]] = field(default_factory=dict)
    questions: dict[str, Interrupt] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    winners: dict[str, str] = field(default_factory=dict)
    standings: dict[str, bytes] = field(default_factory=dict)
    voters: dict[tuple[str, str], JSON] = field(default_factory=dict)
    votes: dict[str, dict[int, JSON]] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    events: EventLog = field(default_factory=EventLog)

    def audit(self, entry: dict[str, JSON]) -> None:
        self.entries_of_all.append({**entry, "partition": PARTITION, "run_n": self.audited})
        self.audited += 1

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
        value: object = self.root_tags.get(name, "")
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

    def erase(self, undone: Mapping[VisitKey, VisitEntry], forgets: Iterable[str]) -> None:
        self.nodes, self.loops, self.arrived = {}, {}, {}
        for visit, entry in undone.items():
            self.entries[visit] = pack_copy(entry)
            self.outputs.pop(visit, None)
        self.order = [visit for visit in self.order if visit not in undone]
        for node in forgets:
            self.documents.pop(node, None)
            self.messages.pop(node, None)
        self.ended_at = 0

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

    def remember(self, node: str, session: Remembered) -> None:
        self.sessions.add(session, self.messages.get(node, []))

    def replace_input(self, start: Start) -> None:
        task, state = pack_copy(start.task), pack_copy(start.invocation_state)
        self.root_requester = dict(start.requester or {})
        self.start = replace(
            self.start, task=task, invocation_state=state, requester=self.root_requester
        )

    def put_report(self, reference: str, outcome: JSON) -> None:
        self.reports[reference] = pack_copy(outcome)

    def put_items(self, node: str, visit: int, items: Sequence[JSON]) -> None:
        self.items.setdefault((node, visit), pack_copy(list(items)))

    def last_event(self) -> int:
        return len(self.events)

    def winner(self, interrupt_id: str) -> str:
        return self.winners.get(interrupt_id, "")

    def assign(self, interrupt_id: str, person: str) -> None:
        question = self.questions[interrupt_id]
        if person not in question.assignees:
            self.questions[interrupt_id] = replace(
                question, assignees=[*question.assignees, person]
            )

    def note_use(self, question: Interrupt, used: Mapping[str, JSON]) -> None:
        self.questions[question.id] = replace(question, used=pack_copy(dict(used)))

    def note_withdrawal(
        self, interrupt_id: str, attempt: int, withdrawal: Mapping[str, JSON]
    ) -> None:
        question = self.questions[interrupt_id]
        self.questions[interrupt_id] = replace(
            question, withdrawal={**withdrawal, "attempt": attempt}
        )

    def end(self, now: int) -> None:
        self.ended_at = now

    def open(self, question: Interrupt) -> None:
        # A question that is asked again under an old id, when a node has its old name back, is the newest.
        self.questions.pop(question.id, None)
        self.questions[question.id] = question
        self.closed.discard(question.id)

    def decide(self, question: Interrupt, answer: Decision, nonce: str, now: int) -> None:
        self.closed.add(question.id)
        self.winners[answer.interrupt_id] = nonce
        self.questions[answer.interrupt_id] = replace(
            question,
            status=InterruptStatus.ANSWERED,
            response=pack_copy(answer.response),
            responder=answer.responder,
            idempotency_key=answer.idempotency_key,
            answered_at=now,
            decision=answer.decision,
            effect=answer.effect,
        )

    def requester(self) -> Mapping[str, Any]:
        return self.root_requester

    def standing(self, interrupt_id: str) -> Standing:
        stored = self.standings.get(interrupt_id)
        return codec.decode(Standing, stored) if stored else Standing()

    def put_standing(self, interrupt_id: str, standing: Standing) -> None:
        self.standings[interrupt_id] = codec.encode(standing)

    def voter(self, interrupt_id: str, principal: str) -> Mapping[str, Any]:
        return self.voters.get((interrupt_id, principal)) or {}

    def put_voter(self, interrupt_id: str, principal: str, part: Mapping[str, JSON]) -> None:
        self.voters[interrupt_id, principal] = pack_copy(dict(part))

    def vote(self, interrupt_id: str, number: int) -> Mapping[str, Any]:
        return self.votes.get(interrupt_id, {}).get(number) or {}

    def put_vote(self, interrupt_id: str, number: int, vote: Mapping[str, JSON] | None) -> None:
        numbered = self.votes.setdefault(interrupt_id, {})
        if vote is None:
            numbered.pop(number, None)
        else:
            numbered[number] = pack_copy(dict(vote))

    def remind(self, interrupt_id: str) -> int:
        question = self.questions[interrupt_id]
        self.questions[interrupt_id] = replace(question, reminded=question.reminded + 1)
        return question.reminded + 1

    def close(self, interrupt_id: str, status: str, now: int) -> None:
        self.closed.add(interrupt_id)
        self.questions[interrupt_id] = replace(
            self.questions[interrupt_id], status=InterruptStatus(status), answered_at=now
        )

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
        """Return the run's task, its replacement at this visit, or the item that a node works on."""
        index = index_of(node)
        if index is not None:
            return self.items[map_of(node), visit][index]
        return self.tasks.get((node, visit), self.start.task)

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
            reopened=self.reopened,
        )

    def summary(self) -> RunSummary:
        record = self.record
        tags = dict(self.start.tags)
        return RunSummary(
            record.run_id,
            record.graph_id,
            record.status,
            self.created_at,
            tags,
            record.fingerprint,
            record.parent,
            ended_at=self.ended_at,
            requester=str((self.start.requester or {}).get("principal", "")),
        )

    # Forks and migrations

    def has_entry(self, visit: VisitKey) -> bool:
        return visit in self.entries

    def copy_results(self, source: MemoryRun, fork: Fork) -> None:
        for visit, place in sorted(fork.results.items(), key=lambda item: item[1]):
            self.entries[visit] = pack_copy(source.entries[visit])
            if visit in source.outputs:
                self.outputs[visit] = pack_copy(source.outputs[visit])
            self.order += [visit] if place else []
        for node in fork.remembers:
            if node in source.documents:
                self.documents[node] = pack_copy(source.documents[node])
                self.messages[node] = pack_copy(source.messages.get(node, []))
        if fork.visit is not None:
            self.tasks[fork.visit] = pack_copy(fork.input)

    def migrate(self, move: Migration) -> None:
        """Take another shape, and move results and questions to the names of its nodes."""
        self.erase(move.undone, move.forgets)
        self.maps = {
            name: record for name, record in self.maps.items() if name not in move.forgets
        }
        self.record = replace(
            self.record,
            parent_node=move.parent_node,
            path=move.path,
            fingerprint=move.fingerprint,
            graph_id=move.graph_id,
        )
        self.entries |= {
            old: pack_copy(entry) for old, _, entry in move.visits if entry is not None
        }
        visits = {old: new for old, new, _ in move.visits}
        _rename(self.entries, visits.items())
        _rename(self.outputs, visits.items())
        self.order = [visits.get(visit, visit) for visit in self.order]
        names = [(node.node, node.today) for node in move.renamed]
        for by_name in (self.messages, self.maps):
            _rename(by_name, names)
        renamed: list[tuple[VisitKey, VisitKey]] = [
            ((node.node, node.visit), (node.today, node.visit)) for node in move.renamed
        ]
        for by_visit in (self.tasks, self.items):
            _rename(by_visit, renamed)
        for node in move.renamed:
            self.documents.pop(node.node, None)
        self.documents |= {
            node.today: pack_copy(node.document)
            for node in move.renamed
            if node.document is not None
        }
        for old_id, question in move.moved:
            self.questions.pop(question.id, None)
            self.questions[question.id] = question
            if old_id in self.winners:
                self.winners[question.id] = self.winners[old_id]


def _copies(values: Mapping[Any, JSON]) -> dict[Any, JSON]:
    return {key: pack_copy(value) for key, value in values.items()}


def _rename(table: dict[Any, Any], names: Iterable[tuple[Any, Any]]) -> None:
    """Rename keys. All are removed before any is written, since two nodes may have swapped names."""
    moved = [(new, table.pop(old)) for old, new in names if old in table]
    table |= moved
