"""The contract of `told`: a run with somebody to tell rings at its end, until that is done."""

from __future__ import annotations

from runner.actions import END
from runner.graph import AFTER_GRAPH
from runner.ports import Doorbell, Settlement, Start, Store
from runner.reruns import Reruns
from runner.run import RunRecord, Status
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, failure, rung, shape

TASK = "shop.done"


class EndingContract:
    """What a store promises of runs that name a task to be called at their end."""

    def last_of(self, worker: Worker, run_id: str, node: str, attempt: int = 1) -> list[str]:
        """Fail the last node of a run, and name what that rings."""
        token = worker.claim(run_id, node, 1, attempt).token
        return rung(
            worker.store.settle(token, Settlement(Status.FAILED, "", None, failure()), worker.nonce())
        )

    def record(self, worker: Worker, run_id: str) -> RunRecord:
        """Read a run's record, which is the same in both ways of reading."""
        found = worker.store.peek(run_id)
        assert found is not None
        assert worker.read(run_id).record == found
        return found

    def test_a_run_that_ends_rings_for_its_end(self, worker: Worker, store: Store) -> None:
        """The step that ends a run rings its first node's queue for the node @end, and counts the end."""
        run_id = worker.start(shape("a"), on_end=TASK)
        token = worker.claim(run_id, "a").token
        before = self.record(worker, run_id)
        reply = store.settle(token, Settlement(Status.COMPLETED, "", 1, {"v": 1}), "n")

        assert (before.on_end, before.ends, before.untold) == (TASK, 0, 0)
        assert list(reply.doorbells) == [Doorbell(run_id, END, 1, 1, "runner", 5, "g")]
        after = self.record(worker, run_id)
        assert (after.status, after.on_end, after.ends, after.untold) == (Status.COMPLETED, TASK, 1, 1)

    def test_a_run_without_a_task_rings_for_nothing(self, worker: Worker) -> None:
        """A run that names no task ends as it always did."""
        run_id = worker.start(shape("a"))

        assert self.last_of(worker, run_id, "a") == []
        assert self.record(worker, run_id).ends == 0

    def test_a_cancelled_run_rings_for_its_end(self, worker: Worker, store: Store) -> None:
        """A cancel that ends a run tells so, too."""
        run_id = worker.start(shape("a"), on_end=TASK)

        assert rung(store.cancel(run_id, "enough")) == [f"{END}.1.1"]

    def test_a_run_that_time_ends_rings_for_its_end(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """A run that its execution timeout ends tells so, too."""
        run_id = worker.start(shape("a", execution_timeout=5.0), on_end=TASK)
        worker.park(run_id, "a")
        clock.advance(6)

        assert rung(store.sweep()) == [f"{END}.1.1"]
        assert self.record(worker, run_id).status is Status.FAILED

    def test_the_last_event_comes_before_the_end(self, worker: Worker, store: Store) -> None:
        """A graph's own last node runs first; only then has the run ended."""
        run_id = worker.start(shape(f"a {AFTER_GRAPH}", entries=["a"]), on_end=TASK)

        assert self.last_of(worker, run_id, "a") == [f"{AFTER_GRAPH}.1.1"]
        token = worker.claim(run_id, AFTER_GRAPH).token
        reply = store.settle(token, Settlement(Status.COMPLETED, "", None, {"v": 1}), "n")
        assert rung(reply) == [f"{END}.1.1"]

    def test_an_end_that_nobody_told_rings_again(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """A lost doorbell or a lost worker costs a lease; each ring after that comes after twice the time."""
        run_id = worker.start(shape("a"), on_end=TASK)
        self.last_of(worker, run_id, "a")
        rings = []
        for seconds in (29, 1, 59, 1, 119, 1):
            clock.advance(seconds)
            rings.append(rung(store.sweep()))

        assert rings == [[], [f"{END}.1.1"]] * 3
        assert self.record(worker, run_id).untold == 4

    def test_an_end_that_was_told_rings_no_more(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """When an end was told nothing rings for it; a repeat of that changes nothing."""
        run_id = worker.start(shape("a"), on_end=TASK)
        self.last_of(worker, run_id, "a")

        assert [store.told(run_id, 1).word for _ in range(2)] == ["told", "told"]
        clock.advance(3600)
        assert (store.sweep().word, rung(store.sweep())) == ("0", [])
        assert (self.record(worker, run_id).ends, self.record(worker, run_id).untold) == (1, 0)

    def test_only_an_end_that_was_can_be_told(self, worker: Worker, store: Store) -> None:
        """An end that has not come, or of a run that is not there, is stale."""
        run_id = worker.start(shape("a"), on_end=TASK)
        assert store.told(run_id, 1).word == "stale"
        self.last_of(worker, run_id, "a")

        assert [store.told(*which).word for which in ((run_id, 2), (run_id, 0), ("00no", 1))] == ["stale"] * 3
        assert self.record(worker, run_id).untold == 1

    def test_a_retried_run_tells_its_next_end(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A retry takes back what was not told yet; the next end has a number of its own."""
        run_id = worker.start(shape("a"), on_end=TASK)
        self.last_of(worker, run_id, "a")
        Reruns(store).retry(run_id, None)
        assert (self.record(worker, run_id).ends, self.record(worker, run_id).untold) == (1, 0)

        assert self.last_of(worker, run_id, "a", 2) == [f"{END}.2.1"]

        assert store.told(run_id, 1).word == "stale"
        assert self.record(worker, run_id).untold == 1
        assert store.told(run_id, 2).word == "told"
        clock.advance(3600)
        assert store.sweep().word == "0"

    def test_the_first_start_of_a_key_says_whom_to_tell(self, worker: Worker, store: Store) -> None:
        """A start that meets an existing run changes nothing of it."""
        run_id = worker.start(shape("a"), on_end=TASK, idempotency_key="k")
        again = store.start(Start("00two", "g", None, None, idempotency_key="k", on_end="other"), "n")

        assert (again.word, again.run_id) == ("exists", run_id)
        assert self.record(worker, run_id).on_end == TASK
