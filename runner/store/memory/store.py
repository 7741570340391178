"""The store of a run in process: dictionaries, one lock, and the unchanged transitions of `runner.scheduler`.

It keeps values in stored form (packed, encoded), so that code which works here also works in Redis. It has
what a run and the runs inside it need. Lists of questions, rules for starts, turns, freezes, grants, and
retries, forks, migrations and removals of runs need a Redis store, and are refused here. Nothing is audited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from runner import scheduler
from runner.approvals import ballots
from runner.approvals.ballots import Standing
from runner.approvals.freezes import Freeze
from runner.definition.model import Topology
from runner.limits.setting import LimitSetting
from runner.records import budgets
from runner.records.budgets import Sum, Tagged
from runner.records.checkpoints import Session
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Interrupt
from runner.records.listings import Page, RunQuery, RunSummary
from runner.records.run import RunRecord, Status, existing
from runner.records.size_limits import MAX_RESULT, MAX_STATE
from runner.scheduler.changes import TimerKind
from runner.store import interface, requests
from runner.store.apply_transition import apply
from runner.store.encoding import pack_copy
from runner.store.interface import (
    Claim,
    Doorbell,
    Event,
    Handlers,
    R,
    Reply,
    Request,
    RunSnapshot,
    Signed,
    Token,
    needs_redis,
)
from runner.store.memory.database import Database, wall_clock
from runner.store.memory.sessions import Sessions
from runner.store.requests import (
    ClaimVisit,
    CloseRaise,
    ForkRun,
    MigrateRuns,
    OpenRaise,
    RewriteRuns,
    ShareSlots,
    SpendBudget,
)

OF_MANY_RUNS = (ForkRun, MigrateRuns, RewriteRuns, ShareSlots)
"""Requests with a plan that this store can't carry out; it has no handlers for those without."""


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
    ) -> None:
        """Take a clock in milliseconds and a lease in seconds; other stores may share the `sessions`."""
        self.lease_ms = round(lease * 1000)
        self.max_bytes = max_bytes
        self.max_state = max_state
        self._sessions = sessions or Sessions()
        self.clock: Callable[[], int] | None = clock
        self._database = Database(clock, self.lease_ms, self._sessions)
        self._changed = threading.Condition(threading.RLock())
        self._sums: dict[str, dict[str, str]] = {}
        self._handlers: Handlers = {
            ClaimVisit: self._claim,
            CloseRaise: self._close_raise,
            OpenRaise: self._open_raise,
            SpendBudget: self._spend,
        }

    @property
    def dead(self) -> Sequence[JSONObject]:
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
                if topology.admission or topology.fairness:
                    raise needs_redis(
                        f"rules for the starts or turns of graph {topology.graph_id!r}"
                    )
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
            if isinstance(request, OF_MANY_RUNS):
                raise needs_redis(f"request {request.verb!r}")
            reply: R = handler(request) if handler else request.plan(self._database)
            self._changed.notify_all()
            return reply

    def _claim(self, request: ClaimVisit) -> Claim | Reply:
        reply = request.plan(self._database)
        if reply.word != "claimed":
            return reply
        run = self._database.runs[request.run_id]
        changes = self._database.changes(run)
        child = changes.node(request.node).child
        return run.claim(changes, request.node, self.read(child) if child else None)

    def renew(self, tokens: Sequence[Token]) -> list[str]:
        with self._changed:
            words = []
            for token in tokens:
                run = requests.owned(self._database, token)
                if run is None:
                    words.append("stale")
                else:
                    until = self._database.clock() + self.lease_ms
                    self._database.set_timer(TimerKind.NODE, token.run_id, token.node, until)
                    is_cancelled = run.record.stopping == Status.CANCELLED
                    words.append("cancelled" if is_cancelled else "ok")
            return words

    # Questions

    def votes(self, interrupt_id: str) -> list[JSONObject]:
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

    def answerers(self, run_id: str, node: str, but: str = "") -> frozenset[str]:
        with self._changed:
            run = self._database.find(run_id)
            asked = [
                question
                for question in (run.questions.values() if run else ())
                if question.node_id == node
            ]
            latest = max((question.visit for question in asked), default=0)
            return ballots.answerers(
                (question, self.votes(question.id))
                for question in asked
                if question.visit == latest and question.id != but
            )

    def requester(self, run_id: str) -> JSONMapping | None:
        with self._changed:
            run = self._database.find(run_id)
            return pack_copy(run.root.start.requester) if run else None

    def interrupts(self, ids: Sequence[str], voter: str = "") -> list[Interrupt | None]:  # noqa: ARG002 - as declared
        with self._changed:
            runs = [requests.asking(self._database, interrupt_id) for interrupt_id in ids]
            return [
                run.questions.get(interrupt_id) if run else None
                for run, interrupt_id in zip(runs, ids, strict=True)
            ]

    def count_questions(self, *_: object, **__: object) -> NoReturn:
        """Refuse to list or count the questions of several runs."""
        raise needs_redis("lists of questions")

    open_interrupts = count_questions

    # Settings of many runs

    def frozen(self) -> dict[str, Freeze]:
        return {}

    def signed(self, kind: type[Signed]) -> dict[str, Signed]:  # noqa: ARG002 - as declared
        return {}

    def limit_settings(self) -> dict[str, LimitSetting]:
        with self._changed:
            return dict(self._database.semaphores.settings)

    # Time

    def sweep(self, limit: int = 100) -> Reply:
        with self._changed:
            timers = self._database.timers
            now = self._database.clock()
            due = sorted(
                (at, "|".join(timer), timer) for timer, at in timers.items() if at <= now
            )
            doorbells: list[Doorbell] = []
            for at, _, timer in due[:limit]:
                if timers.get(timer) == at:  # no earlier one has set it again or dropped it
                    del timers[timer]
                    kind, run_id, key = timer
                    doorbells += apply(self._database, run_id, scheduler.due, kind, key)[1]
            self._changed.notify_all()
            return Reply("swept", doorbells, count=len(due[:limit]))

    # Reading

    def read(self, run_id: str, *, messages: bool = False) -> RunSnapshot | None:
        with self._changed:
            run = self._database.find(run_id)
            return run.snapshot(self._database.changes(run), messages=messages) if run else None

    def peek(self, run_id: str) -> RunRecord | None:
        with self._changed:
            run = self._database.find(run_id)
            return run.record if run else None

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[interface.Fetched]:
        with self._changed:
            run = existing(self._database.find(run_id), run_id)
            changes = self._database.changes(run)
            return [run.fetch(changes, name) for name in nodes]

    def documents(self, run_id: str) -> JSONObject:
        with self._changed:
            run = self._database.find(run_id)
            return pack_copy(run.documents) if run else {}

    def children(self, run_id: str) -> list[str]:
        with self._changed:
            run = self._database.find(run_id)
            return list(run.children) if run else []

    def runs(
        self,
        query: RunQuery = interface.EVERY_RUN,
        limit: int = 100,  # noqa: ARG002 - a page has all
        cursor: str = "",  # noqa: ARG002 - it has no next page
    ) -> Page[RunSummary]:
        """List all runs that the query fits in one page, newest first."""
        with self._changed:
            summaries = [run.summary() for run in self._database.runs.values()]
            return Page([summary for summary in summaries[::-1] if query.fits(summary)])

    # Events

    def events(
        self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0
    ) -> list[Event]:
        with self._changed:
            run = self._database.find(run_id)
            if run is None:
                return []
            start = int(after or 0)
            self._changed.wait_for(lambda: len(run.events) > start, timeout=wait or 0)
            return run.events.after(start, limit)

    def read_unless_executing(self, run_id: str, wait: float = 0) -> RunSnapshot | None:
        def rests() -> bool:
            run = self._database.find(run_id)
            return run is None or run.record.status is not Status.EXECUTING

        with self._changed:
            rests_now = self._changed.wait_for(rests, timeout=wait)
            return existing(self.read(run_id), run_id) if rests_now else None

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
            run = self._database.find(run_id)
            return dict(run.root.start.tags) if run else {}

    def _sum(self, run_id: str, tagged: Tagged | None) -> str:
        if tagged is not None:
            return tagged.key(self._database.clock())
        run = self._database.find(run_id)
        return run.record.root if run else ""

    # Sessions

    def session(self, session_id: str) -> Session:
        return self._sessions.read(session_id)

    def forget_session(self, session_id: str) -> bool:
        return self._sessions.forget(session_id)
