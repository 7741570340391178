"""The contract of `fork`: a run begins from what another has done."""

from __future__ import annotations

import pytest

from runner.errors import NotFoundError, UsageError
from runner.forks import Begin
from runner.ports import Fork, Store
from runner.reruns import Reruns
from runner.testing.contract.worker import Worker, rung, saved, shape

NEW = "00new"


class ForkingContract:
    """What a store promises of runs that are forks."""

    def fork(self, store: Store, run_id: str, node: str, visit: int | None = None, **begin: object) -> Fork:
        """Work a fork out."""
        return Reruns(store).plan_fork(run_id, node, visit, Begin(NEW, **begin))  # type: ignore[arg-type]

    def test_a_node_starts_again_with_other_input(self, worker: Worker, store: Store) -> None:
        """What does not depend on it is kept, its input is edited, and the source is as it was."""
        run_id = worker.start(shape("a>b b>c a>d", entries=["a"]), tags={"team": "red"})
        worker.run(run_id, "a", "b", "c", "d")
        before = worker.read(run_id)

        reply = store.fork(self.fork(store, run_id, "b", tags={"by": "ana"}, edited=True, input="edited"))

        assert (reply.word, rung(reply), reply.run_id) == ("forked", ["b.1.1"], NEW)
        assert worker.statuses(NEW) == "executing: a completed, b ready, d completed"
        found = worker.read(NEW)
        assert (found.outputs, list(found.order)) == ({("a", 1): "a", ("d", 1): "d"}, ["a", "d"])
        assert found.tags == {"team": "red", "by": "ana", "forked_from": run_id}
        claim = worker.claim(NEW, "b")
        assert (claim.task, list(claim.inputs)) == ("edited", [("a", 1, "a")])
        assert worker.read(run_id) == before
        assert [each.detail for each in store.events(NEW)][:2] == ["g", run_id]

    def test_what_comes_after_has_the_task_of_the_run(self, worker: Worker, store: Store) -> None:
        """Only the visit itself is given the edited input; a repeat of the request changes nothing."""
        graph = shape("a>b")
        run_id = worker.start(graph)
        worker.run(run_id, "a", "b")
        fork = self.fork(store, run_id, "a", edited=True, input=None)
        assert store.fork(fork).word == "forked"
        assert rung(store.fork(fork)) == []

        claim = worker.claim(NEW, "a")
        assert claim.task is None
        worker.know(NEW, graph)
        worker.settle(claim.token, "new")
        claim = worker.claim(NEW, "b")
        assert (claim.task, list(claim.inputs)) == ("task", [("a", 1, "new")])
        worker.settle(claim.token, "end")
        assert list(worker.read(NEW).order) == ["a", "b"]

    def test_a_run_that_waits_may_be_forked(self, worker: Worker, store: Store) -> None:
        """What had not completed starts again in the new run, and asks questions of its own."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        worker.run(run_id, "a")
        (question,) = worker.park(run_id, "b")

        assert sorted(rung(store.fork(self.fork(store, run_id, "a")))) == ["a.1.1", "b.1.1"]

        (other,) = worker.park(NEW, "b")
        assert other.id != question.id
        assert worker.statuses(run_id) == "interrupted: a completed, b waiting"

    def test_an_earlier_visit_may_be_chosen(self, worker: Worker, store: Store) -> None:
        """A loop is taken up in the round of that visit; what was remembered of later rounds is not kept."""
        run_id = worker.start(shape("a>b b>a b>c", any_join=["c"]))
        for visit in (1, 2, 3):
            token = worker.claim(run_id, "a", visit).token
            store.save(token, saved(visit, "said"))
            worker.settle(token, f"a{visit}")
            worker.settle(worker.claim(run_id, "b", visit).token, f"b{visit}", "10" if visit < 3 else "01")

        assert rung(store.fork(self.fork(store, run_id, "b", 2))) == ["b.2.1"]

        found = worker.read(NEW)
        assert list(found.order) == ["a", "b", "a"]
        assert found.messages == {}
        assert list(worker.claim(NEW, "b", 2).inputs) == [("a", 2, "a2")]

    def test_what_nodes_keep_is_copied(self, worker: Worker, store: Store) -> None:
        """A completed node whose visits are all kept has its document and messages in the new run."""
        run_id = worker.start(shape("a>b"))
        token = worker.claim(run_id, "a").token
        store.save(token, saved(1, "one", "two"))
        worker.settle(token, "a")
        worker.run(run_id, "b")

        store.fork(self.fork(store, run_id, "b"))

        assert worker.read(NEW).messages == {"a": ["one", "two"]}

    def test_what_can_not_be_forked_is_refused(self, worker: Worker, store: Store) -> None:
        """A node that has not run, and one or a visit that there is none of, are refused."""
        run_id = worker.start(shape("a>b"))
        with pytest.raises(UsageError, match="has not run yet"):
            self.fork(store, run_id, "b")
        with pytest.raises(NotFoundError, match="no node"):
            self.fork(store, run_id, "nobody")
        with pytest.raises(NotFoundError, match="no visit 7"):
            self.fork(store, run_id, "a", 7)
        with pytest.raises(NotFoundError):
            self.fork(store, "00none", "a")

    def test_a_choice_that_read_a_result_depends_on_it(self, worker: Worker, store: Store) -> None:
        """A node whose conditions read the node that starts again is not kept."""
        run_id = worker.start(shape("a b>c d", entries=["a", "b", "d"]))
        worker.run(run_id, "a", "d")
        token = worker.claim(run_id, "b").token
        worker.settle(token, "b", note={"reads": [["a", 1]]}, reads=[("a", 1, "completed")])

        assert sorted(rung(store.fork(self.fork(store, run_id, "a")))) == ["a.1.1", "b.1.1"]
        assert worker.statuses(NEW) == "executing: a ready, b ready, d completed"

    def test_a_fork_of_a_failed_run_goes_on(self, worker: Worker, store: Store) -> None:
        """Under fail_fast what failed starts again, under continue it is kept unless it depends."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        worker.run(run_id, "a")
        worker.fail(worker.claim(run_id, "b").token)
        store.fork(self.fork(store, run_id, "a"))
        assert worker.statuses(NEW) == "executing: a ready, b ready"
        assert worker.statuses(run_id) == "failed: a completed, b failed"
