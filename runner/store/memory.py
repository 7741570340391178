"""The reference store: dictionaries, one lock, and the transitions of `schedule.py` as they are.

It keeps values in their stored form (packed, encoded), so that what works here works in Redis.
The Redis store is held equal to this one by a contract and a property test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner import schedule
from runner.actions import (
    Action,
    Announce,
    Bury,
    Close,
    Dispatch,
    DropTimer,
    SetTimer,
    StopChild,
    TellParent,
    TimerKind,
)
from runner.draft import Draft, Step
from runner.events import NOTICES, EventKind
from runner.failures import ErrorRecord
from runner.graph import Topology
from runner.interrupts import Answer, Interrupt, InterruptStatus, Receipt, ReceiptStatus, address_of
from runner.outcomes import Saved
from runner.ports import (
    Claim,
    Doorbell,
    Event,
    Reply,
    RunSnapshot,
    RunSummary,
    Settlement,
    Start,
    Token,
)
from runner.run import Arrivals, LoopRecord, NodeRecord, RunRecord, Status
from runner.store.receipts import CRASHED, receipts_for
from runner.store.stored import pack_copy

JSON = Any


@dataclass
class _Run:
    """One run as it is kept; it is the View that transitions look at."""

    record: RunRecord
    start: Start
    created_at: int
    ended_at: int = 0
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    loops: dict[int, LoopRecord] = field(default_factory=dict)
    arrived: dict[tuple[int, str], Arrivals] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    outputs: dict[tuple[str, int], JSON] = field(default_factory=dict)
    entries: dict[tuple[str, int], dict[str, JSON]] = field(default_factory=dict)
    documents: dict[str, JSON] = field(default_factory=dict)
    messages: dict[str, list[JSON]] = field(default_factory=dict)
    questions: dict[str, Interrupt] = field(default_factory=dict)
    winners: dict[str, str] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def run(self) -> RunRecord:
        return self.record

    def node(self, node: str) -> NodeRecord:
        return self.nodes.get(node) or NodeRecord()

    def loop(self, loop: int) -> LoopRecord:
        return self.loops.get(loop) or LoopRecord()

    def arrivals(self, scope: int, node: str) -> Arrivals:
        return self.arrived.get((scope, node)) or Arrivals()

    def live(self) -> set[str]:
        return self.active

    def standing(self, interrupt_id: str) -> str:
        found = self.questions.get(interrupt_id)
        return found.status if found else ""


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


class MemoryStore:
    """Runs in this process's memory; they end with it. Thread-safe."""

    def __init__(self, clock: Callable[[], int] = _wall_clock, lease: float = 30.0) -> None:
        """`clock` gives milliseconds; `lease` is in seconds."""
        self.clock = clock
        self.lease_ms = round(lease * 1000)
        self.notices: list[dict[str, JSON]] = []
        self.dead: list[dict[str, JSON]] = []
        self._changed = threading.Condition(threading.RLock())
        self._topologies: dict[str, Topology] = {}
        self._current: dict[str, str] = {}
        self._runs: dict[str, _Run] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._timers: dict[tuple[TimerKind, str, str], int] = {}

    # -- transitions -----------------------------------------------------------------------------

    def publish(self, topologies: Sequence[Topology]) -> None:
        with self._changed:
            for topology in topologies:
                self._topologies[topology.fingerprint] = topology
                self._current[topology.graph_id] = topology.fingerprint

    def graphs(self) -> dict[str, str]:
        with self._changed:
            return dict(self._current)

    def start(self, start: Start, nonce: str) -> Reply:
        with self._changed:
            fingerprint = start.fingerprint or self._current.get(start.graph_id, "")
            if fingerprint not in self._topologies:
                return Reply("unknown_graph")
            key = (start.graph_id, start.idempotency_key or "")
            if start.idempotency_key and key in self._keys:
                return Reply("exists", run_id=self._keys[key])
            if start.run_id in self._runs:
                return Reply("started", run_id=start.run_id)
            if start.idempotency_key:
                self._keys[key] = start.run_id
            return self._begin(start, fingerprint)

    def _begin(self, start: Start, fingerprint: str) -> Reply:
        parent = start.parent
        bells: list[Doorbell] = []
        if parent is not None:
            word, bells = self._apply(parent.run_id, schedule.delegate, parent, start.run_id)
            if word != "delegated":
                return Reply(word, bells)
            self._runs[parent.run_id].children.append(start.run_id)
        record = RunRecord(
            start.run_id,
            start.graph_id,
            fingerprint,
            parent=parent.run_id if parent else "",
            parent_node=parent.node if parent else "",
            root=start.root or start.run_id,
        )
        kept = replace(start, task=pack_copy(start.task), given=pack_copy(start.given))
        self._runs[start.run_id] = _Run(record, kept, self.clock())
        word, own = self._apply(start.run_id, schedule.start)
        return Reply(word, [*bells, *own], start.run_id)

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None:
                return Reply("unknown")
            word, bells = self._apply(run_id, schedule.claim, node, visit, attempt, nonce)
            return self._claimed(run, node) if word == "claimed" else Reply(word, bells)

    def _claimed(self, run: _Run, node: str) -> Claim:
        draft = self._draft(run)
        record = draft.node(node)
        inputs = [(name, at, pack_copy(run.outputs.get((name, at)))) for name, at in schedule.live_inputs(draft, node)]
        asked = [found for found in run.questions.values() if (found.node_id, found.visit) == (node, record.visit)]
        return Claim(
            token=Token(run.record.run_id, node, record.visit, record.fence),
            graph_id=run.record.graph_id,
            fingerprint=run.record.fingerprint,
            current=self._current.get(run.record.graph_id, ""),
            signature=draft.topology.nodes[node].signature,
            record=record,
            task=pack_copy(run.start.task),
            given=pack_copy(run.start.given),
            inputs=inputs,
            answers=[found for found in asked if found.status in {"answered", "expired"}],
            document=pack_copy(run.documents.get(node)),
            messages=pack_copy(run.messages.get(node, [])),
            child=self.read(record.child) if record.child else None,
        )

    def save(self, token: Token, saved: Saved) -> Reply:
        with self._changed:
            return Reply("saved" if self._keep(token, saved) else "stale")

    def _keep(self, token: Token, saved: Saved | None) -> bool:
        run = self._runs[token.run_id]
        if not schedule.holds(self._draft(run).node(token.node), token.visit, token.fence):
            return False
        if saved is not None:
            run.documents[token.node] = pack_copy(saved.document)
            kept = run.messages.setdefault(token.node, [])
            kept[saved.keep :] = pack_copy(saved.messages)
        return True

    def ask(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        return self._question(schedule.ask, token, interrupts, saved)

    def park(self, token: Token, interrupts: Sequence[Interrupt], saved: Saved | None) -> Reply:
        return self._question(schedule.park, token, interrupts, saved)

    def _question(
        self,
        transition: Callable[..., Step],
        token: Token,
        interrupts: Sequence[Interrupt],
        saved: Saved | None,
    ) -> Reply:
        with self._changed:
            if not self._keep(token, saved):
                return Reply("stale")
            questions = {asked.id: asked for asked in interrupts}
            word, bells = self._apply(
                token.run_id, transition, token.node, token.visit, token.fence, list(questions), questions=questions
            )
            return Reply(word, bells)

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply:
        with self._changed:
            word, bells = self._apply(
                token.run_id,
                schedule.settle,
                token.node,
                token.visit,
                token.fence,
                nonce=nonce,
                status=settlement.status,
                edges=settlement.edges,
                reads=settlement.reads,
                settlement=settlement,
            )
            return Reply(word, bells)

    def retry(self, token: Token, delay_ms: int, entry: dict[str, JSON] | None, saved: Saved | None) -> Reply:
        with self._changed:
            if not self._keep(token, saved):
                return Reply("stale")
            if entry is not None:
                self._runs[token.run_id].entries[token.node, token.visit] = pack_copy(entry)
            word, bells = self._apply(
                token.run_id, schedule.retry, token.node, token.visit, token.fence, delay_ms, counts=entry is not None
            )
            return Reply(word, bells)

    def hold(self, token: Token) -> Reply:
        with self._changed:
            return Reply(*self._apply(token.run_id, schedule.hold, token.node, token.visit, token.fence))

    def answer(self, answers: Sequence[Answer], nonce: str) -> tuple[list[Receipt], Reply]:
        with self._changed:
            found = self.interrupts([each.interrupt_id for each in answers])
            receipts, fresh = receipts_for(answers, found, self._winner, nonce, self.clock())
            bells: list[Doorbell] = []
            if all(receipt.status is ReceiptStatus.ACCEPTED for receipt in receipts):
                for (run_id, node, visit), group in _by_visit(fresh).items():
                    for each in group:
                        self._record(run_id, each, nonce)
                    ids = [each.interrupt_id for each in group]
                    bells += self._apply(run_id, schedule.answer, node, visit, ids)[1]
            return receipts, Reply("answered", bells)

    def _winner(self, interrupt_id: str) -> str:
        address = address_of(interrupt_id)
        return self._runs[address.run_id].winners.get(interrupt_id, "") if address else ""

    def _record(self, run_id: str, answer: Answer, nonce: str) -> None:
        run = self._runs[run_id]
        run.winners[answer.interrupt_id] = nonce
        run.questions[answer.interrupt_id] = replace(
            run.questions[answer.interrupt_id],
            status=InterruptStatus.ANSWERED,
            response=pack_copy(answer.response),
            responder=answer.responder,
            idempotency_key=answer.idempotency_key,
            answered_at=self.clock(),
        )

    def cancel(self, run_id: str, reason: str) -> Reply:
        with self._changed:
            if run_id not in self._runs:
                return Reply("unknown")
            return Reply(*self._apply(run_id, schedule.cancel, reason))

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        with self._changed:
            return [self._renew(token) for token in tokens]

    def _renew(self, token: Token) -> str:
        run = self._runs.get(token.run_id)
        if run is None or not schedule.holds(self._draft(run).node(token.node), token.visit, token.fence):
            return "stale"
        self._timers[TimerKind.LEASE, token.run_id, token.node] = self.clock() + self.lease_ms
        return "cancelled" if run.record.stopping == Status.CANCELLED else "ok"

    def sweep(self, limit: int = 100) -> Reply:
        with self._changed:
            now = self.clock()
            due = sorted((at, timer) for timer, at in self._timers.items() if at <= now)[:limit]
            bells: list[Doorbell] = []
            for _, timer in due:
                self._timers.pop(timer, None)
                kind, run_id, key = timer
                bells += self._apply(run_id, schedule.due, kind, key)[1]
            return Reply(str(len(due)), bells)

    def emit(self, run_id: str, kind: str, node: str, visit: int, data: JSON) -> None:
        with self._changed:
            if run_id in self._runs:
                self._event(self._runs[run_id], kind, node, visit, "", pack_copy(data))

    # -- applying what was decided -----------------------------------------------------------------

    def _draft(self, run: _Run) -> Draft:
        return Draft(run, self._topologies[run.record.fingerprint], self.clock(), self.lease_ms)

    def _apply(
        self,
        run_id: str,
        transition: Callable[..., Step],
        *arguments: object,
        questions: Mapping[str, Interrupt] | None = None,
        settlement: Settlement | None = None,
        **named: object,
    ) -> tuple[str, list[Doorbell]]:
        run = self._runs[run_id]
        if transition is schedule.delegate and isinstance(arguments[0], Token):
            token = arguments[0]
            arguments = (token.node, token.visit, token.fence, *arguments[1:])
        step = transition(self._draft(run), *arguments, **named)
        run.record = step.run
        run.nodes.update(step.nodes)
        run.loops.update(step.loops)
        run.arrived.update(step.arrivals)
        for name, record in step.nodes.items():
            (run.active.add if record.status in schedule.LIVE else run.active.discard)(name)
        if settlement is not None and step.reply == "settled" and step.nodes:
            self._write(run, str(arguments[0]), settlement)
        bells: list[Doorbell] = []
        for action in step.actions:
            self._act(run, action, bells, questions or {})
        self._changed.notify_all()
        return step.reply, bells

    def _write(self, run: _Run, node: str, settlement: Settlement) -> None:
        visit = run.nodes[node].visit
        run.entries[node, visit] = pack_copy(settlement.entry)
        if settlement.status is Status.COMPLETED:
            run.outputs[node, visit] = pack_copy(settlement.output)
            run.order.append(node)
        if settlement.saved is not None:
            run.documents[node] = pack_copy(settlement.saved.document)
            run.messages.setdefault(node, [])[settlement.saved.keep :] = pack_copy(settlement.saved.messages)

    def _act(
        self, run: _Run, action: Action, bells: list[Doorbell], questions: Mapping[str, Interrupt]
    ) -> None:
        run_id = run.record.run_id
        match action:
            case Dispatch():
                bells.append(
                    Doorbell(
                        run_id,
                        action.node,
                        action.visit,
                        action.attempt,
                        action.queue,
                        action.priority,
                        run.record.graph_id,
                    )
                )
            case SetTimer():
                self._timers[action.kind, run_id, action.key] = action.at
            case DropTimer():
                self._timers.pop((action.kind, run_id, action.key), None)
            case Announce():
                self._announce(run, action, questions)
            case Close():
                closed = replace(run.questions[action.interrupt_id], status=InterruptStatus(action.status))
                run.questions[action.interrupt_id] = replace(closed, answered_at=self.clock())
            case TellParent():
                parent, node = run.record.parent, run.record.parent_node
                bells += self._apply(parent, schedule.child_moved, node, run_id, Status(action.status))[1]
            case StopChild():
                bells += self._apply(action.run_id, schedule.cancel, "its parent run stops")[1]
            case Bury():
                error = ErrorRecord(**CRASHED)
                run.entries[action.node, action.visit] = {"error": pack_copy(_as_dict(error))}
                self.dead.append({"run_id": run_id, "node": action.node, "visit": action.visit, "reason": error.message})

    def _announce(self, run: _Run, action: Announce, questions: Mapping[str, Interrupt]) -> None:
        if action.kind is EventKind.INTERRUPT_ASKED:
            asked = replace(questions[action.detail], asked_at=self.clock())
            run.questions[action.detail] = asked
            if asked.expires_in is not None:
                at = asked.asked_at + round(asked.expires_in * 1000)
                self._timers[TimerKind.EXPIRE, run.record.run_id, action.detail] = at
        if action.kind is EventKind.RUN_ENDED:
            run.ended_at = self.clock()
        self._event(run, action.kind, action.node, action.visit, action.detail, None)

    def _event(self, run: _Run, kind: str, node: str, visit: int, detail: str, data: JSON) -> None:
        event = Event(str(len(run.events) + 1), kind, self.clock(), node, visit, detail, data)
        run.events.append(event)
        if kind in NOTICES:
            notice = {"id": f"{run.record.run_id}:{event.position}", "kind": str(kind), "run_id": run.record.run_id}
            self.notices.append({**notice, "node": node, "visit": visit, "detail": detail})
        self._changed.notify_all()

    # -- reading -----------------------------------------------------------------------------------

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        with self._changed:
            return [self._interrupt(each) for each in ids]

    def _interrupt(self, interrupt_id: str) -> Interrupt | None:
        address = address_of(interrupt_id)
        run = self._runs.get(address.run_id) if address else None
        return run.questions.get(interrupt_id) if run else None

    def open_interrupts(self, limit: int = 100) -> list[Interrupt]:
        with self._changed:
            found = [each for run in self._runs.values() for each in run.questions.values() if each.is_open]
            return sorted(found, key=lambda each: each.asked_at)[:limit]

    def read(self, run_id: str) -> RunSnapshot | None:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None:
                return None
            draft = self._draft(run)
            return RunSnapshot(
                record=run.record,
                nodes={name: draft.node(name) for name in run.nodes},
                task=pack_copy(run.start.task),
                given=pack_copy(run.start.given),
                tags=dict(run.start.tags),
                created_at=run.created_at,
                ended_at=run.ended_at,
                order=tuple(run.order),
                outputs=pack_copy_values(run.outputs),
                entries=pack_copy_values(run.entries),
                interrupts=tuple(run.questions.values()),
                messages=pack_copy_values(run.messages),
            )

    def peek(self, run_id: str) -> RunRecord | None:
        with self._changed:
            run = self._runs.get(run_id)
            return run.record if run else None

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[tuple[NodeRecord, JSON, dict[str, JSON] | None]]:
        with self._changed:
            run = self._runs[run_id]
            draft = self._draft(run)
            found = []
            for name in nodes:
                record = draft.node(name)
                at = (name, record.visit)
                found.append((record, pack_copy(run.outputs.get(at)), pack_copy(run.entries.get(at))))
            return found

    def runs(self, status: Status | None = None, limit: int = 100) -> list[RunSummary]:
        with self._changed:
            newest = sorted(self._runs.values(), key=lambda run: run.created_at, reverse=True)
            chosen = [run for run in newest if status is None or run.record.status is status]
            return [
                RunSummary(
                    run.record.run_id, run.record.graph_id, run.record.status, run.created_at, dict(run.start.tags)
                )
                for run in chosen[:limit]
            ]

    def children(self, run_id: str) -> list[str]:
        with self._changed:
            run = self._runs.get(run_id)
            return list(run.children) if run else []

    def events(self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0) -> list[Event]:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None:
                return []
            start = int(after or 0)
            self._changed.wait_for(lambda: len(run.events) > start, timeout=wait or 0)
            return run.events[start : start + limit]


def pack_copy_values(values: Mapping[Any, JSON]) -> dict[Any, JSON]:
    """Copy each value, so that no reader can change what is kept."""
    return {key: pack_copy(value) for key, value in values.items()}


def _as_dict(error: ErrorRecord) -> dict[str, JSON]:
    return {"type": error.type, "message": error.message, "bases": error.bases}


def _by_visit(answers: Sequence[Answer]) -> dict[tuple[str, str, int], list[Answer]]:
    groups: dict[tuple[str, str, int], list[Answer]] = {}
    for each in answers:
        address = address_of(each.interrupt_id)
        if address is not None:
            groups.setdefault((address.run_id, address.node_id, address.visit), []).append(each)
    return groups
