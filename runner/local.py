"""A graph in process: the same engine on the memory store, nodes in parallel on threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from runner import ids
from runner.engine import Engine
from runner.errors import ResponseError, RunnerError
from runner.graph import Definition
from runner.interrupts import Answer, ReceiptStatus, answers_from, is_answers
from runner.ports import Doorbell, Event, RunSnapshot, Store
from runner.registry import Registry
from runner.results import GraphResult, graph_result
from runner.run import Status
from runner.store.memory import MemoryStore

THREADS = 32
"""Nodes of one run that run at the same time in process; more wait their turn."""

POLL = 0.1
"""Seconds between two looks at the timers while nothing happens."""

LEASE = 86_400.0
"""Seconds; a node in process is lost only with the process, so its lease need not be short."""


class Threads:
    """A Dispatcher that delivers doorbells on threads of this process."""

    def __init__(self) -> None:
        """Start without threads; the first doorbell makes some."""
        self.engine: Engine | None = None
        self.surprises: list[BaseException] = []
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Deliver each on a thread, with the caller's context variables."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="runner-node")
            for bell in doorbells:
                self._pool.submit(contextvars.copy_context().run, self._deliver, bell)

    def _deliver(self, bell: Doorbell) -> None:
        try:
            assert self.engine is not None  # noqa: S101 - set right after both are made
            self.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
        except BaseException as error:  # noqa: BLE001 - a thread has nobody else to tell
            self.surprises.append(error)

    def close(self) -> None:
        """End the threads once they are idle."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=True)
                self._pool = None


class Graph:
    """A built graph: call it to run it here, or register its factory to run it on workers."""

    def __init__(self, definition: Definition, store: Store | None = None) -> None:
        """Made by GraphBuilder.build()."""
        self.definition = definition
        self._given_store = store
        self._open: str | None = None
        self._engine: Engine | None = None
        self._threads = Threads()
        self._turn = threading.Lock()

    @property
    def id(self) -> str:
        """The graph's name."""
        return self.definition.id

    def __call__(self, task: object, *, invocation_state: Mapping[str, object] | None = None) -> GraphResult:
        """Run a task, or answer the open questions, until the run ends or only people can go on.

        A node's error is in the result, not raised.

        Raises:
            ResponseError: the answers can't be used, or the open run waits for answers.
        """
        for _ in self._events(task, invocation_state):
            continue
        return self._result()

    async def invoke_async(
        self, task: object, *, invocation_state: Mapping[str, object] | None = None
    ) -> GraphResult:
        """Run like a call, without blocking the event loop."""
        return await asyncio.to_thread(self.__call__, task, invocation_state=invocation_state)

    async def stream_async(
        self, task: object, *, invocation_state: Mapping[str, object] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Run like a call and yield what happens; the last item is `{"result": GraphResult}`."""
        events = self._events(task, invocation_state)
        while (event := await asyncio.to_thread(next, events, None)) is not None:
            yield {
                "type": event.kind,
                "node_id": event.node,
                "visit": event.visit,
                "data": event.data or event.detail,
            }
        yield {"result": await asyncio.to_thread(self._result)}

    def _events(self, task: object, state: Mapping[str, object] | None) -> Iterator[Event]:
        with self._turn:
            engine = self._engine = self._engine or self._make_engine()
            run_id, after = self._open, ""
            if run_id is not None:
                after = _last_position(engine.store, run_id)
                self._answer(engine, answers_from(task))
            elif is_answers(task):
                raise ResponseError("the graph waits for no answers: it has no interrupted run.")
            else:
                run_id = self._open = engine.start(
                    self.definition.id, task, invocation_state=state, run_id=ids.run_id()
                )
            try:
                yield from self._watch(engine, run_id, after)
            finally:
                self._threads.close()

    def _watch(self, engine: Engine, run_id: str, after: str) -> Iterator[Event]:
        while True:
            record = engine.store.peek(run_id)
            for event in engine.store.events(run_id, after, wait=POLL if _executing(record) else 0):
                after = event.position
                yield event
            if self._threads.surprises:
                raise RunnerError("a node could not be run or committed.") from self._threads.surprises[0]
            if not _executing(record) and not engine.store.events(run_id, after, limit=1):
                return
            engine.sweep()

    def _answer(self, engine: Engine, answers: Sequence[Answer]) -> None:
        receipts = engine.answer(answers) if answers else []
        refused = [receipt for receipt in receipts if receipt.status is not ReceiptStatus.ACCEPTED]
        if refused:
            first = refused[0]
            raise ResponseError(
                f"{first.interrupt_id}: {first.status}: {first.detail}; no answer was applied."
            )

    def _make_engine(self) -> Engine:
        store = self._given_store or MemoryStore(lease=LEASE)
        known = Registry()
        known.add(self.definition.id, lambda: self)
        engine = Engine(store, self._threads, known, lease=LEASE)
        self._threads.engine = engine
        return engine

    def _result(self) -> GraphResult:
        engine, run_id = self._engine, self._open
        assert engine is not None and run_id is not None  # noqa: S101, PT018 - called after a run
        snapshot = engine.store.read(run_id)
        assert snapshot is not None  # noqa: S101 - this object started it
        if snapshot.record.status is not Status.INTERRUPTED:
            self._open = None
        self._show_messages(snapshot)
        return graph_result(engine.store, snapshot)

    def _show_messages(self, snapshot: RunSnapshot) -> None:
        """An Agent object shows the conversation of its last run in process."""
        for node, spec in self.definition.nodes.items():
            if spec.kind == "agent" and node in snapshot.messages:
                spec.executor.messages = list(snapshot.messages[node])


def _executing(record: object) -> bool:
    return getattr(record, "status", None) is Status.EXECUTING


def _last_position(store: Store, run_id: str) -> str:
    events = store.events(run_id)
    while len(events) > 1 and (more := store.events(run_id, events[-1].position)):
        events = more
    return events[-1].position if events else ""
