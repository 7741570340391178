"""The loop of the process: sync callers, callers on a loop, forked children."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import weakref

import pytest

from runner import async_loop
from tests.waiting import wait_until


async def where():
    return threading.get_ident()


def test_all_callers_of_a_process_share_one_loop():
    """Work of several threads runs on the same thread, and not on theirs."""
    thread_ids = []
    threads = [
        threading.Thread(target=lambda: thread_ids.append(async_loop.run(where())))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(thread_ids) == {async_loop.run(where())}
    assert threading.get_ident() not in thread_ids


def test_a_caller_on_a_loop_gets_a_thread_of_its_own():
    """Waiting for the loop one stands on would never end."""

    async def outer():
        return threading.get_ident(), async_loop.run(where())

    here, there = asyncio.run(outer())
    assert here != there
    on_ours, nested = async_loop.run(outer())
    assert on_ours != nested


def test_context_variables_come_along():
    """The work sees the caller's context, on either way."""
    tenant = contextvars.ContextVar("tenant", default="nobody")

    async def who():
        return tenant.get()

    async def nested():
        return async_loop.run(who())

    tenant.set("acme")
    assert async_loop.run(who()) == "acme"
    assert asyncio.run(nested()) == "acme"


def test_ended_work_is_freed_without_the_garbage_collector():
    """A worker collects old garbage seldom: cycles of its calls would take hundreds of megabytes."""
    held = contextvars.ContextVar[set[str]]("held")
    context, value = contextvars.copy_context(), set("a value")
    context.run(held.set, value)
    reference = weakref.ref(value)
    gc.disable()
    try:
        context.run(lambda: async_loop.run(where()))
        del context, value
        wait_until(lambda: reference() is None, "what the work's context holds is gone")
    finally:
        gc.enable()


def test_errors_come_out_as_they_are():
    """Also those that asyncio can't carry through a thread."""

    async def broken():
        await async_loop.in_thread(next, iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        async_loop.run(broken())

    async def leaves():
        await async_loop.in_thread(exit_program)

    def exit_program():
        raise SystemExit(2)

    with pytest.raises(SystemExit):
        async_loop.run(leaves())
    assert async_loop.run(where())


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_a_loop_of_its_own():
    """A child made after the loop began can use it, too."""
    async_loop.run(where())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"y" if async_loop.run(where()) else b"n")
        os._exit(0)
    assert os.read(reader, 1) == b"y"
    os.waitpid(child, 0)
