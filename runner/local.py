"""Graphs run in process: by the same engine on the memory store, nodes in parallel on threads."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from runner import async_loop
from runner.definition.model import Definition
from runner.definition.registry import Registry
from runner.errors import NotFoundError, ResponseError, RunnerError, UsageError
from runner.execution import ids
from runner.execution.engine import Engine
from runner.execution.nodes import with_events
from runner.execution.results import GraphResult, graph_result
from runner.hooks import Callback, HookEvent, HookRegistry
from runner.operations.answers import apply_decisions
from runner.records import codec
from runner.records.interrupts import Decision, ReceiptStatus, answers_from, is_answers
from runner.records.run import Status, existing
from runner.store.interface import Doorbell, Event, RunSnapshot, Store
from runner.store.memory.sessions import Sessions
from runner.store.memory.store import MemoryStore

THREADS = 32
"""The most nodes of a run that run at the same time in process; others wait for a thread."""

POLL = 0.1
"""Seconds between two sweeps while nothing happens."""

MOST_EXECUTIONS = 1_000
"""The most executions of nodes in process, of a graph with a loop that nothing else ends."""

LEASE = 86_400.0
"""Seconds; a node in process is lost only with the process, so its lease needn't be short."""


class ThreadDispatcher:
    """A Dispatcher that delivers doorbells on threads of this process, while a call of the graph runs."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.errors: list[BaseException] = []
        self._pool: async_loop.WorkThreads | None = None
        self._work = set[Future[None]]()
        self._context = contextvars.Context()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Deliver doorbells from now on, with the caller's context variables for every node."""
        with self._lock:
            self.errors = []
            self._context = contextvars.copy_context()
            self._work = set()
            self._pool = async_loop.WorkThreads(THREADS, thread_name_prefix="runner-node")

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Deliver each doorbell on a thread."""
        with self._lock:
            if self._pool is not None:
                for bell in doorbells:
                    self._begin(
                        self._pool.submit(self._context.copy().run, self._deliver, bell)
                    )

    def _begin(self, work: Future[None]) -> None:
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    def call(self, task: str, kwargs: Mapping[str, Any], task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Return False: a process has no queue."""
        return False

    def _deliver(self, bell: Doorbell) -> None:
        try:
            assert self.engine is not None  # noqa: S101 - set right after both are made
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
        except BaseException as error:  # noqa: BLE001 - raised by `check` on the caller's thread
            self.errors.append(error)

    def check(self) -> None:
        """Raise if a node could not be run or recorded.

        Raises:
            RunnerError: its cause is the original error.
        """
        if self.errors:
            raise RunnerError("a node could not be run or committed.") from self.errors[0]

    def close(self, *, wait: bool = True) -> None:
        """Take no more doorbells; wait for running nodes, except code past its deadline."""
        with self._lock:
            pool = self._pool
            self._pool = None
            work = set(self._work) if wait else set()
        while work := futures.wait(work, timeout=POLL).not_done:
            if self.engine is None or not self.engine.leases.any_held:
                break
        if pool is not None:
            pool.shutdown(wait=wait and not work, cancel_futures=not wait)


