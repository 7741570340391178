"""The contract of answers that come too late, or to nobody: each is told why, and none has an effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.interrupts import Address, Interrupt
from runner.ports import Store
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, shape

Ending = Callable[[Worker, Store, ManualClock], Interrupt]
"""Asks a question, and lets it end in some way."""


def _asked(worker: Worker, **said: object) -> Interrupt:
    # A branch beside it keeps the run going.
    run_id = worker.start(shape("a b", entries=["a", "b"], policy="continue"))
    return worker.park(run_id, "a", **said)[0]  # type: ignore[arg-type] # options of a question


def _answered(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    del store, clock
    asked = _asked(worker)
    worker.answer(asked, responder="ann")
    return asked


def _expired(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    asked = _asked(worker, expires_in=60)
    clock.advance(60)
    store.sweep()
    return asked


def _expired_unnoticed(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    del store
    asked = _asked(worker, expires_in=60)
    clock.advance(60)
    return asked


def _failed_by_expiry(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    asked = _asked(worker, expires_in=60, on_expire="fail")
    clock.advance(60)
    store.sweep()
    return asked


def _withdrawn(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    del clock
    asked = _asked(worker)
    store.withdraw(asked.id, "wrong", reask=False)
    return asked


def _left(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    """The node has ended without the answer."""
    del clock
    token = worker.claim(worker.start(shape("a b", entries=["a", "b"])), "a").token
    asked = worker.asked(token)
    store.ask(token, [asked], None)
    worker.settle(token)
    return asked


def _cancelled(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    del clock
    asked = _asked(worker)
    store.cancel(asked.run_id, "enough")
    return asked


def _ended(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    """The whole run has ended without the answer."""
    del clock
    token = worker.claim(worker.start(shape("a")), "a").token
    asked = worker.asked(token)
    store.ask(token, [asked], None)
    worker.fail(token)
    return asked


def _of_an_older_visit(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    """A loop has asked anew since."""
    del clock
    run_id = worker.start(shape("a>b b>a"))
    token = worker.claim(run_id, "a").token
    asked = worker.asked(token)
    store.ask(token, [asked], None)
    worker.settle(token)
    worker.run(run_id, "b")
    worker.park(run_id, "a", visit=2)
    return asked


def _never_asked(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    del store, clock
    asked = _asked(worker)
    return Address(asked.run_id, "a", 1).ask("something else", scope="function")


def _of_no_run(worker: Worker, store: Store, clock: ManualClock) -> Interrupt:
    del worker, store, clock
    return Address("00nobody", "a", 1).ask("ok?", scope="function")


LATE: list[tuple[Ending, str, str]] = [
    (_answered, "duplicate", "already answered by ann"),
    (_expired, "expired", "the time to answer is over"),
    (_expired_unnoticed, "expired", "the time to answer is over"),
    (_failed_by_expiry, "expired", "the time to answer is over"),
    (_withdrawn, "superseded", "the question was withdrawn"),
    (_left, "superseded", "the question was withdrawn"),
    (_cancelled, "superseded", "the question was withdrawn"),
    (_ended, "superseded", "the question was withdrawn"),
    (_of_an_older_visit, "superseded", "the question was withdrawn"),
    (_never_asked, "unknown", "no such question was asked"),
    (_of_no_run, "unknown", "no such question was asked"),
]


class LateContract:
    """What becomes of answers to questions that take none any more."""

    @pytest.mark.parametrize("late", LATE, ids=[each[0].__name__[1:] for each in LATE])
    def test_a_late_answer_is_told_why_and_changes_nothing(
        self, worker: Worker, store: Store, clock: ManualClock, late: tuple[Ending, str, str]
    ) -> None:
        """Its receipt says what became of the question, however often it comes, alone or in a set."""
        ending, status, detail = late
        asked = ending(worker, store, clock)
        before, events = store.read(asked.run_id), len(store.events(asked.run_id))
        good = worker.park(worker.start(shape("a")), "a")[0]

        for _ in range(2):
            assert [(str(each.status), each.detail) for each in worker.answer(asked, responder="bob")] == [
                (status, detail)
            ]
        # In a set it keeps the others from being applied.
        assert [str(each.status) for each in worker.answer(asked, good)] == [status, "rejected"]

        assert store.read(asked.run_id) == before
        assert len(store.events(asked.run_id)) == events
        assert [each.id for each in store.open_interrupts() if each.id == good.id]
