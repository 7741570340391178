"""Runs in a test's thread, one node at a time, by a clock that the test advances.

They use the workers' engine on the memory store. Nothing waits in real time: retries, expiries and
lost leases are due when the test advances the clock. Only a node's timeout is measured in real
time.

A worker that dies at a chosen point of a node needs no process to kill. The store simulates it,
because a worker leaves nothing behind except its writes there. From that point on the dead worker's
writes do not arrive; its lease runs out, and the visit runs again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from typing_extensions import override

from runner import async_loop
from runner.client import Client
from runner.definition.registry import Registry, registry
from runner.errors import ResponseError, UsageError
from runner.execution.engine import Engine
from runner.execution.results import GraphResult, graph_result
from runner.local import Graph
from runner.operations.answers import apply_decisions
from runner.records.checkpoints import Saved
from runner.records.interrupts import Interrupt, Receipt, ReceiptStatus, answers_from
from runner.records.run import Status
from runner.store.interface import Claim, Doorbell, Event, R, Reply, Request, Token
from runner.store.memory.sessions import Sessions
from runner.store.memory.store import MemoryStore
from runner.store.requests import (
    AskQuestions,
    RetryVisit,
    SaveCheckpoint,
    SettleVisit,
    UseDecision,
)


class ManualClock:
    """A clock of milliseconds since 1970, as stores need; it starts in November 2023."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        """Start at `now`, in milliseconds."""
        self.now = now

    def __call__(self) -> int:
        """Return the time in milliseconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += round(seconds * 1000)


class CrashPoint(enum.StrEnum):
    """The point at which a worker dies.

    `start`: before the node's code. `before_use`: an approval holds, but its use isn't recorded.
    `after_use`: its use is recorded, but the approved call has not begun. `after_effect`: a
    function given to `once` has run, but its result isn't recorded. `after_record`: the result is
    recorded. `before_commit`: the node's code has ended, but the end isn't recorded.
    `after_commit`: the end is recorded, but no doorbell was rung for the next nodes.
    """

    START = "start"
    BEFORE_USE = "before_use"
    AFTER_USE = "after_use"
    AFTER_EFFECT = "after_effect"
    AFTER_RECORD = "after_record"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"


class WorkerDied(BaseException):
    """Ends a node's code when its worker dies; `except Exception` doesn't catch it."""


class Crashes:
    """The planned crashes that have not happened yet."""

    def __init__(self) -> None:
        """Start without planned crashes."""
        self._left: dict[tuple[str, CrashPoint], int] = {}

    def plan(self, node: str, point: str, times: int) -> None:
        """Make a node's worker die at a point, `times` times in a row.

        Raises:
            UsageError: the point is unknown.
        """
        points = ", ".join(CrashPoint)
        if point not in list(CrashPoint):
            raise UsageError(
                f"{point!r} isn't a crash point, so nothing will crash; choose one of {points}."
            )
        self._left[node, CrashPoint(point)] = times

    def missed(self) -> list[str]:
        """List the crashes that have not happened, each as "node at point"."""
        return [f"{node} at {point}" for (node, point), times in self._left.items() if times]

    def strikes(self, node: str, point: CrashPoint) -> bool:
        """Return whether the worker dies here, and count the crash."""
        remaining = self._left.get((node, point), 0)
        self._left[node, point] = max(0, remaining - 1)
        return remaining > 0


DYING = (AskQuestions, RetryVisit, SaveCheckpoint, SettleVisit, UseDecision)
"""The requests that a dead worker can't make."""

POINTS: Mapping[type, tuple[CrashPoint, CrashPoint]] = {
    SaveCheckpoint: (CrashPoint.AFTER_EFFECT, CrashPoint.AFTER_RECORD),
    SettleVisit: (CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT),
    UseDecision: (CrashPoint.BEFORE_USE, CrashPoint.AFTER_USE),
}
"""The points at which a worker may die before and after a request."""


