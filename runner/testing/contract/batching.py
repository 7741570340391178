"""The contract of `advance`: graphs that run in batches, as Strands runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.graph import AFTER_GRAPH, BATCH, Topology
from runner.outcomes import NextBatch
from runner.ports import Store, Token
from runner.run import Status
from runner.schedule import CRASH_BUDGET
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, rung, saved, shape, word_of

Inputs = Sequence[tuple[str, int]]


def batched(edges: str, entries: Sequence[str] = (), **said: Any) -> Topology:
    """Build a graph that runs in batches."""
    return shape(edges, entries, compat="strands", **said)


def batch_of(*following: tuple[str, Inputs], reason: str = "") -> NextBatch:
    """Say who comes next, each with its inputs."""
    return NextBatch([], following, reason)


def end_of_batch(worker: Worker, run_id: str, visit: int = 1, attempt: int = 1) -> Token:
    """Claim the node that chooses the next batch."""
    return worker.claim(run_id, BATCH, visit, attempt).token


class BatchingContract:
    """How one batch follows another."""

    def test_a_batch_ends_with_its_last_node(self, worker: Worker, store: Store) -> None:
        """What a node leads to waits for the whole batch; its last settle rings for the choice."""
        run_id = worker.start(batched("a>c b>c", entries=["a", "b"]))
        worker.run(run_id, "a", edges="")
        assert worker.statuses(run_id) == "executing: @batch pending, a completed, b ready"

        worker.run(run_id, "b", edges="")

        claim = worker.claim(run_id, BATCH)
        assert (claim.record.via, list(claim.inputs)) == ((("a", 1), ("b", 1)), [])
        assert word_of(store.claim(run_id, "c", 1, 1, "n")) == "stale"

    def test_the_next_batch_is_what_was_chosen(self, worker: Worker, store: Store) -> None:
        """Its nodes are ready together, each told of the inputs that were chosen for it, in edge order."""
        run_id = worker.start(batched("a>c b>c b>d", entries=["a", "b"]))
        worker.run(run_id, "a", "b", edges="")
        token = end_of_batch(worker, run_id)
        batch = NextBatch([("a", "1"), ("b", "10")], [("c", [("b", 1), ("a", 1)]), ("d", ())], saved=saved(7))

        reply = store.advance(token, batch, "same")

        assert (reply.word, rung(reply)) == ("advanced", ["c.1.1", "d.1.1"])
        assert store.advance(token, batch, "same").word == "advanced"
        assert store.advance(token, batch, "other").word == "stale"
        assert list(worker.claim(run_id, "c").inputs) == [("a", 1, "a"), ("b", 1, "b")]
        assert list(worker.claim(run_id, "d").inputs) == []
        nodes = worker.read(run_id).nodes
        assert (nodes["a"].edges, nodes["b"].edges) == ("1", "10")

    def test_a_run_ends_when_nothing_follows(self, worker: Worker, store: Store) -> None:
        """An empty batch is the end, and the event after the run comes then, not before."""
        graph = batched(f"a>b {AFTER_GRAPH}", entries=["a"])
        run_id = worker.start(graph)
        worker.run(run_id, "a", edges="")
        assert word_of(store.claim(run_id, AFTER_GRAPH, 1, 1, "n")) == "stale"

        reply = store.advance(end_of_batch(worker, run_id), batch_of(), "n")

        assert rung(reply) == [f"{AFTER_GRAPH}.1.1"]
        worker.run(run_id, AFTER_GRAPH)
        assert worker.read(run_id).record.status is Status.COMPLETED

    def test_a_node_that_waits_keeps_its_batch_open(self, worker: Worker) -> None:
        """The run waits for the person; with the answer the batch goes on, and then the next one comes."""
        run_id = worker.start(batched("a>b c>d", entries=["a", "c"]))
        worker.run(run_id, "c", edges="")
        (question,) = worker.park(run_id, "a")
        assert worker.statuses(run_id) == "interrupted: @batch pending, a waiting, c completed"

        worker.answer(question)
        worker.run(run_id, "a", edges="")

        assert worker.claim(run_id, BATCH).record.via == (("a", 1), ("c", 1))

    def test_a_node_may_be_visited_again(self, worker: Worker, store: Store) -> None:
        """A cycle is a new visit, with the result of the old one still readable until it has its own."""
        run_id = worker.start(batched("a>a"))
        worker.settle(worker.claim(run_id, "a").token, "one", edges="")

        reply = store.advance(end_of_batch(worker, run_id), batch_of(("a", [("a", 1)])), "n1")

        assert rung(reply) == ["a.2.1"]
        claim = worker.claim(run_id, "a", visit=2)
        assert list(claim.inputs) == [("a", 1, "one")]
        worker.settle(claim.token, "two", edges="")
        store.advance(end_of_batch(worker, run_id, visit=2), batch_of(), "n2")
        found = worker.read(run_id)
        assert (found.record.status, list(found.order)) == (Status.COMPLETED, ["a", "a"])

    def test_a_lost_choice_is_made_again(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """When its worker is lost the choice goes to another, and the lost one's is refused."""
        run_id = worker.start(batched("a>b"))
        worker.run(run_id, "a", edges="")
        old = end_of_batch(worker, run_id)
        clock.advance(31)
        assert rung(store.sweep()) == [f"{BATCH}.1.2"]
        new = worker.claim(run_id, BATCH, attempt=2)

        assert store.advance(old, batch_of(("b", ())), "n1").word == "stale"
        assert new.record.via == (("a", 1),)
        assert store.advance(new.token, batch_of(("b", [("a", 1)])), "n2").word == "advanced"

    def test_a_choice_that_kills_every_worker_fails_the_run(
        self, worker: Worker, store: Store, clock: ManualClock
    ) -> None:
        """The crash budget holds for it too, and under continue the run ends nevertheless."""
        run_id = worker.start(batched("a>b", policy="continue"))
        worker.run(run_id, "a", edges="")
        for attempt in range(1, CRASH_BUDGET + 1):
            end_of_batch(worker, run_id, attempt=attempt)
            clock.advance(31)
            store.sweep()

        assert worker.statuses(run_id) == "failed: @batch failed, a completed"

    def test_a_choice_that_fails_ends_the_run(self, worker: Worker) -> None:
        """An error of a condition fails the run, under any policy."""
        run_id = worker.start(batched("a>b", policy="continue"))
        worker.run(run_id, "a", edges="")

        worker.fail(end_of_batch(worker, run_id))

        assert worker.statuses(run_id) == "failed: @batch failed, a completed"

    def test_executions_are_counted_between_batches(self, worker: Worker, store: Store) -> None:
        """A batch may pass the limit; after it none begins. A run that is done is no failure."""
        run_id = worker.start(batched("a>a", max_node_executions=1))
        worker.run(run_id, "a", edges="")
        store.advance(end_of_batch(worker, run_id), batch_of(("a", ())), "n1")
        done = worker.start(batched("b", max_node_executions=1, name="done"))
        worker.run(done, "b", edges="")
        store.advance(end_of_batch(worker, done), batch_of(), "n2")

        assert worker.read(run_id).record.reason == 'max_node_executions (1) reached before "a"'
        assert worker.read(run_id).record.status is Status.FAILED
        assert worker.read(done).record.status is Status.COMPLETED

    def test_a_reason_stops_the_run(self, worker: Worker, store: Store) -> None:
        """What the chooser found out about the time, or kept for the next choice, is heeded."""
        run_id = worker.start(batched("a>a"))
        worker.run(run_id, "a", edges="")
        kept = NextBatch([], [("a", ())], saved=saved(3))
        store.advance(end_of_batch(worker, run_id), kept, "n1")
        worker.settle(worker.claim(run_id, "a", visit=2).token, edges="")
        claim = worker.claim(run_id, BATCH, visit=2)
        assert claim.document == {"v": 1, "step": 3}

        store.advance(claim.token, batch_of(("a", ()), reason="too long"), "n2")

        record = worker.read(run_id).record
        assert (record.status, record.reason) == (Status.FAILED, "too long")

    def test_a_failure_ends_the_run_or_only_its_branch(self, worker: Worker, store: Store) -> None:
        """Under fail_fast no batch follows a failure; under continue the choice is made without it."""
        fast = worker.start(batched("a>c b>c", entries=["a", "b"]))
        slow = worker.start(batched("a>c b>c", entries=["a", "b"], policy="continue", name="slow"))
        for run_id in (fast, slow):
            worker.fail(worker.claim(run_id, "a").token)
        worker.run(slow, "b", edges="")

        assert worker.statuses(fast) == "failed: @batch pending, a failed, b cancelled"
        store.advance(end_of_batch(worker, slow), batch_of(("c", [("b", 1)])), "n")
        worker.run(slow, "c", edges="")
        store.advance(end_of_batch(worker, slow, visit=2), batch_of(), "n2")
        assert worker.statuses(slow) == "failed: @batch completed, a failed, b completed, c completed"

    def test_a_cancelled_run_opens_no_batch(self, worker: Worker, store: Store) -> None:
        """A choice that comes after the cancel counts for nothing."""
        run_id = worker.start(batched("a>b"))
        worker.run(run_id, "a", edges="")
        token = end_of_batch(worker, run_id)
        store.cancel(run_id, "enough")

        assert rung(store.advance(token, batch_of(("b", ())), "n")) == []
        assert worker.statuses(run_id) == "cancelled: @batch completed, a completed"
