from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runner import Status
from runner.errors import LeaseLost, RunStopped, StoreError
from runner.execution import leases
from runner.execution.leases import Lease, Leases
from runner.store.interface import Token
from runner.store.memory.store import MemoryStore
from tests.graphs import Bench, wired
from tests.waiting import wait_until

FIRST, SECOND = Token("00run", "a", 1, 1), Token("00run", "b", 1, 1)


class Renewals(MemoryStore):
    """A store that answers renewals as it is told, and notes them."""

    def __init__(self, word: str = "ok") -> None:
        super().__init__()
        self.word = word
        self.broken: Exception | None = None
        self.asked: list[list[Token]] = []

    def renew(self, tokens):
        """Answer, or break."""
        self.asked.append(list(tokens))
        if self.broken is not None:
            raise self.broken
        return [self.word for _ in tokens]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "runner-leases"]


@contextmanager
def holding(held: Leases, token: Token) -> Iterator[Lease]:
    """Hold a lease while the block runs."""
    yield held.hold(token)
    held.end(token)


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch):
    """The thread of an idle process ends at once, and none is left from another test."""
    monkeypatch.setattr(leases, "LINGER", 0.02)
    wait_until(lambda: not threads(), "no thread renews any more")


def test_all_leases_are_renewed_in_one_call():
    """Whatever a process runs, one call every third of a lease keeps all of it."""
    store = Renewals()
    held = Leases(store, 0.06)

    with holding(held, FIRST), holding(held, SECOND):
        wait_until(lambda: len(store.asked) >= 3, "three renewals")

    assert store.asked[-1] == [FIRST, SECOND]
    assert len(threads()) <= 1


@pytest.mark.parametrize(("word", "error"), [("stale", LeaseLost), ("cancelled", RunStopped)])
def test_a_node_learns_that_it_is_no_longer_ours(word, error):
    """A renewal that is refused makes the node's next check raise, with what happened."""
    store = Renewals(word)
    held = Leases(store, 0.03)

    with holding(held, FIRST) as lease:
        wait_until(lambda: lease.state == word, f"the lease is {word}")
        with pytest.raises(error, match=r"node 'a' of run 00run|run 00run was cancelled"):
            lease.check()


@pytest.mark.parametrize("broken", [StoreError("gone"), RuntimeError("a fault of ours")])
def test_an_outage_shorter_than_a_lease_costs_nothing(broken, caplog):
    """Renewals that fail are tried again; the lease counts as ours until it has run out."""
    store = Renewals()
    store.broken = broken
    held = Leases(store, 60)

    with holding(held, FIRST) as lease:
        held.look()
        lease.check()
        store.broken = None
        held.look()
        lease.check()

    assert "lease.renewal.failed" in caplog.text
    assert "Trying again in 20.0 s" in caplog.text


def test_an_outage_longer_than_a_lease_ends_the_node():
    """When no renewal came through for a whole lease, somebody else may have the node: it stops."""
    store = Renewals()
    store.broken = StoreError("gone")
    held = Leases(store, 0.05)

    with holding(held, FIRST) as lease:
        wait_until(lambda: lease.state == "stale", "the lease counts as lost")
        store.broken = None
        wait_until(lambda: len(store.asked) > 3, "another renewal")
        with pytest.raises(LeaseLost):
            lease.check()


def test_the_thread_ends_with_the_last_lease_and_starts_again():
    """A process that holds nothing has no thread, and has one again with the next lease."""
    held = Leases(Renewals(), 60)
    with holding(held, FIRST):
        assert len(threads()) == 1
    wait_until(lambda: not threads(), "the thread ends")

    with holding(held, SECOND):
        assert len(threads()) == 1


def test_a_lease_without_end_needs_no_thread():
    """Where a node can only be lost with the process, nothing is renewed; a look still tells of a cancel."""
    store = Renewals("cancelled")
    held = Leases(store, math.inf)

    with holding(held, FIRST) as lease:
        assert threads() == []
        held.look()
        with pytest.raises(RunStopped):
            lease.check()


def test_looking_at_nothing_asks_nobody():
    """Without a lease the store is left alone."""
    store = Renewals()
    Leases(store, 60).look()

    assert store.asked == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_renews_its_own_leases_only():
    """After a fork the child has a thread of its own, and what the parent holds stays the parent's."""
    store = Renewals()
    held = Leases(store, 0.03)
    with holding(held, FIRST):
        child = os.fork()
        if child == 0:
            failed = 1
            try:
                store.asked.clear()
                with holding(held, SECOND):
                    wait_until(lambda: len(store.asked) >= 2, "two renewals in the child")
                failed = int(any(question != [SECOND] for question in store.asked))
            finally:
                os._exit(failed)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_wait_costs_no_thread_and_no_slot():
    """Eighty runs wait and have no thread of their own; the next run ends at once."""
    bench = Bench(
        wired({"a": lambda ctx: ctx.interrupt("approve") if ctx.task else "done"}).build()
    )
    bench.start("ask").finish_all()
    before = threading.active_count()
    for _ in range(80):
        bench.start("ask").finish_all()

    # The one thread that renews leases ends when nothing runs, and starts again.
    assert threading.active_count() <= before + 1
    assert bench.start("").finish().status is Status.COMPLETED
    assert len(bench.store.runs(limit=100)) == 82