class CrashingStore(MemoryStore):
    """A memory store whose writers die as planned."""

    def __init__(self, crashes: Crashes, **options: Any) -> None:
        """`options` are passed to MemoryStore."""
        super().__init__(**options)
        self._crashes = crashes
        self._dead: set[Token] = set()

    @override
    def do(self, request: Request[R]) -> R:
        token = request.token if isinstance(request, DYING) else None
        is_intent = isinstance(request, SaveCheckpoint) and _is_intent(request.saved)
        start, end = (None, None) if is_intent else POINTS.get(type(request), (None, None))
        if token is not None:
            self._bury(token)
        if token is not None and start is not None:
            self._reach(token, start)
        reply = super().do(request)
        if isinstance(reply, Claim):
            self._reach(reply.token, CrashPoint.START)
        unsettled = isinstance(reply, Reply) and reply.word in {"stale", "changed", "locked"}
        if (
            token is not None
            and end is not None
            and not (end is CrashPoint.AFTER_COMMIT and unsettled)
        ):
            self._reach(token, end)
        return reply

    def _reach(self, token: Token, point: CrashPoint) -> None:
        if self._crashes.strikes(token.node, point):
            self._dead.add(token)
            self._bury(token)

    def _bury(self, token: Token) -> None:
        """Raise if the worker is dead: code that runs on, as in a `finally`, writes nothing."""
        if token in self._dead:
            raise WorkerDied(f"the worker of node {token.node!r} died here, as the test wants.")


def _is_intent(saved: Saved) -> bool:
    """Return whether this is the checkpoint before an effect, which `on_unknown="raise"` writes."""
    executor = saved.document.get("executor") if isinstance(saved.document, dict) else None
    effects = executor.get("once") if isinstance(executor, dict) else None
    return isinstance(effects, dict) and any(
        "result" not in entry for entry in effects.values()
    )


class Asks(Protocol):
    """A result, or a test's run, with open questions."""

    @property
    def interrupts(self) -> Sequence[Interrupt]:
        """The open questions."""


def answer(
    question: Interrupt | Asks, response: object, name: str | None = None
) -> list[dict[str, Any]]:
    """Build an answer to a question, or a result's open question; `name` chooses among several.

    Answers are lists: the set `answer(a, True) + answer(b, False)` is applied as a whole or not at
    all.

    Raises:
        UsageError: no question fits, or several do.
    """
    interrupt = (
        question if isinstance(question, Interrupt) else _only(question.interrupts, name)
    )
    return [{"interruptResponse": {"interruptId": interrupt.id, "response": response}}]


