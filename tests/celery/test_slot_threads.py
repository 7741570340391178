"""The threads of a worker's slots: the one that ends a task runs what continues it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.celery.inline_continuation import SlotThreads


def sequence(threads):
    """Submit a call that submits two more, and ends when the second of these has run; list their threads."""
    ran, second_ran = {}, threading.Event()

    def note(name):
        ran[name] = threading.get_ident()

    def last():
        note("second")
        second_ran.set()

    def first():
        note("first")
        futures.extend([threads.submit(note, "next"), threads.submit(last)])
        assert second_ran.wait(60)

    futures = []
    with threads:
        threads.submit(first).result(60)
        for future in futures:
            future.result(60)
    return ran


def test_a_thread_runs_the_next_task_itself():
    """What continues a task runs on its thread after it; anything else runs on another one meanwhile."""
    ran = sequence(SlotThreads(2))

    assert ran["next"] == ran["first"] != ran["second"]


def test_another_executor_wakes_another_thread():
    """Control: with Python's own threads the next task runs elsewhere, before the first has ended."""
    ran = sequence(ThreadPoolExecutor(2))

    assert ran["next"] != ran["first"]


def test_an_error_ends_one_task_only():
    """What continues a task that raises runs nevertheless, and each has its result or its error."""
    following = []

    def fails():
        following.append(threads.submit(threading.get_ident))
        raise OSError("broken")

    with SlotThreads(1) as threads:
        with pytest.raises(OSError, match="broken"):
            threads.submit(fails).result(60)

        assert following[0].result(60) == threads.submit(threading.get_ident).result(60)


def test_threads_that_stop_take_no_more():
    """After the stop a task that ends may submit none, as with Python's own threads."""
    refused = []

    def continues():
        threads.shutdown(wait=False)
        with pytest.raises(RuntimeError, match="after shutdown"):
            threads.submit(print)
        refused.append(True)

    with SlotThreads(1) as threads:
        threads.submit(continues).result(60)

    assert refused
