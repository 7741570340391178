"""Runs in a test's own thread, one node at a time, by a clock that the test advances.

The same engine as on workers, on the memory store. Nothing waits in real time: retries, expiries and
lost leases are due when the test advances the clock. Only a node's own timeout is measured in real time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner import async_loop
from runner.definition.registry import Registry, registry
from runner.errors import ResponseError
from runner.execution import ids
from runner.execution.engine import Engine
from runner.execution.results import GraphResult, graph_result
from runner.local import Graph
from runner.operations.answers import apply_answers
from runner.records.interrupts import Interrupt, ReceiptStatus, answers_from
from runner.records.run import Status
from runner.store.interface import Doorbell, Event
from runner.store.memory.database import Sessions
from runner.testing.answering import answer
from runner.testing.clock import ManualClock
from runner.testing.crashes import Crashes, CrashingStore, WorkerDied

LEASE = 30.0
"""Seconds after which the visit of a worker that died runs again: as on workers."""


class RunsClock(ManualClock):
    """A ManualClock that advances all runs of a test: what is due on the way happens at its time."""

    def __init__(self, runs: Sequence[InProcessRun]) -> None:
        """Advance these runs, and those that are added to the list later."""
        super().__init__()
        self._runs = runs

    def advance(self, seconds: float) -> None:
        """Advance the time, and run what becomes due."""
        until = self.now + round(seconds * 1000)
        while self.now < until:
            times = (run.store.next_due(self.now) for run in self._runs)
            self.now = min([until, *(time for time in times if time is not None)])
            for run in self._runs:
                run.go_on()


class InProcessRun:
    """One run in a test; made by `run_graph`."""

    def __init__(self, store: CrashingStore, clock: ManualClock, graph: Graph) -> None:
        """Begin with `start`."""
        self.store, self.id = store, ids.run_id()
        self._clock, self._graph_id = clock, graph.definition.id
        self._bells: deque[Doorbell] = deque()
        own_registry = Registry()
        own_registry.add(self._graph_id, lambda: graph)
        self._engine = Engine(store, self, own_registry, lease=float("inf"))

    def start(
        self, task: object, *, state: Mapping[str, object] | None, tags: Mapping[str, str] | None
    ) -> None:
        """Begin the run, and go on until it has ended or waits.

        Raises:
            UsageError: the task can't be stored.
        """
        self._engine.start(self._graph_id, task, invocation_state=state, tags=tags, run_id=self.id)
        self.go_on()

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Take doorbells; they are served one at a time, in their order."""
        self._bells.extend(doorbells)

    def call(self, task: str, kwargs: Mapping[str, object], task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Call no task: a run in a test names none for its end."""
        return False

    def go_on(self) -> None:
        """Run all nodes that are ready, and those behind them, until nothing more is due now."""
        with async_loop.waiting():
            while self._bells or (self._engine.sweep() and self._bells):
                bell = self._bells.popleft()
                try:
                    self._engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
                except WorkerDied:
                    self._bells.clear()  # the queue of a worker that died rings again by the store's timers
                    self._clock.now += round(LEASE * 1000)

    @property
    def result(self) -> GraphResult:
        """The run as it stands."""
        snapshot = self.store.read(self.id)
        assert snapshot is not None  # noqa: S101 - this object started it
        return graph_result(self.store, snapshot)

    @property
    def status(self) -> Status:
        """Where the run stands; it is executing while a retry waits for its time."""
        return self.result.status

    @property
    def interrupts(self) -> list[Interrupt]:
        """The open questions, those of graphs inside included."""
        return self.result.interrupts

    @property
    def events(self) -> list[Event]:
        """All that has happened, in order."""
        events: list[Event] = []
        while more := self.store.events(self.id, events[-1].position if events else ""):
            events += more
        return events

    def answer(
        self, response: object, name: str | None = None, *, responder: str | None = None
    ) -> GraphResult:
        """Answer the open question, or that of this name, and go on; `responder` is who answers.

        Raises:
            UsageError: it is not clear which question is meant. ResponseError: the answer is refused.
        """
        answers = answers_from(answer(self.result, response, name))
        receipts = apply_answers(self._engine, [replace(one, responder=responder) for one in answers])
        for receipt in receipts:
            if receipt.status is not ReceiptStatus.ACCEPTED:
                raise ResponseError(f"{receipt.status}: {receipt.detail}; no answer was applied.")
        self.go_on()
        return self.result

    def cancel(self, reason: str = "cancelled by the test") -> GraphResult:
        """Stop the run."""
        self._engine.cancel(self.id, reason)
        self.go_on()
        return self.result

    def export(self) -> dict[str, object]:
        """Write the run as `runner runs export` does, for `replay`."""
        from runner.cli.output import document  # noqa: PLC0415 - few tests need it
        from runner.cli.views import read_export  # noqa: PLC0415 - few tests need it

        exported: dict[str, object] = document(read_export(self.store, self.id))
        return exported


class InProcessRuns:
    """What the fixture `run_graph` is: call it with a graph and a task."""

    def __init__(self) -> None:
        """Start with no run."""
        self.runs: list[InProcessRun] = []
        self.clock = RunsClock(self.runs)
        self._crashes, self._sessions = Crashes(), Sessions()

    def __call__(
        self,
        graph: Graph | Callable[[], Graph] | str,
        task: object = None,
        *,
        invocation_state: Mapping[str, object] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> InProcessRun:
        """Run a graph, the factory of one, or a registered one by its name, until it has ended or waits.

        Raises:
            UsageError: the task can't be stored. NotFoundError: no graph of that name is registered.
        """
        store = CrashingStore(self._crashes, clock=self.clock, lease=LEASE, sessions=self._sessions)
        run = InProcessRun(store, self.clock, built(graph))
        self.runs.append(run)
        run.start(task, state=invocation_state, tags=tags)
        return run

    def crash_at(self, node: str, point: str, *, times: int = 1) -> None:
        """Make the worker of a node die at a CrashPoint; its visit runs again when its lease is over.

        Raises:
            UsageError: there is no such point.
        """
        self._crashes.plan(node, point, times)

    def missed(self) -> list[str]:
        """Name the crashes that were planned and did not come."""
        return self._crashes.missed()


def built(graph: Graph | Callable[[], Graph] | str) -> Graph:
    """Return the graph that is meant: itself, what a factory builds, or the registered one of a name."""
    if isinstance(graph, str):
        return Graph(registry.get(graph).definition)
    return graph if isinstance(graph, Graph) else graph()
