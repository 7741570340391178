"""The contract of `renew`, `sweep` and the clock: leases, lost doorbells, expiry, deadlines."""

from __future__ import annotations

from runner.interrupts import InterruptStatus, ReceiptStatus
from runner.ports import Store
from runner.run import Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, failure, rung, shape

LEASE = 30


class TimingContract:
    """What time does, and what keeps it from doing it."""

    def test_a_lost_doorbell_is_rung_again(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A ready visit that nobody claims is rung after a lease, then twice as long, up to 5 minutes."""
        worker.start(shape("a"))
        waits = []
        for _ in range(5):
            began = clock.now
            while not rung(store.sweep()):
                clock.advance(1)
            waits.append((clock.now - began) // 1000)

        assert waits == [30, 60, 120, 240, 300]

    def test_a_lost_lease_is_a_new_attempt(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A visit whose worker went silent is rung again as a new attempt, and keeps what was saved."""
        run_id = worker.start(shape("a"))
        lost = worker.claim(run_id, "a").token.fence
        clock.advance(LEASE - 0.001)
        assert rung(store.sweep()) == []
        clock.advance(0.001)

        assert rung(store.sweep()) == ["a.1.2"]
        assert worker.claim(run_id, "a", attempt=2).token.fence > lost

    def test_a_renewed_lease_is_kept(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A worker that renews in time keeps its visit; one that lost it is told so."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        held, lost = worker.claim(run_id, "a").token, worker.claim(run_id, "b").token
        clock.advance(20)
        assert store.renew([held]) == ["ok"]
        clock.advance(20)

        assert rung(store.sweep()) == ["b.1.2"]
        assert store.renew([held, lost]) == ["ok", "stale"]
        assert store.renew([]) == []
        worker.settle(held)
        assert store.renew([held]) == ["stale"]

    def test_a_node_that_kills_its_workers_fails(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """Five leases lost in a row fail the node with an error that says so."""
        run_id = worker.start(shape("a"))
        for attempt in range(1, 6):
            worker.claim(run_id, "a", attempt=attempt)
            clock.advance(LEASE)
            store.sweep()

        assert worker.statuses(run_id) == "failed: a failed"
        assert "five times" in worker.read(run_id).entries["a", 1]["error"]["message"]
        assert worker.read(run_id).record.reason == 'node "a" failed'

    def test_a_wait_resets_the_crash_budget(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """Only leases lost in a row count: a node that came as far as to wait starts anew."""
        run_id = worker.start(shape("a", each=["a"]))
        for attempt in range(1, 5):
            worker.claim(run_id, "a", attempt=attempt)
            clock.advance(LEASE)
            store.sweep()
        token = worker.claim(run_id, "a", attempt=5).token
        question = worker.asked(token)
        store.park(token, [question], None)
        worker.answer(question)
        worker.claim(run_id, "a", attempt=5)
        clock.advance(LEASE)

        assert rung(store.sweep()) == ["a.1.6"]

    def test_an_unanswered_question_expires(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """When its time is over the node goes on and finds the question expired."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a", expires_in=60)
        clock.advance(60)
        (late,) = worker.answer(question)
        assert late.status is ReceiptStatus.EXPIRED

        assert rung(store.sweep()) == ["a.1.1"]
        assert [each.status for each in worker.claim(run_id, "a").answers] == [InterruptStatus.EXPIRED]
        assert [receipt.status for receipt in worker.answer(question)] == [ReceiptStatus.EXPIRED]
        assert not store.open_interrupts()

    def test_an_answered_question_does_not_expire(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """An answer in time stops the clock of its question."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a", expires_in=60)
        worker.answer(question)
        token = worker.claim(run_id, "a").token
        clock.advance(20)
        store.renew([token])
        clock.advance(20)
        store.renew([token])
        clock.advance(25)

        assert store.sweep().word == "0"
        assert [each.status for each in worker.read(run_id).interrupts] == [InterruptStatus.ANSWERED]

    def test_a_run_past_its_deadline_fails(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A run that takes too long makes nothing ready any more and fails when what runs has ended."""
        run_id = worker.start(shape("a>b", execution_timeout=90.5))
        token = worker.claim(run_id, "a").token
        for _ in range(4):
            clock.advance(25)
            store.renew([token])
            store.sweep()

        assert worker.statuses(run_id) == "executing: a running"
        assert worker.settle(token) == "settled"
        assert worker.statuses(run_id) == "failed: a completed"
        assert worker.read(run_id).record.reason == "execution timeout of 90.5 s reached"

    def test_a_run_in_time_has_no_deadline_left(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """The deadline of a run that has ended is forgotten."""
        run_id = worker.start(shape("a", execution_timeout=5))
        worker.run(run_id, "a")
        clock.advance(10)

        assert store.sweep().word == "0"

    def test_a_sweep_does_no_more_than_asked(self, worker: Worker, store: Store) -> None:
        """A sweep handles so many timers and says how many; the rest is done by the next ones."""
        graph = shape("a b c", entries=["a", "b", "c"])
        run_id = worker.start(graph)
        for node in "abc":
            store.retry(worker.claim(run_id, node).token, 0, failure(), None)

        replies = [store.sweep(limit=2) for _ in range(3)]

        assert [(reply.word, rung(reply)) for reply in replies] == [
            ("2", ["a.1.2", "b.1.2"]),
            ("1", ["c.1.2"]),
            ("0", []),
        ]

    def test_a_claimed_doorbell_is_not_rung_again(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """A claim stops the ringing; what a late sweep finds changes nothing."""
        run_id = worker.start(shape("a"))
        clock.advance(29)
        token = worker.claim(run_id, "a").token
        clock.advance(2)

        assert store.sweep().word == "0"
        worker.settle(token)
        assert worker.read(run_id).record.status is Status.COMPLETED
