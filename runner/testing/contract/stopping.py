"""The contract of failures and `cancel`: what stops, what is recorded, what goes on."""

from __future__ import annotations

from runner.records.interrupts import InterruptStatus
from runner.records.run import Status
from runner.store.interface import Settlement, Store
from runner.testing.contract.manual_worker import ManualWorker, failure, saved, shape, word_of


class StoppingContract:
    """How runs stop."""

    def test_a_failure_stops_the_run(self, worker: ManualWorker, store: Store) -> None:
        """Under fail_fast a failed node cancels what is ready, retries and waits; its error is kept."""
        run_id = worker.start("a b c d")
        (question,) = worker.park(run_id, "b")
        store.retry(worker.claim(run_id, "c").token, 5_000, failure(), None)

        assert worker.fail(worker.claim(run_id, "a").token) == "settled"

        assert worker.statuses(run_id) == "failed: a failed, b cancelled, c cancelled, d cancelled"
        assert [interrupt.status for interrupt in store.interrupts([question.id]) if interrupt] == [
            InterruptStatus.WITHDRAWN
        ]
        assert worker.read(run_id).entries["a", 1] == failure()
        assert worker.read(run_id).record.reason == 'node "a" failed'
        assert "interrupt.withdrawn b" in worker.kinds(run_id)

    def test_what_runs_is_recorded_before_the_run_ends(self, worker: ManualWorker) -> None:
        """A node that runs when its run stops may finish; the run ends with it, and starts nothing."""
        run_id, token = worker.begin("a b>c", node="b")
        worker.fail(worker.claim(run_id, "a").token)
        assert worker.statuses(run_id) == "executing: a failed, b running"

        assert worker.settle(token, "late") == "settled"

        assert worker.statuses(run_id) == "failed: a failed, b completed"
        assert worker.read(run_id).outputs["b", 1] == "late"

    def test_a_question_asked_too_late_is_withdrawn(self, worker: ManualWorker, store: Store) -> None:
        """A running node of a stopping run that asks or wants to wait is cancelled, visibly."""
        run_id, token = worker.begin("a b", node="b")
        worker.fail(worker.claim(run_id, "a").token)

        assert store.ask(token, [worker.question(token, "one")], None).word == "stopping"
        both = [worker.question(token, "one"), worker.question(token, "two")]
        assert store.park(token, both, saved(1)).word == "cancelled"
        assert store.park(token, both, saved(1)).word == "cancelled"

        assert worker.statuses(run_id) == "failed: a failed, b cancelled"
        assert {question.status for question in worker.read(run_id).interrupts} == {InterruptStatus.WITHDRAWN}
        assert not store.open_interrupts()

    def test_under_continue_other_branches_go_on(self, worker: ManualWorker) -> None:
        """Under continue only the failed branch dies; the run goes to its end and has then failed."""
        run_id = worker.start(shape("a>c b>d c>e d>e", policy="continue"))
        (question,) = worker.park(run_id, "b")
        worker.fail(worker.claim(run_id, "a").token)
        assert worker.statuses(run_id) == "interrupted: a failed, b waiting, c skipped"
        worker.answer(question)
        worker.run(run_id, "b", "d", "e")

        assert worker.statuses(run_id) == "failed: a failed, b completed, c skipped, d completed, e completed"

    def test_a_cancel_stops_all_that_waits(self, worker: ManualWorker, store: Store) -> None:
        """A cancelled run ends at once when nothing runs; its reason can be read."""
        run_id = worker.start("a b")
        (question,) = worker.park(run_id, "a")

        assert store.cancel(run_id, "not wanted").word == "cancelled"

        assert worker.statuses(run_id) == "cancelled: a cancelled, b cancelled"
        assert worker.read(run_id).record.reason == "not wanted"
        assert worker.answer(question) == ["superseded"]
        assert store.cancel(run_id, "again").word == "already"
        assert store.cancel("00none", "?").word == "unknown"

    def test_a_repeated_cancel_gets_its_first_reply(self, worker: ManualWorker, store: Store) -> None:
        """The same request again is "cancelled" whatever has happened since; another one is "already"."""
        run_id = worker.start("a")
        assert [store.cancel(run_id, "enough", "one").word for _ in range(2)] == ["cancelled"] * 2
        assert store.cancel(run_id, "enough", "two").word == "already"
        assert store.cancel(run_id, "enough").word == "already"
        ended = [event.kind for event in store.events(run_id)].count("run.ended")
        assert ended == 1

    def test_a_running_node_learns_that_its_run_is_cancelled(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The renewal of its lease returns that, and what the node does then ends the run."""
        run_id = worker.start("a b")
        one, two = worker.claim(run_id, "a").token, worker.claim(run_id, "b").token
        store.cancel(run_id, "enough")

        assert store.renew([one, two]) == ["cancelled", "cancelled"]
        assert store.retry(one, 0, failure(), None).word == "cancelled"
        assert worker.statuses(run_id) == "executing: a cancelled, b running"
        assert worker.settle(two) == "settled"
        assert worker.statuses(run_id) == "cancelled: a cancelled, b completed"

    def test_a_cancelled_run_claims_nothing(self, worker: ManualWorker, store: Store) -> None:
        """A doorbell that was on its way when the run was cancelled is stale."""
        run_id = worker.start("a")
        store.cancel(run_id, "enough")

        assert worker.sweep() == []
        assert word_of(store.claim(run_id, "a", 1, 1, "n")) == "stale"

    def test_a_lost_worker_of_a_stopping_run_ends_it(self, worker: ManualWorker) -> None:
        """The loss of the last running node ends a run that stops."""
        run_id = worker.start("a b")
        worker.claim(run_id, "b")
        worker.fail(worker.claim(run_id, "a").token)
        worker.sweep(after=31)

        assert worker.statuses(run_id) == "failed: a failed, b cancelled"

    def test_many_waiting_nodes_are_cancelled_in_steps(self, worker: ManualWorker, store: Store) -> None:
        """A stop of a run with very many nodes is done by several sweeps, and then complete."""
        names = [f"n{number:04d}" for number in range(1201)]
        run_id = worker.start(shape(" ".join(names), entries=names))

        assert store.cancel(run_id, "enough").word == "cancelled"
        first = worker.read(run_id)
        cancelled = sorted(name for name, record in first.nodes.items() if record.status is Status.CANCELLED)
        assert cancelled == names[:500]
        assert first.record.status is Status.EXECUTING
        assert [store.sweep().word for _ in range(3)] == ["1", "1", "0"]
        final = worker.read(run_id).record
        assert (final.status, final.active) == (Status.CANCELLED, 0)

    def test_a_failed_node_has_no_output(self, worker: ManualWorker, store: Store) -> None:
        """Only completed visits have an output and count in the order of execution."""
        run_id, token = worker.begin(shape("a", policy="continue"))
        store.settle(token, Settlement(Status.FAILED, "", "ignored", failure()), "n")

        snapshot = worker.read(run_id)
        assert (snapshot.outputs, list(snapshot.order)) == ({}, [])
        assert snapshot.record.status is Status.FAILED