class Graph:
    """A built graph: call it to run it here, or register its factory to run it on workers."""

    def __init__(
        self, definition: Definition, store: Store | None = None, *, run_id: str = ""
    ) -> None:
        """Make a graph from its definition; use `GraphBuilder.build()` instead.

        `run_id` continues an interrupted run of the store, as `resume` does.
        """
        self._definition = definition
        self._given_store = store
        self._sessions = Sessions()
        self._open: str | None = None
        self._latest = ""
        self._engine: Engine | None = None
        self._threads = ThreadDispatcher()
        self._lock = threading.Lock()
        if run_id:
            self.resume(run_id)

    @property
    def definition(self) -> Definition:
        """The graph as it was declared, with hidden nodes for the events of the graph."""
        return with_events(self._definition) if "hooks" in vars(self) else self._definition

    @definition.setter
    def definition(self, definition: Definition) -> None:
        self._definition = definition

    @property
    def id(self) -> str:
        """The graph's name."""
        return self._definition.id

    @cached_property
    def hooks(self) -> HookRegistry:
        """Callbacks for runs that start from now on, called after those of the hook providers."""
        hooks = HookRegistry()
        self._definition = replace(self._definition, hooks=(*self._definition.hooks, hooks))
        return hooks

    def add_hook(
        self,
        callback: Callback,
        event_type: type[HookEvent] | Sequence[type[HookEvent]] | None = None,
        *,
        order: int = 0,
    ) -> None:
        """Call `callback(event)` at events of a type, as `HookRegistry.add_callback` does.

        Raises:
            DefinitionError: a type isn't an event, or the callback can't be called.
        """
        self.hooks.add_callback(event_type, callback, order=order)

    def resume(self, run_id: str) -> Graph:
        """Continue an interrupted run of this graph's store: the next call gives its answers.

        Raises:
            NotFoundError: the store, which is empty unless `set_store` gave it, has no such run.
            UsageError: the run isn't interrupted, or belongs to another graph.
        """
        engine = self._make_engine()
        record = existing(engine.store.peek(run_id), run_id)
        if record.graph_id != self.id or record.status is not Status.INTERRUPTED:
            raise UsageError(
                f"run {run_id} of graph {record.graph_id!r} is {record.status}: only an interrupted run of "
                f"graph {self.id!r} can be resumed."
            )
        self._engine = engine
        self._open = run_id
        self._latest = run_id
        return self

    def draw(self, form: str = "text") -> str:
        """Draw the graph as "text", "svg" or "mermaid".

        Raises:
            UsageError: the format is unknown.
        """
        from runner.authoring.drawing import draw  # noqa: PLC0415 - few programs draw

        return draw(self.definition, form)

    def __call__(
        self, task: object, invocation_state: Mapping[str, object] | None = None
    ) -> GraphResult:
        """Run a task, or answer the open questions, until the run ends or waits only for people.

        A node's error is in the result, not raised. `invocation_state` belongs to a run from its start;
        it is ignored with answers.

        Raises:
            ResponseError: the answers can't be used, or the open run waits for answers.
        """
        with async_loop.waiting():
            result = deque(self._steps(task, invocation_state), maxlen=1).pop()
        assert isinstance(result, GraphResult)  # noqa: S101 - the last step is the result
        return result

    async def invoke_async(
        self, task: object, invocation_state: Mapping[str, object] | None = None
    ) -> GraphResult:
        """Run like a call, without blocking the event loop; cancelling it cancels the run."""
        async with aclosing(self.stream_async(task, invocation_state)) as items:
            async for item in items:
                if "result" in item:
                    result: GraphResult = item["result"]
                    return result
        raise RunnerError("the run ended without a result.")

    async def stream_async(
        self, task: object, invocation_state: Mapping[str, object] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run like a call and yield the events; the last item is `{"result": GraphResult}`.

        Leaving the stream before that cancels the run.
        """
        async with aclosing(self._stream(task, invocation_state)) as items:
            async for item in items:
                yield {"result": item} if isinstance(item, GraphResult) else _shown(item)

    async def _stream(
        self, task: object, state: Mapping[str, object] | None
    ) -> AsyncGenerator[Event | GraphResult]:
        """Step through the run on a thread, and pass its steps to the caller's loop."""
        loop, is_abandoned = asyncio.get_running_loop(), threading.Event()
        items: asyncio.Queue[Event | GraphResult | BaseException] = asyncio.Queue()

        def hand_over(item: Event | GraphResult | BaseException) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        work = asyncio.create_task(
            asyncio.to_thread(self._pump, task, state, is_abandoned, hand_over)
        )
        try:
            item: Event | GraphResult | BaseException | None = None
            while not isinstance(item, GraphResult):
                item = await items.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
            await work
        finally:
            is_abandoned.set()

    def _pump(
        self,
        task: object,
        state: Mapping[str, object] | None,
        is_abandoned: threading.Event,
        hand_over: Callable[[Event | GraphResult | BaseException], None],
    ) -> None:
        try:
            with closing(self._steps(task, state)) as steps:
                for step in takewhile(lambda _: not is_abandoned.is_set(), steps):
                    if step is not None:
                        hand_over(step)
        except BaseException as error:  # noqa: BLE001 - handed over and raised there
            hand_over(error)

    def _steps(
        self, task: object, state: Mapping[str, object] | None
    ) -> Generator[Event | GraphResult | None]:
        """Start or continue the run; yield its events, None while idle, then the result."""
        with self._lock:
            try:
                engine, run_id, position = self._begin(task, state)
                yield from self._watch(engine, run_id, position)
                self._threads.close()
                yield self._result(engine, run_id)
            except UsageError:
                raise
            except BaseException:
                self._abandon()
                raise
            finally:
                self._threads.close(wait=False)

    def _begin(
        self, task: object, state: Mapping[str, object] | None
    ) -> tuple[Engine, str, str]:
        if self._open is not None and self._engine is not None:
            position = _last_position(self._engine.store, self._open)
            self._threads.open()
            self._answer(self._engine, answers_from(task))
            return self._engine, self._open, position
        if is_answers(task):
            raise ResponseError("the graph waits for no answers: it has no interrupted run.")
        # A new engine, and so a new memory store: only the sessions of earlier runs stay.
        engine = self._make_engine()
        run_id = ids.run_id()
        self._engine = engine
        self._open = run_id
        self._latest = run_id
        self._threads.open()
        try:
            if self._given_store:
                engine.publish([self.definition.id])
            engine.start(self.definition.id, task, invocation_state=state, run_id=run_id)
        except UsageError:
            self._open = None
            raise
        return engine, run_id, ""

    def _watch(self, engine: Engine, run_id: str, position: str) -> Generator[Event | None]:
        while True:
            record = engine.store.peek(run_id)
            for event in engine.store.events(
                run_id, position, wait=POLL if _executing(record) else 0
            ):
                position = event.position
                yield event
            self._threads.check()
            if not _executing(record) and not engine.store.events(run_id, position, limit=1):
                return
            engine.sweep()
            yield None

    def _abandon(self) -> None:
        """Cancel a run whose caller has gone: the graph must be free for the next call."""
        if self._engine is not None and self._open is not None:
            with suppress(NotFoundError):
                self._engine.cancel(self._open, "its caller left")
        self._open = None

    def _answer(self, engine: Engine, answers: Sequence[Decision]) -> None:
        if not answers:
            engine.sweep()  # no sweep happens between two calls
        receipts = apply_decisions(engine, answers)
        successes = {ReceiptStatus.ACCEPTED, ReceiptStatus.COUNTED}
        refusals = [receipt for receipt in receipts if receipt.status not in successes]
        if refusals:
            reasons = "; ".join(
                f"{receipt.interrupt_id}: {receipt.status}: {receipt.detail}"
                for receipt in refusals
            )
            raise ResponseError(f"{reasons}; no answer was applied.")

    def _make_engine(self) -> Engine:
        store = self._given_store or MemoryStore(lease=LEASE, sessions=self._sessions)
        lease = None if self._given_store else math.inf
        registry = Registry()
        registry.add(self.definition.id, lambda: self)
        plan = registry.find(self.definition.id)
        if plan and plan.topology.loops and not self._given_store:
            from runner.authoring.lint import is_endless  # noqa: PLC0415 - few graphs have loops

            if is_endless(plan):
                definition = replace(self.definition, max_node_executions=MOST_EXECUTIONS)
                registry = Registry()
                registry.add(self.definition.id, lambda: Graph(definition))
        self._threads = ThreadDispatcher()
        self._threads.engine = Engine(store, self._threads, registry, lease)
        return self._threads.engine

    def _result(self, engine: Engine, run_id: str) -> GraphResult:
        snapshot = engine.store.read(run_id, messages=True)
        assert snapshot is not None  # noqa: S101 - this object started it
        if snapshot.record.status is not Status.INTERRUPTED:
            self._open = None
        self._show_messages(snapshot)
        return graph_result(engine.store, snapshot)

    def _show_messages(self, snapshot: RunSnapshot) -> None:
        """Let each Agent object show the conversation of its last run in process."""
        for node, spec in self.definition.nodes.items():
            if spec.kind == "agent" and node in snapshot.messages:
                spec.executor.show(codec.unpack(list(snapshot.messages[node])))


def _shown(event: Event) -> dict[str, Any]:
    data = event.data or event.detail
    return {"type": event.kind, "node_id": event.node, "visit": event.visit, "data": data}


def _executing(record: object) -> bool:
    return getattr(record, "status", None) is Status.EXECUTING


def _last_position(store: Store, run_id: str) -> str:
    events = store.events(run_id)
    while len(events) > 1 and (newer := store.events(run_id, events[-1].position)):
        events = newer
    return events[-1].position if events else ""
