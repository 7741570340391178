"""The contract of `rewrite`: an ended run goes on, with what had completed as it was."""

from __future__ import annotations

import pytest

from runner.errors import ConflictError, UsageError
from runner.graph import Definition, EdgeSpec, NodeSpec, topology
from runner.maps import MapSpec
from runner.ports import Store
from runner.reruns import Reruns
from runner.testing.clock import ManualClock
from runner.testing.contract.worker import Worker, rung, saved, shape, word_of


class ReopeningContract:
    """What a store promises of runs that are retried in place."""

    def test_a_failed_node_runs_again_in_its_run(self, worker: Worker, store: Store) -> None:
        """Completed nodes stay; the failed one is ready in the same visit, with a new attempt and fence."""
        run_id = worker.start(shape("a>b b>c"))
        worker.run(run_id, "a")
        token = worker.claim(run_id, "b").token
        worker.fail(token)

        names, reply = Reruns(store).retry(run_id, None)

        assert (names, reply.word, rung(reply)) == (["b"], "reopened", ["b.1.2"])
        assert worker.statuses(run_id) == "executing: a completed, b ready"
        claim = worker.claim(run_id, "b", 1, 2)
        assert list(claim.inputs) == [("a", 1, "a")]
        assert claim.token.fence > token.fence
        assert claim.record.uncounted == 1  # so that a policy counts from here
        assert worker.settle(token) == "stale"
        worker.settle(claim.token, "b")
        worker.run(run_id, "c")
        assert worker.statuses(run_id) == "completed: a completed, b completed, c completed"
        assert list(worker.read(run_id).order) == ["a", "b", "c"]
        assert "run.retried" in worker.kinds(run_id)

    def test_what_a_node_kept_is_there_when_it_runs_again(self, worker: Worker, store: Store) -> None:
        """Documents, messages and answers of the visit survive its failure and the retry."""
        run_id = worker.start(shape("a"))
        (question,) = worker.park(run_id, "a")
        worker.answer(question)
        token = worker.claim(run_id, "a").token
        store.save(token, saved(3, "hello"))
        worker.fail(token)
        Reruns(store).retry(run_id, None)

        claim = worker.claim(run_id, "a", 1, 2)

        assert (claim.document, list(claim.messages)) == ({"v": 1, "step": 3}, ["hello"])
        assert [each.response for each in claim.answers] == ["yes"]

    def test_what_was_withdrawn_is_asked_again(self, worker: Worker, store: Store) -> None:
        """A node that was cancelled while it waited runs again and opens the same question."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        (question,) = worker.park(run_id, "b")
        worker.fail(worker.claim(run_id, "a").token)
        assert worker.statuses(run_id) == "failed: a failed, b cancelled"

        assert Reruns(store).retry(run_id, None)[0] == ["a", "b"]

        token = worker.claim(run_id, "b", 1, 2).token
        assert store.park(token, [question], None).word == "waiting"
        assert [each.id for each in store.open_interrupts()] == [question.id]
        assert [str(receipt.status) for receipt in worker.answer(question)] == ["accepted"]

    def test_a_node_that_ran_without_the_failed_one_runs_once_more(
        self, worker: Worker, store: Store
    ) -> None:
        """Under continue a node behind the failed one has a new visit when that has completed at last."""
        run_id = worker.start(shape("a>c b>c", entries=["a", "b"], policy="continue"))
        worker.fail(worker.claim(run_id, "a").token)
        worker.run(run_id, "b")
        token = worker.claim(run_id, "c").token
        store.save(token, saved(1, "old"))
        worker.settle(token, "without a")
        assert worker.statuses(run_id) == "failed: a failed, b completed, c completed"

        Reruns(store).retry(run_id, None)

        assert worker.statuses(run_id) == "executing: a ready, b completed, c pending"
        worker.settle(worker.claim(run_id, "a", 1, 2).token, "a")
        claim = worker.claim(run_id, "c", 2)
        assert list(claim.inputs) == [("a", 1, "a"), ("b", 1, "b")]
        assert (claim.document, list(claim.messages)) == (None, [])
        worker.settle(claim.token, "with a")
        assert worker.read(run_id).outputs["c", 2] == "with a"
        assert list(worker.read(run_id).order) == ["b", "a", "c"]
        assert worker.read(run_id).entries["c", 1]["undone"] is True

    def test_one_of_several_failed_nodes_may_be_named(self, worker: Worker, store: Store) -> None:
        """Under continue the others stay failed; under fail_fast they would stop the run at once."""
        run_id = worker.start(shape("a b", entries=["a", "b"], policy="continue"))
        worker.fail(worker.claim(run_id, "a").token)
        worker.fail(worker.claim(run_id, "b").token)

        assert Reruns(store).retry(run_id, "a")[0] == ["a"]
        worker.settle(worker.claim(run_id, "a", 1, 2).token)
        assert worker.statuses(run_id) == "failed: a completed, b failed"

        run_id = worker.start(shape("a b", entries=["a", "b"], version="2"))
        token = worker.claim(run_id, "a").token
        worker.fail(worker.claim(run_id, "b").token)
        worker.fail(token)
        with pytest.raises(ConflictError, match="b failed, too"):
            Reruns(store).retry(run_id, "a")

    def test_what_can_not_be_retried_is_refused(self, worker: Worker, store: Store) -> None:
        """A run that goes on or has completed, and a node that has completed, stay as they are."""
        run_id = worker.start(shape("a>b"))
        with pytest.raises(ConflictError, match="has not ended"):
            Reruns(store).retry(run_id, None)
        worker.run(run_id, "a")
        worker.fail(worker.claim(run_id, "b").token)
        with pytest.raises(UsageError, match="completed"):
            Reruns(store).retry(run_id, "a")
        Reruns(store).retry(run_id, None)
        worker.settle(worker.claim(run_id, "b", 1, 2).token)
        with pytest.raises(ConflictError, match="has completed"):
            Reruns(store).retry(run_id, None)

    def test_a_run_that_moved_since_it_was_read_is_left_alone(self, worker: Worker, store: Store) -> None:
        """Two retries of one run are one: a repeated request is told so, another one finds it going on."""
        run_id = worker.start(shape("a"))
        worker.fail(worker.claim(run_id, "a").token)
        again = Reruns(store).plan(run_id)

        assert rung(store.rewrite(again, "one")) == ["a.1.2"]
        repeated = store.rewrite(again, "one")
        assert (repeated.word, rung(repeated)) == ("reopened", [])
        assert store.rewrite(again, "two").word == "moved"

        worker.fail(worker.claim(run_id, "a", 1, 2).token)
        late = Reruns(store).plan(run_id)
        store.emit(run_id, "agent", "a", 1, None)
        assert store.rewrite(late, "three").word == "moved"
        assert worker.statuses(run_id) == "failed: a failed"

    def test_a_loop_goes_on_in_its_round(self, worker: Worker, store: Store) -> None:
        """Earlier rounds stay, and the inputs of the failed visit are those of its round."""
        run_id = worker.start(shape("a>b b>a b>c", any_join=["c"]))
        worker.run(run_id, "a")
        worker.settle(worker.claim(run_id, "b").token, "b1", "10")
        worker.settle(worker.claim(run_id, "a", 2).token, "a2")
        worker.fail(worker.claim(run_id, "b", 2).token)

        assert rung(Reruns(store).retry(run_id, None)[1]) == ["b.2.2"]

        claim = worker.claim(run_id, "b", 2, 2)
        assert list(claim.inputs) == [("a", 2, "a2")]
        worker.settle(claim.token, "b2", "10")
        assert [name for name, _, _ in worker.claim(run_id, "a", 3).inputs] == ["b"]

    def test_limits_count_anew(self, worker: Worker, store: Store, clock: ManualClock) -> None:
        """A run that reached its limit of executions or of time has the same limit again."""
        run_id = worker.start(shape("a>b b>c", max_node_executions=2))
        worker.run(run_id, "a", "b")
        assert "max_node_executions" in worker.read(run_id).record.reason
        assert rung(Reruns(store).retry(run_id, None)[1]) == ["c.1.1"]
        assert worker.read(run_id).record.reason == ""

        run_id = worker.start(shape("a>b", execution_timeout=60.0))
        worker.park(run_id, "a")
        clock.advance(61)
        store.sweep()
        assert worker.statuses(run_id) == "failed: a cancelled"
        Reruns(store).retry(run_id, None)
        worker.park(run_id, "a", visit=1, attempt=2)
        clock.advance(59)
        store.sweep()
        assert worker.statuses(run_id) == "interrupted: a waiting"
        clock.advance(2)
        store.sweep()
        assert worker.statuses(run_id) == "failed: a cancelled"

    def test_a_child_run_goes_on_with_its_parent(self, worker: Worker, store: Store) -> None:
        """The child is retried in place and its parent's node waits for it; the child alone is refused."""
        outer, inner = shape("a>b"), shape("x>y", name="inner")
        run_id = worker.start(outer)
        child = worker.start(inner, parent=worker.claim(run_id, "a").token)
        worker.run(child, "x")
        worker.fail(worker.claim(child, "y").token)
        worker.fail(worker.claim(run_id, "a").token)
        with pytest.raises(UsageError, match=run_id):
            Reruns(store).retry(child, None)

        assert rung(Reruns(store).retry(run_id, None)[1]) == ["y.1.2"]

        assert worker.statuses(run_id) == "executing: a waiting"
        assert worker.statuses(child) == "executing: x completed, y ready"
        worker.settle(worker.claim(child, "y", 1, 2).token)
        claim = worker.claim(run_id, "a")
        assert claim.child is not None
        assert claim.child.record.status == "completed"
        worker.settle(claim.token)
        worker.run(run_id, "b")
        assert worker.statuses(run_id) == "completed: a completed, b completed"

    def test_an_old_doorbell_of_a_retried_node_is_stale(self, worker: Worker, store: Store) -> None:
        """Only the new attempt may be claimed."""
        run_id = worker.start(shape("a"))
        worker.fail(worker.claim(run_id, "a").token)
        Reruns(store).retry(run_id, None)

        assert word_of(store.claim(run_id, "a", 1, 1, "n")) == "stale"

    def test_a_map_goes_on_with_the_items_that_completed(self, worker: Worker, store: Store) -> None:
        """A retried map runs what failed or was cancelled again, and leaves out what has completed."""
        mapped = NodeSpec("m", None, "map", map=MapSpec("function"))
        nodes = {"m": mapped, "z": NodeSpec("z", None, "function")}
        run_id = worker.start(topology(Definition("g", nodes, (EdgeSpec("m", "z"),), ("m",))))
        token = worker.claim(run_id, "m").token
        assert store.expand(token, ["x", "y", "z"]).word == "expanded"
        worker.run(run_id, "m[0]")
        worker.fail(worker.claim(run_id, "m[1]").token)
        worker.fail(worker.claim(run_id, "m").token)
        assert worker.read(run_id).record.status == "failed"

        assert rung(Reruns(store).retry(run_id, None)[1]) == ["m.1.2"]

        token = worker.claim(run_id, "m", 1, 2).token
        reply = store.expand(token, None)
        assert (reply.word, rung(reply)) == ("expanded", ["m[1].1.2", "m[2].1.2"])
        for item in ("m[1]", "m[2]"):
            worker.settle(worker.claim(run_id, item, 1, 2).token, item)
        worker.settle(worker.claim(run_id, "m", 1, 2).token, "all")
        worker.run(run_id, "z")
        assert worker.read(run_id).record.status == "completed"
