"""The pool `async`: a node that waits for its coroutine holds no thread.

A slot is a greenlet. Celery's tracer and the engine run in it as they are, on one of a few carrier
threads. When the node's coroutine begins, on the process's loop, the greenlet leaves its carrier to
others, and it continues there when the coroutine has ended. Celery keeps its current task and its
requests by greenlet. Blocking code of users runs on other threads, as do Celery tasks that aren't
nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from celery import current_task
from celery._state import _task_stack
from celery.concurrency import thread
from celery.concurrency.base import apply_target

from runner import async_loop
from runner.errors import MissingExtra, needs_extra

try:
    with needs_extra("async", "the pool async"):
        from greenlet import getcurrent, greenlet
except MissingExtra as missing:
    sys.exit(str(missing))

CARRIERS = 8
"""Threads on which nodes begin and end; more of them only help a store that is far away."""

THREADS = 100
"""Most threads for nodes that block, and as many for other Celery tasks."""


class Carrier:
    """A thread that runs greenlets in turn, each until it waits or ends."""

    def __init__(self) -> None:
        self.running = set[Future[None]]()
        self.resumable = SimpleQueue[Callable[[], object]]()
        Thread(target=self._serve, name="runner-carrier", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.resumable.get()()

    def begin(self, job: Callable[[], object]) -> Future[None]:
        """Run a job in a greenlet of its own."""
        done: Future[None] = Future()
        self.running.add(done)
        done.add_done_callback(self.running.discard)
        # A greenlet belongs to the thread that makes it.
        self.resumable.put(lambda: Slot(self, job, done).switch())
        return done


class Slot(greenlet):
    """The greenlet of one job."""

    def __init__(self, carrier: Carrier, job: Callable[[], object], done: Future[None]) -> None:
        super().__init__()
        self._carrier = carrier
        self._job = job
        self._done = done

    def run(self) -> None:
        """Run the job and report its end."""
        try:
            self._job()
            self._done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - handed over as by a pool of threads
            self._done.set_exception(error)

    def wait(self, work: Future[Any]) -> None:
        """Leave the carrier to other slots until the work has ended."""
        work.add_done_callback(lambda _: self._carrier.resumable.put(self.switch))
        self.parent.switch()


def wait_in_slot(work: Future[Any]) -> Any:
    """Return the work's result; a slot waits without its thread."""
    slot = getcurrent()
    if isinstance(slot, Slot):
        slot.wait(work)
    return work.result()


def _in_task(task: Any, request: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    _task_stack.push(task)
    task.request_stack.push(request)
    try:
        return function(*arguments)
    finally:
        task.request_stack.pop()
        _task_stack.pop()


class TaskPool(thread.TaskPool):
    """Runs nodes in greenlets and everything else on threads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Celery imports this module before the app, whose modules may patch the worker's.
        from runner.celery.doorbells import NODE_TASK  # noqa: PLC0415

        super().__init__(*arguments, **options)
        self._node_task = NODE_TASK
        self.executor = ThreadPoolExecutor(min(self.limit, THREADS), "runner-task")
        self._blocking = async_loop.WorkThreads(min(self.limit, THREADS), "runner-node")
        self._carriers = [Carrier() for _ in range(min(self.limit, CARRIERS))]
        async_loop.result_of = wait_in_slot
        async_loop.call_blocking = self._call_blocking

    def on_apply(
        self,
        target: Any,
        args: Any,
        kwargs: Any,
        callback: Any = None,
        accept_callback: Any = None,
        **options: Any,
    ) -> thread.ApplyResult:
        """Run a task of Celery."""
        if args[0] != self._node_task:
            return super().on_apply(target, args, kwargs, callback, accept_callback, **options)
        job = partial(apply_target, target, args, kwargs, callback, accept_callback)
        carrier = min(self._carriers, key=lambda carrier: len(carrier.running))
        return thread.ApplyResult(carrier.begin(job))

    def on_stop(self) -> None:
        """Wait for the end of all tasks."""
        for carrier in self._carriers:
            wait(carrier.running.copy())
        super().on_stop()

    on_terminate = on_stop

    def _call_blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        task = current_task._get_current_object()  # noqa: SLF001 - the proxy is empty on another thread
        if task is None or not isinstance(getcurrent(), Slot):
            return function(*arguments)
        work = self._blocking.submit(
            copy_context().run, _in_task, task, task.request, function, *arguments
        )
        return wait_in_slot(work)
