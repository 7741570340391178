"""The reference store: dictionaries, one lock, and the unchanged transitions of `runner.scheduler`.

It keeps values in stored form (packed, encoded), so that code which works here also works in Redis.
A contract and a property test keep the Redis store equal to this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner import scheduler
from runner.approvals import ballots
from runner.approvals.ballots import Standing
from runner.approvals.freezes import Freeze
from runner.audit import entries as audit_entries
from runner.audit.entries import Mode
from runner.definition.model import Topology, shape_name
from runner.limits.setting import LimitSetting
from runner.records import budgets
from runner.records.budgets import Sum, Tagged
from runner.records.checkpoints import Session
from runner.records.codec import JSON
from runner.records.interrupts import Interrupt
from runner.records.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.records.run import RunRecord, Status, existing
from runner.records.size_limits import MAX_RESULT, MAX_STATE
from runner.store import interface, requests
from runner.store.apply_transition import apply
from runner.store.encoding import pack_copy
from runner.store.interface import (
    Claim,
    Doorbell,
    Event,
    R,
    Reply,
    Request,
    RunSnapshot,
    Signed,
    Token,
)
from runner.store.memory.database import Database, wall_clock
from runner.store.memory.sessions import Sessions
from runner.store.requests import (
    ChangeLimit,
    ClaimVisit,
    CloseRaise,
    FreezeScope,
    OpenRaise,
    PassOver,
    RemoveRun,
    SettleVisit,
    ShareSlots,
    SpendBudget,
    ThawScope,
)


class MemoryStore:
    """A store in this process's memory, lost when the process ends. Thread-safe."""

    namespace = "runner"

    def __init__(
        self,
        clock: Callable[[], int] = wall_clock,
        lease: float = 30.0,
        sessions: Sessions | None = None,
        max_bytes: int = MAX_RESULT,
        *,
        max_state: int = MAX_STATE,
        audit: Mode = "approvals",
    ) -> None:
        """Take a clock in milliseconds and a lease in seconds; other stores may share the `sessions`."""
        self.lease_ms, self.max_bytes, self.max_state = (
            round(lease * 1000),
            max_bytes,
            max_state,
        )
        self._sessions = sessions or Sessions()
        self.clock: Callable[[], int] | None = clock
        self._database = Database(clock, self.lease_ms, self._sessions)
        self._database.audits = audit
        self._changed = threading.Condition(threading.RLock())
        self._sums: dict[str, dict[str, str]] = {}
        self._handlers: dict[type[Request[Any]], Callable[[Any], Any]] = {
            ChangeLimit: self._change_limit,
            ClaimVisit: self._claim,
            CloseRaise: self._close_raise,
            FreezeScope: self._freeze,
            OpenRaise: self._open_raise,
            PassOver: self._pass_over,
            RemoveRun: self._remove,
            SettleVisit: self._settle,
            ShareSlots: self._share_slots,
            SpendBudget: self._spend,
            ThawScope: self._thaw,
        }

    @property
    def notices(self) -> Sequence[dict[str, JSON]]:
        """The notices for approval services, oldest first."""
        return self._database.notices

    @property
    def audit_entries(self) -> Sequence[dict[str, JSON]]:
        """The audit's entries, oldest first."""
        return self._database.entries

    @property
    def dead(self) -> Sequence[dict[str, JSON]]:
        """The nodes that used up their crash budget, oldest first."""
        return self._database.dead

    def next_due(self, after: int) -> int | None:
        """Return the time of the next timer after a time, in milliseconds; None without a timer."""
        with self._changed:
            return min(
                (due for due in self._database.timers.values() if due > after), default=None
            )

    # Graphs

    def publish(self, topologies: Sequence[Topology], *, replace: bool = True) -> None:
        with self._changed:
            for topology in topologies:
                self._database.shapes[topology.fingerprint] = topology
                if replace or topology.graph_id not in self._database.latest:
                    self._database.latest[topology.graph_id] = topology.fingerprint

    def graphs(self) -> dict[str, str]:
        with self._changed:
            return dict(self._database.latest)

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:  # noqa: ARG002 - a shape has its name
        with self._changed:
            return self._database.shapes.get(fingerprint)

    # One visit on a worker

    def partition(self, *_: object) -> int:
        return 0

    def do(self, request: Request[R]) -> R:
        """Apply a request with the handler for its type, or by its plan if it has no handler."""
        with self._changed:
            handler = self._handlers.get(type(request))
            reply: Any = handler(request) if handler else request.plan(self._database)
            if isinstance(reply, Reply | Claim):
                reply = replace(reply, doorbells=self._database.in_turn(reply.doorbells))
            self._changed.notify_all()
            result: R = reply
            return result

    def _claim(self, request: ClaimVisit) -> Claim | Reply:
        reply = request.plan(self._database)
        bells = self._database.claimed(
            request.run_id, request.node, request.visit, request.attempt
        )
        if reply.word != "claimed":
            return replace(reply, doorbells=[*reply.doorbells, *bells])
        run = self._database.runs[request.run_id]
        changes = self._database.changes(run)
        child = changes.node(request.node).child
        claim = run.claim(changes, request.node, self.read(child) if child else None)
        return replace(claim, doorbells=bells)

    def _pass_over(self, request: PassOver) -> Reply:
        visit = (request.run_id, request.node, request.visit, request.attempt)
        return Reply("passed", self._database.claimed(*visit))

    def _share_slots(self, request: ShareSlots) -> Reply:
        return replace(
            request.plan(self._database), doorbells=self._database.refill(request.slots)
        )

    def _settle(self, request: SettleVisit) -> Reply:
        reply = request.plan(self._database)
        if request.settlement.may_continue and reply.word == "settled":
            return self._claim_next(request.token, request.nonce, reply)
        return reply

    def _claim_next(self, token: Token, nonce: str, reply: Reply) -> Reply:
        """Claim the only node that a settle made ready; a repeated settle gets the first one's claim."""
        changes = self._database.changes(self._database.runs[token.run_id])
        targets = {
            edge.target: changes.node(edge.target)
            for edge in changes.topology.outgoing[shape_name(token.node)]
            if scheduler.may_follow(changes.topology, token.node, edge.target)
        }
        claimed = [
            node
            for node, record in targets.items()
            if (record.status, record.nonce) == (Status.RUNNING, nonce)
        ]
        ready = claimed or [bell.node for bell in reply.doorbells]
        if len(ready) != 1 or ready[0] not in targets:
            return reply
        record = targets[ready[0]]
        claim = self.do(ClaimVisit(token.run_id, ready[0], record.visit, record.attempt, nonce))
        return Reply("settled", claim=claim) if isinstance(claim, Claim) else reply

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        with self._changed:
            words = []
            for token in tokens:
                if requests.owned(self._database, token) is not None:
                    self._database.renew(token.run_id, token.node)
                    stopping = self._database.runs[token.run_id].record.stopping
                    words.append("cancelled" if stopping == Status.CANCELLED else "ok")
                else:
                    words.append("stale")
            return words

    # Questions

    def votes(self, interrupt_id: str) -> list[dict[str, Any]]:
        with self._changed:
            run = requests.asking(self._database, interrupt_id)
            numbered = run.votes.get(interrupt_id, {}) if run else {}
            return [pack_copy(numbered[number]) for number in sorted(numbered)]

    def standings(self, ids: Sequence[str]) -> list[Standing]:
        with self._changed:
            runs = [requests.asking(self._database, interrupt_id) for interrupt_id in ids]
            return [
                run.standing(name) if run else Standing()
                for run, name in zip(runs, ids, strict=True)
            ]

    def answerers(self, run_id: str, node: str) -> frozenset[str]:
        with self._changed:
            run = self._database.runs.get(run_id)
            asked = (
                [question for question in run.questions.values() if question.node_id == node]
                if run
                else []
            )
            latest = max((question.visit for question in asked), default=0)
            return ballots.answerers(
                (question, self.votes(question.id))
                for question in asked
                if question.visit == latest
            )

    def requester(self, run_id: str) -> Mapping[str, Any] | None:
        with self._changed:
            run = self._database.runs.get(run_id)
            root = self._database.runs.get(run.record.root) if run else None
            return pack_copy(root.start.requester) if root else None

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        with self._changed:
            runs = [requests.asking(self._database, interrupt_id) for interrupt_id in ids]
            return [
                run.questions.get(interrupt_id) if run else None
                for run, interrupt_id in zip(runs, ids, strict=True)
            ]

    def open_interrupts(
        self,
        query: InterruptQuery = interface.EVERY_QUESTION,
        limit: int = 100,
        cursor: str = "",
    ) -> Page[Interrupt]:
        with self._changed:
            return self._database.list_questions(query, limit, cursor)

    def count_questions(self, queries: Sequence[InterruptQuery]) -> list[int]:
        with self._changed:
            return [self._database.count_questions(query) for query in queries]

    # Operations of people on runs

    def _remove(self, request: RemoveRun) -> Reply:
        run_id = request.run_id
        run = self._database.runs.get(run_id)
        if run is None:
            return Reply("unknown")
        if run.record.parent:
            return Reply("inside")
        if not run.record.is_final or run.record.unreported:
            return Reply("goes_on")
        if run.audited and self._database.audits != "off":
            run.audit(audit_entries.removed(run.record, self._database.clock()))
        self._database.remove(run_id)
        self._sums.pop(run_id, None)
        return Reply("removed")

    # Limits and freezes

    def _change_limit(self, request: ChangeLimit) -> Reply:
        reply = request.plan(self._database)
        if reply.word == "relaxed":
            self._database.wake_ready_nodes()
        return reply

    def _freeze(self, request: FreezeScope) -> Reply:
        return Reply(self._database.freeze(request.scope, request.reason, request.by))

    def _thaw(self, request: ThawScope) -> Reply:
        return Reply(self._database.thaw(request.scope, request.reason, request.by))

    def frozen(self) -> dict[str, Freeze]:
        with self._changed:
            return dict(self._database.frozen)

    def signed(self, kind: type[Signed]) -> dict[str, Signed]:  # noqa: ARG002 - as declared
        return {}

    def limit_settings(self) -> dict[str, LimitSetting]:
        with self._changed:
            return dict(self._database.semaphores.settings)

    # Time

    def sweep(self, limit: int = 100) -> Reply:
        with self._changed:
            due = self._database.due(limit)
            doorbells: list[Doorbell] = []
            for timer in due:
                if self._database.take_timer(*timer):
                    kind, run_id, key = timer
                    # After each timer separately: a later one may stop the run of a node that is rung here.
                    rung = apply(self._database, run_id, scheduler.due, kind, key)[1]
                    doorbells += self._database.in_turn(rung)
            self._database.remove_orphans(limit)
            self._changed.notify_all()
            return Reply(str(len(due)), doorbells)

    # Reading

    def read(self, run_id: str, *, messages: bool = False) -> RunSnapshot | None:
        with self._changed:
            run = self._database.runs.get(run_id)
            return run.snapshot(self._database.changes(run), messages=messages) if run else None

    def peek(self, run_id: str) -> RunRecord | None:
        with self._changed:
            run = self._database.runs.get(run_id)
            return run.record if run else None

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[interface.Fetched]:
        with self._changed:
            run = existing(self._database.runs.get(run_id), run_id)
            changes = self._database.changes(run)
            return [run.fetch(changes, name) for name in nodes]

    def documents(self, run_id: str) -> dict[str, JSON]:
        with self._changed:
            run = self._database.runs.get(run_id)
            documents = run.documents if run else {}
            return {node: pack_copy(document) for node, document in documents.items()}

    def children(self, run_id: str) -> list[str]:
        with self._changed:
            run = self._database.runs.get(run_id)
            return list(run.children) if run else []

    def runs(
        self, query: RunQuery = interface.EVERY_RUN, limit: int = 100, cursor: str = ""
    ) -> Page[RunSummary]:
        with self._changed:
            return self._database.list_runs(query, limit, cursor)

    # Events

    def events(
        self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0
    ) -> list[Event]:
        with self._changed:
            run = self._database.runs.get(run_id)
            if run is None:
                return []
            start = int(after or 0)
            self._changed.wait_for(lambda: len(run.events) > start, timeout=wait or 0)
            return run.events.after(start, limit)

    def is_executing(self, run_id: str, wait: float = 0) -> bool:
        def rests() -> bool:
            run = self._database.runs.get(run_id)
            return run is None or run.record.status is not Status.EXECUTING

        with self._changed:
            return not self._changed.wait_for(rests, timeout=wait)

    # Budgets

    def _spend(self, request: SpendBudget) -> str:
        name = self._sum(request.run_id, request.tagged)
        return budgets.add(self._sums.setdefault(name, {}), request.spending) if name else ""

    def _open_raise(self, request: OpenRaise) -> str:
        fields = self._raise_fields(request)
        return budgets.open_raise(fields, request.counter, request.visit, request.instead_of)

    def _close_raise(self, request: CloseRaise) -> list[str]:
        fields = self._raise_fields(request)
        return budgets.close_raise(fields, request.counter, request.visit, request.refusal)

    def _raise_fields(self, request: OpenRaise | CloseRaise) -> budgets.RaiseFields:
        name = self._sum(request.run_id, request.tagged)
        return self._sums.setdefault(name, {}) if name else {}

    def spent(self, run_id: str, tagged: Tagged | None = None) -> dict[str, Sum]:
        with self._changed:
            return budgets.sums(self._sums.get(self._sum(run_id, tagged), {}))

    def tags(self, run_id: str) -> dict[str, str]:
        with self._changed:
            run = self._database.runs.get(run_id)
            return dict(run.root_tags) if run else {}

    def _sum(self, run_id: str, tagged: Tagged | None) -> str:
        if tagged is not None:
            return tagged.key(self._database.clock())
        run = self._database.runs.get(run_id)
        return run.record.root if run else ""

    # Sessions

    def session(self, session_id: str) -> Session:
        return self._sessions.read(session_id)

    def forget_session(self, session_id: str) -> bool:
        return self._sessions.forget(session_id)
