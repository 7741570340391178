from __future__ import annotations

import asyncio
import inspect
import sys
import traceback

import pytest

from runner import AsyncClient, AsyncRun, Client, Run, Status
from runner.async_client import WAITERS
from runner.definition.registry import Registry
from runner.errors import NotFoundError
from tests.graphs import Bench, answers, ident, single, wired
from tests.waiting import wait_until

pytestmark = pytest.mark.anyio


def ask(ctx):
    return ctx.interrupt("ok?")


def office(graph):
    """Give an async client, and a bench that does the work of its runs."""
    bench = Bench(graph)
    known = Registry()
    known.add("bench", lambda: graph)
    return AsyncClient(store=bench.store, dispatcher=bench, registry=known), bench


@pytest.mark.parametrize(("sync", "twin"), [(Client, AsyncClient), (Run, AsyncRun)])
def test_both_clients_have_the_same_methods(sync, twin):
    """A method that only one of them had, or with other arguments, would be missed by somebody."""

    def methods(kind):
        return {
            name: [
                str(parameter) for parameter in inspect.signature(member).parameters.values()
            ]
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    awaited = methods(twin)
    if twin is AsyncRun:  # made by clients; what is read from the store is awaited
        assert awaited.pop("status") == ["self"]
        awaited["__init__"] = methods(sync)["__init__"]

    assert awaited == methods(sync)
    assert all(
        inspect.iscoroutinefunction(getattr(twin, name))
        or inspect.isasyncgenfunction(getattr(twin, name))
        for name in awaited.keys() - {"__init__"}
    )


async def test_a_run_is_started_answered_and_awaited():
    """What a program does with a Client, on an event loop."""
    client, bench = office(single(ask))
    run = await client.start("bench", "task", tags={"team": "red"})
    assert await run.status() is Status.EXECUTING
    bench.finish_all()
    (question,) = await run.interrupts()
    receipt = await client.respond(question.id, "yes", responder="ana")
    bench.finish_all()
    result = await run.wait(timeout=60)
    again = await (await client.run(run.id)).again()

    assert receipt.status == "accepted"
    assert (result.status, result.results["a"].output) == (Status.COMPLETED, "yes")
    assert [each.run_id for each in await client.runs(tags={"team": "red"})] == [
        again.id,
        run.id,
    ]
    bench.finish_all()
    receipts = await again.respond(
        answers(*((each.id, "no") for each in await again.interrupts()))
    )
    assert [each.status for each in receipts] == ["accepted"]
    with pytest.raises(NotFoundError, match="there is no run 'nobody'"):
        await client.run("nobody")


async def test_events_are_followed_while_they_happen():
    """The stream of a run ends with the run, and lets other coroutines work until then."""
    client, bench = office(wired({"a": ident, "b": ident}, "a b").build())
    run = await client.start("bench", "task")
    kinds = []
    async for event in run.events(follow=True):
        kinds.append(event.kind)
        if bench.bells:
            bench.deliver()

    assert kinds == [event.kind for event in run.sync.events()]
    assert kinds[-1] == "run.ended"
    assert [event.kind async for event in run.events(after="1")] == kinds[1:]


@pytest.mark.slow
async def test_a_wait_that_is_given_up_leaves_no_thread_behind():
    """Whoever stops waiting, by a time-out of ours or of asyncio, has the thread back in a second."""
    client, _ = office(single(ident))
    run = await client.start("bench", "task")

    with pytest.raises(TimeoutError, match=r"still executes after 0\.05 s; it continues"):
        await run.wait(timeout=0.05)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.wait(), 0.05)

    await asyncio.to_thread(
        wait_until, lambda: not blocking_reads(), "no thread waits any more"
    )


def blocking_reads():
    """List the threads that wait for a run to settle."""
    return [
        frame
        for frame in sys._current_frames().values()
        if any(call.name == "_settled" for call in traceback.extract_stack(frame))
    ]


@pytest.mark.full
async def test_many_waits_keep_nothing_else_from_working():
    """More waits than there are threads for them: other calls go on, and every wait ends."""
    client, bench = office(single(ident))
    run = await client.start("bench", "task")
    waits = [asyncio.create_task(run.wait(timeout=60)) for _ in range(2 * WAITERS)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await run.status() is Status.EXECUTING
        bench.finish_all()
        results = await asyncio.gather(*waits)

    assert {result.status for result in results} == {Status.COMPLETED}
