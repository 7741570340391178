"""The reference store: dictionaries, one lock, and the transitions of `schedule.py` as they are.

It keeps values in their stored form (packed, encoded), so that what works here works in Redis.
The Redis store is held equal to this one by a contract and a property test.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from runner.errors import NotFoundError
from runner.events import NOTICES, EventKind
from runner.graph import Topology
from runner.interrupts import Answer, Interrupt, Receipt, ReceiptStatus, address_of
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
from runner.run import NodeRecord, RunRecord, Status
from runner.store.kept import KeptRun
from runner.store.receipts import CRASHED, by_visit, receipts_for
from runner.store.stored import pack_copy

JSON = Any


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
        self._runs: dict[str, KeptRun] = {}
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

    def start(self, start: Start, nonce: str) -> Reply:  # noqa: ARG002 - the run id tells a repeat
        with self._changed:
            fingerprint = start.fingerprint or self._current.get(start.graph_id, "")
            if fingerprint not in self._topologies:
                return Reply("unknown_graph")
            key = (start.graph_id, start.idempotency_key or "")
            if start.idempotency_key and key in self._keys:
                return Reply("exists", run_id=self._keys[key])
            if start.run_id in self._runs:
                return Reply("started", run_id=start.run_id)
            reply = self._begin(start, fingerprint)
            if start.idempotency_key and reply.run_id:
                self._keys[key] = start.run_id
            return reply

    def _begin(self, start: Start, fingerprint: str) -> Reply:
        parent = start.parent
        bells: list[Doorbell] = []
        if parent is not None:
            word, bells = self._apply(
                parent.run_id, schedule.delegate, parent.node, parent.visit, parent.fence, start.run_id
            )
            if word != "delegated":
                return Reply(word, bells)
            self._runs[parent.run_id].children.append(start.run_id)
        record = RunRecord(
            start.run_id,
            start.graph_id,
            fingerprint,
            parent=parent.run_id if parent else "",
            parent_node=parent.node if parent else "",
            root=start.root or (self._runs[parent.run_id].record.root if parent else start.run_id),
        )
        kept = replace(start, task=pack_copy(start.task), given=pack_copy(start.given))
        self._runs[start.run_id] = KeptRun(record, kept, self.clock())
        word, own = self._apply(start.run_id, schedule.start)
        return Reply(word, [*bells, *own], start.run_id)

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None:
                return Reply("unknown")
            word, bells = self._apply(run_id, schedule.claim, node, visit, attempt, nonce)
            return self._claimed(run, node) if word == "claimed" else Reply(word, bells)

    def _claimed(self, run: KeptRun, node: str) -> Claim:
        draft = self._draft(run)
        child = draft.node(node).child
        current = self._current.get(run.record.graph_id, "")
        return run.claim(draft, node, current, self.read(child) if child else None)

    def save(self, token: Token, saved: Saved) -> Reply:
        with self._changed:
            return Reply("saved" if self._keep(token, saved) else "stale")

    def _keep(self, token: Token, saved: Saved | None) -> bool:
        """Write what a node keeps, if the worker still holds it."""
        run = self._runs.get(token.run_id)
        held = run is not None and schedule.holds(self._draft(run).node(token.node), token.visit, token.fence)
        if run is not None and held:
            run.keep(token.node, saved)
        return held

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
            self._keep(token, saved)
            questions = {asked.id: asked for asked in interrupts}
            word, bells = self._apply(
                token.run_id,
                transition,
                token.node,
                token.visit,
                token.fence,
                list(questions),
                questions=questions,
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
                settlement=(token.node, token.visit, settlement),
            )
            return Reply(word, bells)

    def retry(self, token: Token, delay_ms: int, entry: dict[str, JSON] | None, saved: Saved | None) -> Reply:
        with self._changed:
            if self._keep(token, saved) and entry is not None:
                self._runs[token.run_id].entries[token.node, token.visit] = pack_copy(entry)
            word, bells = self._apply(
                token.run_id,
                schedule.retry,
                token.node,
                token.visit,
                token.fence,
                delay_ms,
                counts=entry is not None,
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
                for (run_id, node, visit), group in by_visit(fresh).items():
                    for each in group:
                        self._runs[run_id].decide(each, nonce, self.clock())
                    ids = [each.interrupt_id for each in group]
                    bells += self._apply(run_id, schedule.answer, node, visit, ids)[1]
            return receipts, Reply("answered", bells)

    def _winner(self, interrupt_id: str) -> str:
        address = address_of(interrupt_id)
        run = self._runs.get(address.run_id) if address else None
        return run.winners.get(interrupt_id, "") if run else ""

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
            due = sorted((at, "|".join(timer), timer) for timer, at in self._timers.items() if at <= now)[
                :limit
            ]
            for _, _, timer in due:
                del self._timers[timer]
            bells: list[Doorbell] = []
            for _, _, (kind, run_id, key) in due:
                bells += self._apply(run_id, schedule.due, kind, key)[1]
            return Reply(str(len(due)), bells)

    def emit(self, run_id: str, kind: str, node: str, visit: int, data: JSON) -> None:
        with self._changed:
            if run_id in self._runs:
                self._event(self._runs[run_id], kind, node, visit, "", pack_copy(data))

    # -- applying what was decided -----------------------------------------------------------------

    def _draft(self, run: KeptRun) -> Draft:
        return Draft(run, self._topologies[run.record.fingerprint], self.clock(), self.lease_ms)

    def _apply(
        self,
        run_id: str,
        transition: Callable[..., Step],
        *arguments: object,
        questions: Mapping[str, Interrupt] | None = None,
        settlement: tuple[str, int, Settlement] | None = None,
        **named: object,
    ) -> tuple[str, list[Doorbell]]:
        """Do a transition, and then what it means for a parent run and for child runs."""
        run = self._runs.get(run_id)
        if run is None:
            return "stale", []
        step = transition(self._draft(run), *arguments, **named)
        run.write(step)
        if settlement is not None and step.reply == "settled" and step.nodes:
            # Not the record's visit: a loop may have begun the next one in this very step.
            run.finish(*settlement)
        bells: list[Doorbell] = []
        todo = deque((run, action) for action in step.actions)
        while todo:
            of, action = todo.popleft()
            todo.extend(self._act(of, action, bells, questions or {}))
        self._changed.notify_all()
        return step.reply, bells

    def _act(
        self, run: KeptRun, action: Action, bells: list[Doorbell], questions: Mapping[str, Interrupt]
    ) -> list[tuple[KeptRun, Action]]:
        """Do one action; what it makes another run do is returned and done after all else."""
        run_id = run.record.run_id
        match action:
            case Dispatch():
                bells.append(_doorbell(run, action))
            case SetTimer():
                self._timers[action.kind, run_id, action.key] = action.at
            case DropTimer():
                self._timers.pop((action.kind, run_id, action.key), None)
            case Announce():
                self._announce(run, action, questions)
            case Close():
                run.close(action.interrupt_id, action.status, self.clock())
            case TellParent():
                told = (run.record.parent_node, run_id, Status(action.status))
                return self._follow(run.record.parent, schedule.child_moved, *told)
            case StopChild():
                run.idle.discard(action.node)
                return self._follow(action.run_id, schedule.cancel, "its parent run stops")
            case Bury():
                self._bury(run, action)
        return []

    def _follow(
        self, run_id: str, transition: Callable[..., Step], *arguments: object
    ) -> list[tuple[KeptRun, Action]]:
        run = self._runs[run_id]
        step = transition(self._draft(run), *arguments)
        run.write(step)
        return [(run, action) for action in step.actions]

    def _bury(self, run: KeptRun, action: Bury) -> None:
        run.entries[action.node, action.visit] = {"error": pack_copy(CRASHED)}
        where = {"run_id": run.record.run_id, "node": action.node, "visit": action.visit}
        self.dead.append({**where, "reason": CRASHED["message"]})

    def _announce(self, run: KeptRun, action: Announce, questions: Mapping[str, Interrupt]) -> None:
        if action.kind is EventKind.INTERRUPT_ASKED:
            asked = replace(questions[action.detail], asked_at=self.clock())
            run.open(asked)
            if asked.expires_in is not None:
                at = asked.asked_at + round(asked.expires_in * 1000)
                self._timers[TimerKind.EXPIRE, run.record.run_id, action.detail] = at
        if action.kind is EventKind.RUN_ENDED:
            run.ended_at = self.clock()
        self._event(run, action.kind, action.node, action.visit, action.detail, None)

    def _event(self, run: KeptRun, kind: str, node: str, visit: int, detail: str, data: JSON) -> None:
        event = Event(str(len(run.events) + 1), kind, self.clock(), node, visit, detail, data)
        run.events.append(event)
        if kind in NOTICES:
            notice = {
                "id": f"{run.record.run_id}:{event.position}",
                "kind": str(kind),
                "run_id": run.record.run_id,
            }
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
            return sorted(found, key=lambda each: (each.asked_at, each.id))[:limit]

    def read(self, run_id: str) -> RunSnapshot | None:
        with self._changed:
            run = self._runs.get(run_id)
            return run.snapshot(self._draft(run)) if run else None

    def peek(self, run_id: str) -> RunRecord | None:
        with self._changed:
            run = self._runs.get(run_id)
            return run.record if run else None

    def fetch(
        self, run_id: str, nodes: Sequence[str]
    ) -> list[tuple[NodeRecord, JSON, dict[str, JSON] | None]]:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None:
                raise NotFoundError(f"there is no run {run_id!r} in this store.")
            draft = self._draft(run)
            return [run.fetch(draft, name) for name in nodes]

    def runs(self, status: Status | None = None, limit: int = 100) -> list[RunSummary]:
        with self._changed:
            chosen = [run for run in self._runs.values() if status is None or run.record.status is status]
            newest = sorted(chosen, key=lambda run: (run.created_at, run.record.run_id), reverse=True)
            return [run.summary() for run in newest[:limit]]

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


def _doorbell(run: KeptRun, action: Dispatch) -> Doorbell:
    record = run.record
    where = (record.run_id, action.node, action.visit, action.attempt)
    return Doorbell(*where, action.queue, action.priority, record.graph_id)
