"""The contract of ended runs: the task that is called at the end, and removal."""

from __future__ import annotations

from runner.definition.model import AFTER_GRAPH
from runner.operations.recovery import write_retry
from runner.records.listings import RunQuery
from runner.records.run import RunRecord, Status
from runner.scheduler.changes import CALLBACK_NODE
from runner.store.interface import Doorbell, Settlement, Start, Store
from runner.testing.contract.manual_worker import ManualWorker, failure, rung, shape

TASK = "shop.done"


INNER = shape("x", name="inner")


class EndingContract:
    """What a store promises of runs that have ended."""

    def last_of(self, worker: ManualWorker, run_id: str, node: str, attempt: int = 1) -> list[str]:
        """Fail the last node of a run, and name what that rings."""
        token = worker.claim(run_id, node, 1, attempt).token
        return rung(
            worker.store.settle(token, Settlement(Status.FAILED, "", None, failure()), worker.nonce())
        )

    def record(self, worker: ManualWorker, run_id: str) -> RunRecord:
        """Read a run's record, which is the same in both ways of reading."""
        record = worker.store.peek(run_id)
        assert record is not None
        assert worker.read(run_id).record == record
        return record

    def test_a_run_that_ends_rings_for_its_end(self, worker: ManualWorker, store: Store) -> None:
        """The step that ends a run rings its first node's queue for the node @end, and counts the end."""
        run_id, token = worker.begin("a", on_end=TASK)
        before = self.record(worker, run_id)
        reply = store.settle(token, Settlement(Status.COMPLETED, "", 1, {"v": 1}), "n")

        assert (before.on_end, before.ends, before.untold) == (TASK, 0, 0)
        assert list(reply.doorbells) == [Doorbell(run_id, CALLBACK_NODE, 1, 1, "runner", 5, "g")]
        after = self.record(worker, run_id)
        assert (after.status, after.on_end, after.ends, after.untold) == (Status.COMPLETED, TASK, 1, 1)

    def test_a_run_without_a_task_rings_for_nothing(self, worker: ManualWorker) -> None:
        """A run that names no task ends as it always did."""
        run_id = worker.start("a")

        assert self.last_of(worker, run_id, "a") == []
        assert self.record(worker, run_id).ends == 0

    def test_a_cancelled_run_rings_for_its_end(self, worker: ManualWorker, store: Store) -> None:
        """A cancel that ends a run rings for its end, too."""
        run_id = worker.start("a", on_end=TASK)

        assert rung(store.cancel(run_id, "enough")) == [f"{CALLBACK_NODE}.1.1"]

    def test_a_run_that_time_ends_rings_for_its_end(self, worker: ManualWorker) -> None:
        """A run that its execution timeout ends rings for its end, too."""
        run_id = worker.start(shape("a", execution_timeout=5.0), on_end=TASK)
        worker.park(run_id, "a")

        assert worker.sweep(after=6) == [f"{CALLBACK_NODE}.1.1"]
        assert self.record(worker, run_id).status is Status.FAILED

    def test_the_last_event_comes_before_the_end(self, worker: ManualWorker, store: Store) -> None:
        """A graph's own last node runs first; only then has the run ended."""
        run_id = worker.start(shape(f"a {AFTER_GRAPH}", entries=["a"]), on_end=TASK)

        assert self.last_of(worker, run_id, "a") == [f"{AFTER_GRAPH}.1.1"]
        token = worker.claim(run_id, AFTER_GRAPH).token
        reply = store.settle(token, Settlement(Status.COMPLETED, "", None, {"v": 1}), "n")
        assert rung(reply) == [f"{CALLBACK_NODE}.1.1"]

    def test_an_end_that_was_not_reported_rings_again(self, worker: ManualWorker) -> None:
        """A lost doorbell or worker costs a lease; each further doorbell comes after twice the time."""
        run_id = worker.start("a", on_end=TASK)
        self.last_of(worker, run_id, "a")
        rings = []
        for seconds in (29, 1, 59, 1, 119, 1):
            worker.clock.advance(seconds)
            rings.append(worker.sweep())

        assert rings == [[], [f"{CALLBACK_NODE}.1.1"]] * 3
        assert self.record(worker, run_id).untold == 4

    def test_an_end_that_was_reported_rings_no_more(self, worker: ManualWorker, store: Store) -> None:
        """An end that was reported is rung for no more; a repeated report changes nothing."""
        run_id = worker.start("a", on_end=TASK)
        self.last_of(worker, run_id, "a")

        assert [store.end_reported(run_id, 1).word for _ in range(2)] == ["end_reported", "end_reported"]
        worker.clock.advance(3600)
        assert (store.sweep().word, worker.sweep()) == ("0", [])
        assert (self.record(worker, run_id).ends, self.record(worker, run_id).untold) == (1, 0)

    def test_only_an_end_that_was_can_be_told(self, worker: ManualWorker, store: Store) -> None:
        """An end that has not come, or of a run that is not there, is stale."""
        run_id = worker.start("a", on_end=TASK)
        assert store.end_reported(run_id, 1).word == "stale"
        self.last_of(worker, run_id, "a")

        assert [store.end_reported(*which).word for which in ((run_id, 2), (run_id, 0), ("00no", 1))] == [
            "stale"
        ] * 3
        assert self.record(worker, run_id).untold == 1

    def test_a_retried_run_reports_its_next_end(self, worker: ManualWorker, store: Store) -> None:
        """A retry drops the end that was not reported yet; the next end has a number of its own."""
        run_id = worker.start("a", on_end=TASK)
        self.last_of(worker, run_id, "a")
        write_retry(store, run_id)
        assert (self.record(worker, run_id).ends, self.record(worker, run_id).untold) == (1, 0)

        assert self.last_of(worker, run_id, "a", 2) == [f"{CALLBACK_NODE}.2.1"]

        assert store.end_reported(run_id, 1).word == "stale"
        assert self.record(worker, run_id).untold == 1
        assert store.end_reported(run_id, 2).word == "end_reported"
        worker.clock.advance(3600)
        assert store.sweep().word == "0"

    def test_the_first_start_of_a_key_says_whom_to_tell(self, worker: ManualWorker, store: Store) -> None:
        """A start that meets an existing run changes nothing of it."""
        run_id = worker.start("a", on_end=TASK, idempotency_key="k")
        again = store.start(Start("00two", "g", None, None, idempotency_key="k", on_end="other"), "n")

        assert (again.word, again.run_id) == ("exists", run_id)
        assert self.record(worker, run_id).on_end == TASK

    def test_a_removed_run_is_gone(self, worker: ManualWorker, store: Store) -> None:
        """Nothing finds it any more: not its id, no listing, no question's id."""
        run_id = worker.start("a", tags={"team": "red"})
        (question,) = worker.park(run_id, "a")
        worker.answer(question)
        worker.run(run_id, "a")

        assert store.remove(run_id).word == "removed"
        assert (store.read(run_id), store.peek(run_id)) == (None, None)
        assert store.interrupts([question.id]) == [None]
        assert list(store.events(run_id)) == []
        for query in (
            RunQuery(),
            RunQuery(Status.COMPLETED),
            RunQuery(graph="g"),
            RunQuery(tags={"team": "red"}),
        ):
            assert list(store.runs(query)) == []
        assert store.remove(run_id).word == "unknown"

    def test_a_removed_run_leaves_its_idempotency_key(self, worker: ManualWorker, store: Store) -> None:
        """A start with the key of a run that was removed begins a new one."""
        run_id = worker.start("a", idempotency_key="k")
        worker.run(run_id, "a")
        store.remove(run_id)

        again = store.start(Start("00later", "g", None, "task", idempotency_key="k"), worker.nonce())
        assert (again.word, again.run_id) == ("started", "00later")

    def test_a_run_that_goes_on_is_not_removed(self, worker: ManualWorker, store: Store) -> None:
        """A run that executes, waits or has an end to report is kept."""
        executing, waiting = worker.start("a"), worker.start("a")
        worker.park(waiting, "a")
        untold = worker.start("a", on_end="shop.done")
        worker.run(untold, "a")

        assert {store.remove(run_id).word for run_id in (executing, waiting, untold)} == {"goes_on"}
        assert all(store.peek(run_id) for run_id in (executing, waiting, untold))
        store.end_reported(untold, 1)
        assert store.remove(untold).word == "removed"

    def test_the_runs_inside_go_with_the_outermost(self, worker: ManualWorker, store: Store) -> None:
        """A run inside another is removed with it, by the sweep, and never alone."""
        parent = worker.start("a")
        child = worker.start(INNER, parent=worker.claim(parent, "a").token)
        inmost = worker.start(INNER, parent=worker.claim(child, "x").token)
        for run_id, node in ((inmost, "x"), (child, "x"), (parent, "a")):
            worker.run(run_id, node)

        assert store.remove(child).word == "inside"
        assert store.remove(parent).word == "removed"
        worker.sweep()
        assert [store.peek(run_id) for run_id in (parent, child, inmost)] == [None, None, None]
        assert list(store.runs()) == []
