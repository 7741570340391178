"""The contract of recovery: an ended run is retried in place, or forked."""

from __future__ import annotations

from typing import Any

import pytest

from runner.definition.model import MapSpec
from runner.errors import ConflictError, UsageError
from runner.operations.recovery import (
    ForkOptions,
    plan_fork,
    plan_retry,
    write_fork,
    write_retry,
)
from runner.records.interrupts import Decision
from runner.records.run import Status
from runner.scheduler.changes import CALLBACK_NODE
from runner.store.interface import Reply, Store
from runner.store.requests import (
    AnswerQuestions,
    CancelRun,
    ClaimVisit,
    EmitEvent,
    ExpandMap,
    ForkRun,
    ParkVisit,
    ReportEnd,
    RewriteRuns,
    SaveCheckpoint,
)
from tests.contract.store.manual_worker import ManualWorker, rung, saved, shape, word_of

INNER = shape("x", name="inner")


def new_id(run_id: str) -> str:
    """Name the run that a run is forked into; it is in the same partition."""
    return f"{run_id[:2]}new"


class RecoveryContract:
    """What a store promises of runs that are retried in place or forked."""

    @pytest.mark.scripts
    def test_a_failed_node_runs_again_in_its_run(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Completed nodes stay; the failed one is ready in the same visit, with a new attempt and fence."""
        run_id = worker.start("a>b b>c")
        worker.run(run_id, "a")
        token = worker.token(run_id, "b")
        worker.fail(token)

        names, reply = write_retry(store, run_id)

        assert (names, reply.word, rung(reply)) == (["b"], "reopened", ["b.1.2"])
        assert worker.statuses(run_id) == "executing: a completed, b ready"
        assert word_of(store.do(ClaimVisit(run_id, "b", 1, 1, "old"))) == "stale"
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

    def test_what_a_node_kept_is_there_when_it_runs_again(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Documents, messages and answers of the visit survive its failure and the retry."""
        run_id, question = worker.asking("a")
        worker.answer(question)
        token = worker.token(run_id, "a")
        store.do(SaveCheckpoint(token, saved(3, "hello")))
        worker.fail(token)
        write_retry(store, run_id)

        claim = worker.claim(run_id, "a", 1, 2)

        assert (claim.document, list(claim.messages)) == ({"v": 1, "step": 3}, ["hello"])
        assert [answer.response for answer in claim.answers] == ["yes"]

    def test_what_was_withdrawn_is_asked_again(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A node that was cancelled while it waited runs again and asks under a new id."""
        run_id, question = worker.asking("a b", node="b")
        worker.fail(worker.token(run_id, "a"))
        assert worker.statuses(run_id) == "failed: a failed, b cancelled"

        assert write_retry(store, run_id)[0] == ["a", "b"]

        claim = worker.claim(run_id, "b", 1, 2)
        assert [(answer.id, answer.status) for answer in claim.answers] == [
            (question.id, "withdrawn")
        ]
        again = worker.numbered_question(claim)
        assert store.do(ParkVisit(claim.token, [again], None)).word == "waiting"
        assert [question.id for question in store.open_interrupts()] == [again.id]
        assert worker.answer(question) + worker.answer(again) == ["superseded", "accepted"]

    def test_a_node_that_ran_without_the_failed_one_runs_once_more(
        self, worker: ManualWorker
    ) -> None:
        """Under continue a node behind the failed one has a new visit when that has completed at last."""
        run_id = worker.start(shape("a>c b>c", policy="continue"))
        worker.fail(worker.token(run_id, "a"))
        worker.run(run_id, "b")
        token = worker.token(run_id, "c")
        worker.store.do(SaveCheckpoint(token, saved(1, "old")))
        worker.settle(token, "without a")
        assert worker.statuses(run_id) == "failed: a failed, b completed, c completed"

        write_retry(worker.store, run_id)

        assert worker.statuses(run_id) == "executing: a ready, b completed, c pending"
        worker.settle(worker.token(run_id, "a", 1, 2), "a")
        claim = worker.claim(run_id, "c", 2)
        assert list(claim.inputs) == [("a", 1, "a"), ("b", 1, "b")]
        assert (claim.document, list(claim.messages)) == (None, [])
        worker.settle(claim.token, "with a")
        assert worker.read(run_id).outputs["c", 2] == "with a"
        assert list(worker.read(run_id).order) == ["b", "a", "c"]
        assert worker.read(run_id).entries["c", 1]["undone"] is True

    def test_one_of_several_failed_nodes_may_be_named(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Under continue the others stay failed."""
        run_id = worker.start(shape("a b", policy="continue"))
        worker.fail(worker.token(run_id, "a"))
        worker.fail(worker.token(run_id, "b"))

        assert write_retry(store, run_id, "a")[0] == ["a"]
        worker.settle(worker.token(run_id, "a", 1, 2))
        assert worker.statuses(run_id) == "failed: a completed, b failed"

    def test_a_join_counts_its_other_edges_when_a_node_is_retried(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """What arrived at a join before the failure has arrived, and the retried node completes the join."""
        run_id = worker.start("a>c b>c")
        worker.run(run_id, "b")
        worker.fail(worker.token(run_id, "a"))

        write_retry(store, run_id)
        worker.settle(worker.token(run_id, "a", 1, 2))
        assert worker.statuses(run_id) == "executing: a completed, b completed, c ready"

    @pytest.mark.routed
    def test_a_run_that_moved_since_it_was_read_is_left_alone(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """Two retries of one run are one: a repeated request gets the first reply, another one is refused."""
        run_id = worker.start("a")
        worker.fail(worker.token(run_id, "a"))
        again = plan_retry(store, run_id)

        assert rung(store.do(RewriteRuns(again, "one"))) == ["a.1.2"]
        repeated = store.do(RewriteRuns(again, "one"))
        assert (repeated.word, rung(repeated)) == ("reopened", [])
        assert store.do(RewriteRuns(again, "two")).word == "moved"

        worker.fail(worker.token(run_id, "a", 1, 2))
        late = plan_retry(store, run_id)
        store.do(EmitEvent(run_id, "agent", "a", 1, None))
        assert store.do(RewriteRuns(late, "three")).word == "moved"
        assert worker.statuses(run_id) == "failed: a failed"

    def test_a_loop_goes_on_in_its_round(self, worker: ManualWorker, store: Store) -> None:
        """Earlier rounds stay, and the inputs of the failed visit are those of its round."""
        run_id = worker.start(shape("a>b b>a b>c", any_join=["c"]))
        worker.run(run_id, "a")
        worker.settle(worker.token(run_id, "b"), "b1", "10")
        worker.settle(worker.token(run_id, "a", 2), "a2")
        worker.fail(worker.token(run_id, "b", 2))

        assert rung(write_retry(store, run_id)[1]) == ["b.2.2"]

        claim = worker.claim(run_id, "b", 2, 2)
        assert list(claim.inputs) == [("a", 2, "a2")]
        worker.settle(claim.token, "b2", "10")
        assert [name for name, _, _ in worker.claim(run_id, "a", 3).inputs] == ["b"]

    @pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
    def test_a_run_that_was_stopped_at_its_last_node_is_completed(
        self, worker: ManualWorker, store: Store, *, nested: bool
    ) -> None:
        """A node that ends while its run is cancelled is recorded; a retry completes the run with it."""
        run_id = worker.start("a")
        inner = (
            worker.start(shape("x", name="in"), parent=worker.token(run_id, "a"))
            if nested
            else run_id
        )
        last = worker.token(inner, "x" if nested else "a")
        store.do(CancelRun(run_id, "enough"))
        worker.settle(last, "done")
        if nested:
            worker.sweep()
        assert worker.read(inner).record.status is Status.CANCELLED

        names, reply = write_retry(store, run_id)

        assert (names, rung(reply)) == ((["a"], ["a.1.1"]) if nested else ([], []))
        if nested:
            claim = worker.claim(run_id, "a")
            assert claim.child is not None
            assert (claim.child.record.run_id, claim.child.outputs) == (
                inner,
                {("x", 1): "done"},
            )
            worker.settle(claim.token)
        assert worker.read(inner).record.status is Status.COMPLETED
        assert worker.read(run_id).record.status is Status.COMPLETED
        assert worker.read(inner).outputs[last.node, 1] == "done"
        with pytest.raises(ConflictError, match="has completed"):
            write_retry(store, run_id)

    def test_limits_start_over(self, worker: ManualWorker, store: Store) -> None:
        """A run that reached its limit of executions or of time has the same limit again."""
        run_id = worker.start(shape("a>b b>c", max_node_executions=2))
        worker.run(run_id, "a", "b")
        assert "max_node_executions" in worker.read(run_id).record.reason
        assert rung(write_retry(store, run_id)[1]) == ["c.1.1"]
        assert worker.read(run_id).record.reason == ""

        run_id = worker.start(shape("a>b", execution_timeout=60.0))
        worker.park(run_id, "a")
        worker.sweep(after=61)
        assert worker.statuses(run_id) == "failed: a cancelled"
        write_retry(store, run_id)
        worker.park(run_id, "a", visit=1, attempt=2)
        worker.sweep(after=59)
        assert worker.statuses(run_id) == "interrupted: a waiting"
        worker.sweep(after=2)
        assert worker.statuses(run_id) == "failed: a cancelled"

    def test_a_child_run_goes_on_with_its_parent(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The child is retried in place and its parent's node waits for it; the child alone is refused."""
        outer, inner = shape("a>b"), shape("x>y", name="inner")
        run_id = worker.start(outer)
        child = worker.start(inner, parent=worker.token(run_id, "a"))
        worker.run(child, "x")
        worker.fail(worker.token(child, "y"))
        worker.fail(worker.token(run_id, "a"))
        with pytest.raises(UsageError, match=run_id):
            write_retry(store, child)

        assert rung(write_retry(store, run_id)[1]) == ["y.1.2"]

        assert worker.statuses(run_id) == "executing: a waiting"
        assert worker.statuses(child) == "executing: x completed, y ready"
        worker.settle(worker.token(child, "y", 1, 2))
        claim = worker.claim(run_id, "a")
        assert claim.child is not None
        assert claim.child.record.status == "completed"
        worker.settle(claim.token)
        worker.run(run_id, "b")
        assert worker.statuses(run_id) == "completed: a completed, b completed"

    def test_a_map_goes_on_with_the_items_that_completed(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A retried map runs what failed or was cancelled again, and leaves out what has completed."""
        run_id, token = worker.begin(shape("m>z", maps={"m": MapSpec("function")}), node="m")
        assert store.do(ExpandMap(token, ["x", "y", "z"])).word == "expanded"
        worker.run(run_id, "m[0]")
        worker.fail(worker.token(run_id, "m[1]"))
        worker.fail(worker.token(run_id, "m"))
        assert worker.read(run_id).record.status == "failed"

        assert rung(write_retry(store, run_id)[1]) == ["m.1.2"]

        token = worker.token(run_id, "m", 1, 2)
        reply = store.do(ExpandMap(token, None))
        assert (reply.word, rung(reply)) == ("expanded", ["m[1].1.2", "m[2].1.2"])
        for item in ("m[1]", "m[2]"):
            worker.settle(worker.token(run_id, item, 1, 2), item)
        worker.settle(worker.token(run_id, "m", 1, 2), "all")
        worker.run(run_id, "z")
        assert worker.read(run_id).record.status == "completed"

    def fork(
        self, store: Store, run_id: str, node: str, visit: int | None = None, **options: Any
    ) -> Reply:
        """Fork a run into the run of `new_id`."""
        return store.do(
            ForkRun(
                plan_fork(store, run_id, node, visit, ForkOptions(new_id(run_id), **options))
            )
        )

    @pytest.mark.routed
    def test_a_node_starts_again_with_other_input(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """What does not depend on the node is kept, its input is edited, and the source is as it was."""
        run_id = worker.start("a>b b>c a>d", tags={"team": "red"})
        worker.run(run_id, "a", "b", "c", "d")
        before = worker.read(run_id)

        reply = self.fork(store, run_id, "b", tags={"by": "ana"}, edited=True, input="edited")

        assert (reply.word, rung(reply), reply.run_id) == ("forked", ["b.1.1"], new_id(run_id))
        assert worker.statuses(new_id(run_id)) == "executing: a completed, b ready, d completed"
        snapshot = worker.read(new_id(run_id))
        assert (snapshot.outputs, list(snapshot.order)) == (
            {("a", 1): "a", ("d", 1): "d"},
            ["a", "d"],
        )
        assert snapshot.tags == {"team": "red", "by": "ana", "forked_from": run_id}
        claim = worker.claim(new_id(run_id), "b")
        assert (claim.task, list(claim.inputs)) == ("edited", [("a", 1, "a")])
        assert worker.read(run_id) == before
        assert [event.detail for event in store.events(new_id(run_id))][:2] == ["g", run_id]

    def test_an_earlier_visit_may_be_chosen(self, worker: ManualWorker, store: Store) -> None:
        """A loop is taken up in the round of that visit; what was remembered of later rounds is not kept."""
        run_id = worker.start(shape("a>b b>a b>c", any_join=["c"]))
        for visit in (1, 2, 3):
            token = worker.token(run_id, "a", visit)
            store.do(SaveCheckpoint(token, saved(visit, "said")))
            worker.settle(token, f"a{visit}")
            worker.settle(
                worker.token(run_id, "b", visit), f"b{visit}", "10" if visit < 3 else "01"
            )

        assert rung(self.fork(store, run_id, "b", 2)) == ["b.2.1"]

        snapshot = worker.read(new_id(run_id))
        assert list(snapshot.order) == ["a", "b", "a"]
        assert snapshot.messages == {}
        assert list(worker.claim(new_id(run_id), "b", 2).inputs) == [("a", 2, "a2")]

    def test_what_nodes_keep_is_copied(self, worker: ManualWorker, store: Store) -> None:
        """A completed node whose visits are all kept has its document and messages in the new run."""
        run_id, token = worker.begin("a>b")
        store.do(SaveCheckpoint(token, saved(1, "one", "two")))
        worker.settle(token, "a")
        worker.run(run_id, "b")

        self.fork(store, run_id, "b")

        assert worker.read(new_id(run_id)).messages == {"a": ["one", "two"]}

    def test_a_fork_beside_a_retry_is_planned_again(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A retry that undoes a result refuses a fork planned with it; without a retry the fork has it."""
        run_id = worker.start(shape("a>c b>c c>z", policy="continue"))
        worker.fail(worker.token(run_id, "a"))
        worker.run(run_id, "b", "c", "z")
        new, control = new_id(run_id), f"{run_id[:2]}control"
        planned, other = (
            plan_fork(store, run_id, "z", None, ForkOptions(name)) for name in (new, control)
        )
        assert store.do(ForkRun(other)).word == "forked"
        assert list(worker.claim(control, "z").inputs) == [("c", 1, "c")]
        write_retry(store, run_id)

        assert (store.do(ForkRun(planned)).word, store.peek(new)) == ("moved", None)

        with pytest.raises(UsageError, match="'z' has not run yet"):
            write_fork(store, run_id, "z", None, ForkOptions(new))
        assert rung(write_fork(store, run_id, "b", None, ForkOptions(new))) == [
            "a.1.1",
            "b.1.1",
        ]

    def test_a_fork_has_the_memory_of_the_visits_that_it_has(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A node that has begun another visit, before or after the plan, leaves no memory of it to a fork."""
        run_id = worker.start(shape("a>b b>a b>c a>d", any_join=["c"]))
        token = worker.token(run_id, "a")
        store.do(SaveCheckpoint(token, saved(1, "first")))
        worker.settle(token, "a")
        worker.run(run_id, "d")
        planned = plan_fork(store, run_id, "d", None, ForkOptions(new_id(run_id)))
        assert planned.remembers == ["a"]
        worker.settle(worker.token(run_id, "b"), "b", "10")
        store.do(SaveCheckpoint(worker.token(run_id, "a", 2), saved(2, "second")))

        assert store.do(ForkRun(planned)).word == "moved"
        assert self.fork(store, run_id, "d").word == "forked"
        assert worker.read(new_id(run_id)).messages == {}

    def test_events_of_a_retried_family_keep_their_numbers(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """The events of a retry in all runs inside a root have consecutive numbers at the root."""
        root = worker.start(shape("a b", policy="continue"))
        runs = [root]
        for node in "ab":
            inner = worker.start(shape("m", name="middle"), parent=worker.token(root, node))
            leaf = worker.start(INNER, parent=worker.token(inner, "m"))
            for run_id, name in ((leaf, "x"), (inner, "m"), (root, node)):
                worker.fail(worker.token(run_id, name))
            runs += [inner, leaf]
        before = worker.read(root).events

        write_retry(store, root)
        for leaf in runs[2::2]:
            worker.claim(leaf, "x", 1, 2)

        numbers = [int(event.position.partition("-")[0]) for event in store.events(root)]
        assert numbers == list(range(1, worker.read(root).events + 1))
        assert {worker.read(run_id).record.status for run_id in runs} == {Status.EXECUTING}
        events = [(event.kind, event.node) for event in store.events(root)[before:]]
        assert events[-2:] == [("node.started", "a/m/x"), ("node.started", "b/m/x")]

    def test_a_retried_run_reports_its_next_end(
        self, worker: ManualWorker, store: Store
    ) -> None:
        """A retry drops the end that was not reported yet; the next end has a number of its own."""
        run_id = worker.start("a", on_end="shop.done")
        worker.fail(worker.token(run_id, "a"))
        write_retry(store, run_id)
        retried = worker.read(run_id).record
        assert (retried.ends, retried.unreported) == (1, 0)

        assert worker.end(worker.token(run_id, "a", attempt=2)) == [f"{CALLBACK_NODE}.2.1"]

        assert store.do(ReportEnd(run_id, 1)).word == "stale"
        assert worker.read(run_id).record.unreported == 1
        assert store.do(ReportEnd(run_id, 2)).word == "end_reported"
        worker.clock.advance(3600)
        assert store.sweep().count == 0

    def test_an_answer_is_for_what_was_judged(self, worker: ManualWorker, store: Store) -> None:
        """While an answer is judged, its question is withdrawn by a failure and asked again for more."""
        run_id = worker.start(shape("a b", entries=["a", "b"]))
        token = worker.token(run_id, "b")
        small = worker.question(token, "pay?", reason=10)
        store.do(ParkVisit(token, [small], None))
        answer = Decision(small.id, "yes", digest=small.digest)
        worker.fail(worker.token(run_id, "a"))
        write_retry(store, run_id)
        claim = worker.claim(run_id, "b", 1, 2)
        large = worker.numbered_question(claim, "pay?", reason=1_000_000)
        assert store.do(ParkVisit(claim.token, [large], None)).word == "waiting"

        (receipt,) = store.do(AnswerQuestions([answer], "first")).receipts
        assert receipt.status == "superseded"
        assert [question.id for question in worker.open()] == [large.id]
        answer = Decision(large.id, "yes", digest=large.digest)
        (receipt,) = store.do(AnswerQuestions([answer], "second")).receipts
        assert receipt.status == "accepted"
