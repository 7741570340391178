"""`Client` and `Run` for async programs: the same methods, as coroutines that wait on threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from runner.async_loop import in_thread
from runner.client import STILL_EXECUTES, Client, Run
from runner.definition.registry import Registry, registry
from runner.execution.results import GraphResult
from runner.records.run import Status
from runner.store.interface import Dispatcher, Event, Store

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Wrapped = TypeVar("Wrapped")

WAIT = 1.0
"""Seconds of one blocking read, and so the longest that a cancelled wait keeps its thread."""

WAITERS = 128
"""Threads for blocking reads; with more waits than that at once, each sees a change a little later."""

# Other calls have separate threads, so that they don't queue behind blocking reads.
_waiters = ThreadPoolExecutor(WAITERS, thread_name_prefix="runner-waits")


class _Async(Generic[Wrapped]):
    def __init__(self, sync: Wrapped) -> None:
        self.sync = sync


def _coroutine(
    method: Callable[Concatenate[Wrapped, Arguments], Result],
) -> Callable[Concatenate[_Async[Wrapped], Arguments], Coroutine[Any, Any, Result]]:
    """Make a coroutine function of a method, with its signature and docstring."""

    @functools.wraps(method)
    async def call(
        wrapper: _Async[Wrapped], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return await in_thread(method, wrapper.sync, *args, **kwargs)

    return call


def _coroutine_of_run(
    method: Callable[Concatenate[Wrapped, Arguments], Run],
) -> Callable[Concatenate[_Async[Wrapped], Arguments], Coroutine[Any, Any, AsyncRun]]:
    """Make a coroutine function of a method that returns a run."""

    @functools.wraps(method)
    async def call(
        wrapper: _Async[Wrapped], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncRun:
        return AsyncRun(await in_thread(method, wrapper.sync, *args, **kwargs))

    vars(call)["__signature__"] = inspect.signature(method).replace(
        return_annotation="AsyncRun"
    )
    return call


class AsyncRun(_Async[Run]):
    """One run, for async programs: the methods of `Run` as coroutines. `sync` is the Run itself."""

    @property
    def id(self) -> str:
        """The run's id."""
        return self.sync.id

    async def status(self) -> Status:
        """Read the run's status.

        Raises:
            NotFoundError: the run doesn't exist.
        """
        return await in_thread(lambda: self.sync.status)

    async def wait(self, timeout: float | None = None) -> GraphResult:  # noqa: ASYNC109 - as in Run
        """Wait until the run has ended or only people can continue it; `timeout` in seconds.

        Raises:
            TimeoutError: it was still executing then; the run continues.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        result = None
        while result is None:
            remaining = WAIT if ends is None else ends - time.monotonic()
            read_result = self.sync._settled  # noqa: SLF001 - the twin of `Run.wait`
            result = await _blocking(read_result, min(remaining, WAIT))
            if result is None and remaining <= 0:
                raise TimeoutError(STILL_EXECUTES.format(self.id, timeout))
        return result

    async def events(self, after: str = "", *, follow: bool = False) -> AsyncIterator[Event]:
        """Read the run's events, in order, after a position; with `follow` until the run ends."""
        more_to_come = True
        while more_to_come:
            next_events = self.sync._next_events  # noqa: SLF001 - the twin of `Run.events`
            events, more_to_come = await _blocking(next_events, after, follow, WAIT)
            for event in events:
                after = event.position
                yield event

    result = _coroutine(Run.result)
    interrupts = _coroutine(Run.interrupts)
    respond = _coroutine(Run.respond)
    cancel = _coroutine(Run.cancel)
    retry = _coroutine(Run.retry)
    hold = _coroutine(Run.hold)
    release = _coroutine(Run.release)
    skip = _coroutine(Run.skip)
    migrate = _coroutine(Run.migrate)
    remove = _coroutine(Run.remove)
    fork = _coroutine_of_run(Run.fork)
    again = _coroutine_of_run(Run.again)


class AsyncClient(_Async[Client]):
    """Starts, finds and answers runs, for async programs: the methods of `Client` as coroutines.

    Each call waits on a thread, so it never blocks the event loop. `sync` is the Client itself.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        broker_url: str | None = None,
        *,
        namespace: str | None = None,
        partitions: int | None = None,
        store: Store | None = None,
        dispatcher: Dispatcher | None = None,
        registry: Registry = registry,
    ) -> None:
        """Open the store of these arguments, or by default of the `RUNNER_*` settings."""
        super().__init__(
            Client(
                redis_url,
                broker_url,
                namespace=namespace,
                partitions=partitions,
                store=store,
                dispatcher=dispatcher,
                registry=registry,
            )
        )

    start = _coroutine_of_run(Client.start)
    run = _coroutine_of_run(Client.run)
    runs = _coroutine(Client.runs)
    interrupts = _coroutine(Client.interrupts)
    interrupt = _coroutine(Client.interrupt)
    respond = _coroutine(Client.respond)
    vote = _coroutine(Client.vote)
    respond_all = _coroutine(Client.respond_all)
    grant = _coroutine(Client.grant)
    grants = _coroutine(Client.grants)
    vote_grant = _coroutine(Client.vote_grant)
    revoke_grant = _coroutine(Client.revoke_grant)
    withdraw_vote = _coroutine(Client.withdraw_vote)
    delegate = _coroutine(Client.delegate)
    begin_absence = _coroutine(Client.begin_absence)
    end_absence = _coroutine(Client.end_absence)
    absences = _coroutine(Client.absences)
    reassign = _coroutine(Client.reassign)
    claim = _coroutine(Client.claim)
    release = _coroutine(Client.release)
    comment = _coroutine(Client.comment)
    withdraw = _coroutine(Client.withdraw)
    session = _coroutine(Client.session)
    forget_session = _coroutine(Client.forget_session)


async def _blocking(
    function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Result:
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_waiters, call)