def _only(questions: Sequence[Interrupt], name: str | None) -> Interrupt:
    fitting = [question for question in questions if name in (None, question.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(repr(question.name) for question in questions) or "none"
    requirement = "one question" if name is None else f"one question named {name!r}"
    raise UsageError(
        f"{requirement} should be open, but {len(fitting)} are (open: {names}), so nothing was answered. "
        "Name one, or pass the Interrupt itself."
    )


LEASE = 30.0
"""Seconds after which a dead worker's visit runs again, the same as on workers."""


class RunsClock(ManualClock):
    """A ManualClock that advances all runs of a test; everything due happens at its time."""

    def __init__(self, runs: Sequence[InProcessRun]) -> None:
        """Advance these runs, including runs that are added to the list later."""
        super().__init__()
        self._runs = runs

    def advance(self, seconds: float) -> None:
        """Advance the time, and run everything that becomes due."""
        until = self.now + round(seconds * 1000)
        while self.now < until:
            times = (run.store.next_due(self.now) for run in self._runs)
            self.now = min([until, *(time for time in times if time is not None)])
            for run in self._runs:
                run.go_on()


class InProcessRun:
    """One run in a test; made by `run_graph`."""

    def __init__(self, store: CrashingStore, clock: ManualClock, graph: Graph) -> None:
        """Prepare the run; `start` begins it."""
        self.store, self.id = store, ""
        self._clock = clock
        self._graph_id = graph.definition.id
        self._bells: deque[Doorbell] = deque()
        own_registry = Registry()
        own_registry.add(self._graph_id, lambda: graph)
        self._engine = Engine(store, self, own_registry, lease=float("inf"))
        self._client = Client(store=store, dispatcher=self, registry=own_registry)

    def start(
        self,
        task: object,
        *,
        state: Mapping[str, object] | None,
        tags: Mapping[str, str] | None,
        requester: str | None,
    ) -> None:
        """Begin the run, and continue until it has ended or waits.

        Raises:
            UsageError: the task can't be stored.
        """
        self.id = self._client.start(
            self._graph_id, task, invocation_state=state, tags=tags, requester=requester
        ).id
        self.go_on()

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Queue doorbells; they are served one at a time, in order."""
        self._bells.extend(doorbells)

    def call(self, task: str, kwargs: Mapping[str, object], task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Return False: a test's run has no `on_end` task."""
        return False

    def go_on(self) -> None:
        """Run all ready nodes and the nodes after them, until nothing more is due now."""
        with async_loop.waiting():
            while self._bells or (self._engine.sweep() and self._bells):
                bell = self._bells.popleft()
                try:
                    self._engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
                except WorkerDied:
                    self._bells.clear()  # the store's timers ring a dead worker's doorbells again
                    self._clock.now += round(LEASE * 1000)

    @property
    def result(self) -> GraphResult:
        """The run in its present state."""
        snapshot = self.store.read(self.id)
        assert snapshot is not None  # noqa: S101 - this object started it
        return graph_result(self.store, snapshot)

    @property
    def status(self) -> Status:
        """The run's status; it is executing while a retry waits for its time."""
        return self.result.status

    @property
    def interrupts(self) -> list[Interrupt]:
        """The open questions, including questions of nested graphs."""
        return self.result.interrupts

    @property
    def events(self) -> list[Event]:
        """All events so far, in order."""
        events: list[Event] = []
        while page := self.store.events(self.id, events[-1].position if events else ""):
            events += page
        return events

    def answer(
        self, response: object, name: str | None = None, *, responder: str | None = None
    ) -> GraphResult:
        """Answer the open question, or the one with this name, as `responder`, and continue.

        Raises:
            UsageError: not exactly one question fits. ResponseError: the answer is refused.
        """
        answers = answers_from(answer(self.result, response, name))
        for receipt in apply_decisions(
            self._engine, [replace(decision, responder=responder) for decision in answers]
        ):
            if receipt.status is not ReceiptStatus.ACCEPTED:
                raise ResponseError(
                    f"{receipt.status}: {receipt.detail}; no answer was applied."
                )
        self.go_on()
        return self.result

    def vote(
        self, decision: str, *, by: str, response: object = None, name: str | None = None
    ) -> Receipt:
        """Vote on the open question, or the one with this name, as `Client.vote` does, and continue.

        Raises:
            UsageError: not exactly one question fits, or `by` isn't a principal.
        """
        question = _only(self.interrupts, name)
        receipt = self._client.vote(
            question.id, decision, by=by, response=response, digest=question.digest
        )
        self.go_on()
        return receipt

    def cancel(self, reason: str = "cancelled by the test") -> GraphResult:
        """Cancel the run."""
        self._engine.cancel(self.id, reason)
        self.go_on()
        return self.result


class InProcessRuns:
    """The fixture `run_graph`: call it with a graph and a task."""

    def __init__(self) -> None:
        """Start without runs."""
        self.runs: list[InProcessRun] = []
        self.clock = RunsClock(self.runs)
        self._crashes = Crashes()
        self._sessions = Sessions()

    def __call__(
        self,
        graph: Graph | Callable[[], Graph] | str,
        task: object = None,
        *,
        invocation_state: Mapping[str, object] | None = None,
        tags: Mapping[str, str] | None = None,
        requester: str | None = None,
    ) -> InProcessRun:
        """Run a graph, given by itself, its factory or its registered name, until it ends or waits.

        `requester` asks for the run, as in `Client.start`.

        Raises:
            UsageError: the task can't be stored. NotFoundError: no graph of that name is registered.
        """
        store = CrashingStore(
            self._crashes, clock=self.clock, lease=LEASE, sessions=self._sessions
        )
        run = InProcessRun(store, self.clock, built(graph))
        self.runs.append(run)
        run.start(task, state=invocation_state, tags=tags, requester=requester)
        return run

    def crash_at(self, node: str, point: str, *, times: int = 1) -> None:
        """Make a node's worker die at a CrashPoint; its visit runs again when its lease is over.

        Raises:
            UsageError: the point is unknown.
        """
        self._crashes.plan(node, point, times)

    def missed(self) -> list[str]:
        """List the planned crashes that did not happen."""
        return self._crashes.missed()


def built(graph: Graph | Callable[[], Graph] | str) -> Graph:
    """Return a graph given by itself, by its factory, or by its registered name."""
    if isinstance(graph, str):
        return Graph(registry.get(graph).definition)
    return graph if isinstance(graph, Graph) else graph()
