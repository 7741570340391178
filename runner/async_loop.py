"""One asyncio loop per process, on a daemon thread, for async nodes and all agents.

A forked process gets a new loop at its first use; a lock guards the start.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, TypeVar, cast

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Sync tools and store calls of all agents of the process share these threads; they mostly wait.
THREADS = 256


Around = Callable[[], AbstractContextManager[Any]]

_around: list[Around] = []


def around_thread_work(manager: Around) -> Around:
    """Enter a context manager around each piece of user code on a thread that no Celery task owns.

    Sync tools of agents and nodes in process run on such threads, where Celery's signals and its Django
    fixup do nothing. Django's connections are closed there without this, as `CONN_MAX_AGE` says.
    """
    _around.append(manager)
    return manager


@contextmanager
def _django_connections() -> Iterator[None]:
    # Threads stay when their work ends, so a connection that was opened for one would stay, too.
    database = sys.modules.get("django.db")
    conf = sys.modules.get("django.conf")
    if database is None or conf is None or not conf.settings.configured:
        yield
        return
    database.close_old_connections()
    try:
        yield
    finally:
        database.close_old_connections()


def _surrounded(work: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    # No error of a manager may keep the work from being done, or its result from being seen.
    stack = ExitStack()
    for manager in (_django_connections, *_around):
        try:
            stack.enter_context(manager())
        except Exception:
            log.exception("around_thread_work.failed: the work is done without this manager.")
    try:
        return work(*arguments, **named)
    finally:
        try:
            stack.__exit__(*sys.exc_info())
        except Exception:
            log.exception("around_thread_work.failed: the work is done, and its result counts.")


class WorkThreads(ThreadPoolExecutor):
    """Threads for sync user code, each piece of it inside the managers of `around_thread_work`."""

    def submit(
        self, work: Callable[..., Result], /, *arguments: Any, **named: Any
    ) -> Future[Result]:
        """Run the work on a thread."""
        return super().submit(_surrounded, work, *arguments, **named)


class _ProcessLoop:
    """A running loop, and the process and thread it belongs to."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_blocking_threads())
        self.thread = threading.Thread(target=self._serve, name="runner-loop", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            # A task that calls sys.exit() ends the loop's run; its caller gets the exit, others
            # continue.
            with suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()


def _blocking_threads() -> WorkThreads:
    return WorkThreads(THREADS, thread_name_prefix="runner-blocking")


_lock = threading.Lock()

_current: _ProcessLoop | None = None


def _forked() -> None:
    # The child doesn't inherit the thread, and the lock that it inherits may be held.
    global _lock, _current
    _lock, _current = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _process_loop() -> _ProcessLoop:
    global _current  # noqa: PLW0603 - one loop per process is a global by nature
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _ProcessLoop()
        return _current


class Stop:
    """Ends a node's async work from another thread, with an error as the reason."""

    def __init__(self) -> None:
        self._works = set[Future[Any]]()
        self._error: Exception | None = None

    def __call__(self, error: Exception) -> None:
        """Cancel the running work; its caller, or else the next caller, gets the error once."""
        self._error = error
        for work in list(self._works):
            work.cancel()

    @contextmanager
    def watched(self, work: Future[Any]) -> Iterator[None]:
        """Make a piece of work cancellable while the block runs."""
        self._works.add(work)
        try:
            if self._error is not None:
                raise self._taken()
            yield
        except CancelledError:
            raise self._taken() from None
        finally:
            self._works.discard(work)

    def _taken(self) -> Exception:
        # Callbacks run after this error is raised, and must not get it as well.
        error = self._error or CancelledError()
        self._error = None
        return error


_stop: contextvars.ContextVar[Stop | None] = contextvars.ContextVar(
    "runner_loop_stop", default=None
)


def stop_by(stop: Stop) -> None:
    """Make the async work that runs in this context stoppable."""
    _stop.set(stop)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end from sync code and return its result, with the caller's context.

    If the caller is on a running loop, or works for a caller that waits on one, the work gets a new
    thread with its own loop, because waiting for it on the loop it needs would never end.
    """
    context = contextvars.copy_context()
    if _waits.get() or is_running():
        return _on_own_thread(work, context)
    return _on_process_loop(work, context)


_waits: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "runner_loop_waits", default=False
)


def is_running() -> bool:
    """Return whether the caller is on a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def waiting() -> Iterator[None]:
    """Mark the caller as waiting inside the block: work done for it can't use its loop."""
    before = _waits.set(_waits.get() or is_running())
    try:
        yield
    finally:
        _waits.reset(before)


# A pool whose tasks share threads replaces both.

result_of: Callable[[Future[Any]], Any] = Future.result
"""Waits for the work of a task on another thread, and returns its result."""

call_blocking: Callable[..., Any] = operator.call
"""Calls a function that may block, with these arguments."""


def _on_process_loop(work: Coroutine[Any, Any, Result], context: contextvars.Context) -> Result:
    ours = _process_loop()
    done: Future[Result] = Future()

    def start() -> None:
        task = ours.loop.create_task(work, context=context)
        # No callback keeps what calls it: the garbage of many short nodes would stay for long.
        done.add_done_callback(
            lambda end: end.cancelled() and ours.loop.call_soon_threadsafe(task.cancel)
        )
        task.add_done_callback(lambda end: _hand_over(end, done))

    ours.loop.call_soon_threadsafe(start)
    try:
        with (_stop.get() or Stop()).watched(done):
            return cast("Result", result_of(done))
    except BaseException:
        # The caller was stopped (KeyboardInterrupt) or the work failed: leave nothing running.
        done.cancel()
        raise


def _hand_over(task: asyncio.Task[Result], done: Future[Result]) -> None:
    if not done.set_running_or_notify_cancel():
        task.cancelled() or task.exception()
        return
    if task.cancelled():
        done.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


async def in_thread(function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Run a sync function on a thread, in this context, and return its result or raise its error.

    `asyncio.to_thread` alone would wait forever if the function raises StopIteration.
    """
    result, error = await asyncio.to_thread(_caught, function, arguments, named)
    if isinstance(error, StopIteration):
        raise RuntimeError("a function raised StopIteration") from error  # noqa: TRY004 - see above
    if error is not None:
        raise error
    return cast("Result", result)


def _caught(
    function: Callable[..., Result], arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Result | None, BaseException | None]:
    try:
        return function(*arguments, **named), None
    except BaseException as error:  # noqa: BLE001 - handed over and raised there
        return None, error


def is_cancelled() -> bool:
    """Return whether the running task was cancelled from outside.

    User code may raise a CancelledError itself; that is an error like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _on_own_thread(work: Coroutine[Any, Any, Result], context: contextvars.Context) -> Result:
    done: Future[Result] = Future()

    async def main() -> Result:
        asyncio.get_running_loop().set_default_executor(_blocking_threads())
        return await work

    def serve() -> None:
        try:
            done.set_result(context.run(asyncio.run, main()))
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            done.set_exception(error)

    thread = threading.Thread(target=serve, name="runner-nested", daemon=True)
    thread.start()
    thread.join()
    return done.result()
