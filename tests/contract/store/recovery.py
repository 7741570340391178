"""The contract of recovery: an ended run is retried in place, or forked."""

from __future__ import annotations

from typing import Any

import pytest

from runner.definition.model import MapSpec
from runner.errors import UsageError
from runner.operations.recovery import (
    ForkOptions,
    plan_fork,
    plan_retry,
    write_fork,
    write_retry,
)
from runner.records.interrupts import Decision
from runner.records.run import Status
from runner.store.interface import Reply, Store
from runner.store.requests import (
    AnswerQuestions,
    ClaimVisit,
    EmitEvent,
    ForkRun,
    ParkVisit,
    RewriteRuns,
    SaveCheckpoint,
)
from tests.contract.store.manual_worker import rung, saved, shape, word_of
from tests.contract.store.runs import Ending
from tests.contract.store.stories import INNER, Story, stories, tell

LOOPED = shape("a>b b>a b>c", any_join=["c"])

STORIES = {
    "a node that ran without the failed one has a new visit when that has completed at last": (
        shape("a>c b>c", policy="continue"),
        """
        claim a
        fail a
        run b
        claim c
        settle c
        stands = failed: a failed, b completed, c completed
        reopen = a.1.2
        stands = executing: a ready, b completed, c pending
        claim a.1.2
        settle a.1.2
        claim c.2
        inputs c.2 = a.1 b.1
        settle c.2
        order = b a c
        """,
    ),
    "under continue one of several failed nodes may be named; the others stay failed": (
        shape("a b", policy="continue"),
        """
        claim a
        fail a
        claim b
        fail b
        reopen a = a.1.2
        run a.1.2
        stands = failed: a completed, b failed
        """,
    ),
    "a run that reached its limit of executions has the same limit again": (
        shape("a>b b>c", max_node_executions=2),
        """
        run a b
        reason = max_node_executions (2) reached before "c"
        reopen = c.1.1
        reason
        """,
    ),
    "a run that took too long has the same time again": (
        shape("a>b", execution_timeout=60.0),
        """
        claim a
        park a
        sweep 61
        stands = failed: a cancelled
        reopen = a.1.2
        claim a.1.2
        park a.1.2
        sweep 59
        stands = interrupted: a waiting
        sweep 2
        stands = failed: a cancelled
        """,
    ),
    "a loop is retried in its round: earlier ones stay, and the failed visit has the inputs of its own": (
        LOOPED,
        """
        run a
        claim b
        settle b 10
        run a.2
        claim b.2
        fail b.2
        reopen = b.2.2
        claim b.2.2
        inputs b.2.2 = a.2
        settle b.2.2 10
        claim a.3
        inputs a.3 = b.2
        """,
    ),
    "a retried map runs what failed or was cancelled again, and leaves out what has completed": (
        shape("m>z", maps={"m": MapSpec("function")}),
        """
        claim m
        expand m x y z
        run m[0]
        claim m[1]
        fail m[1]
        claim m
        fail m
        stands = failed: m failed, m[0] completed, m[1] failed, m[2] cancelled
        reopen = m.1.2
        claim m.1.2
        expand_again m.1.2
        rings = m[1].1.2 m[2].1.2
        run m[1].1.2 m[2].1.2 m.1.2 z
        stands = completed: m completed, m[0] completed, m[1] completed, m[2] completed, z completed
        """,
    ),
    "a node that was cancelled while it waited runs again, and asks under a new id": (
        "a b",
        """
        claim b
        park b one
        claim a
        fail a
        stands = failed: a failed, b cancelled
        reopen = a.1.2 b.1.2
        claim b.1.2
        answers b.1.2 = one withdrawn
        answer one = superseded
        park b.1.2 one
        open = one
        answer one
        """,
    ),
    "a node that ended while its run was cancelled is recorded: a retry completes the run": (
        "a",
        """
        claim a
        cancel
        settle a
        stands = cancelled: a completed
        reopen
        stands = completed: a completed
        outputs = a.1=a
        not_reopened has completed
        """,
    ),
    "a run inside that ended while it was cancelled is completed, and its node goes on with it": (
        "a",
        """
        claim a
        begin a
        claim a/x
        cancel
        settle a/x
        sweep
        stands a/ = cancelled: x completed
        reopen = a.1.1
        claim a
        child a = completed
        settle a
        stands a/ = completed: x completed
        stands = completed: a completed
        not_reopened has completed
        """,
    ),
    "a run inside is retried in place, and the node around it waits for it": (
        "a>b",
        """
        claim a
        begin a
        claim a/x
        fail a/x
        claim a
        fail a
        reopen = x.1.2
        stands = executing: a waiting
        stands a/ = executing: x ready
        run a/x.1.2
        claim a
        child a = completed
        settle a
        run b
        stands = completed: a completed, b completed
        """,
    ),
}


ENDINGS = {
    "a retry drops the end that was not reported; the next end has a number of its own": (
        "a",
        """
        claim a
        fail a
        reopen = a.1.2
        ends = 1, 0 unreported
        claim a.1.2
        settle a.1.2
        rings = @end.2.1
        end_reported 1 = stale
        ends = 2, 1 unreported
        end_reported 2 = end_reported
        wait 3600
        count_due
        """,
    ),
}


def new_id(run_id: str) -> str:
    """Name the run that a run is forked into; it is in the same partition."""
    return f"{run_id[:2]}new"


class RecoveryContract:
    """What a store promises of runs that are retried in place or forked."""

    @stories(STORIES)
    def test_a_retried_run_goes_on_as_its_story_says(self, worker, graph, story):
        """What runs again, and what stays."""
        tell(Story(worker, graph), story)

    @pytest.mark.scripts
    def test_a_failed_node_runs_again_in_its_run(self, worker, store):
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

    def test_what_a_node_kept_is_there_when_it_runs_again(self, worker, store):
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

    def test_a_join_counts_its_other_edges_when_a_node_is_retried(self, worker, store):
        """What arrived at a join before the failure has arrived, and the retried node completes the join."""
        run_id = worker.start("a>c b>c")
        worker.run(run_id, "b")
        worker.fail(worker.token(run_id, "a"))

        write_retry(store, run_id)
        worker.settle(worker.token(run_id, "a", 1, 2))
        assert worker.statuses(run_id) == "executing: a completed, b completed, c ready"

    @pytest.mark.routed
    def test_a_run_that_moved_since_it_was_read_is_left_alone(self, worker, store):
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

    @stories(ENDINGS)
    def test_a_retried_run_ends_as_its_story_says(self, worker, graph, story):
        """Which of its ends rings, and may be reported."""
        tell(Ending(worker, graph), story)

    def test_a_run_inside_another_is_not_retried_alone(self, worker, store):
        """The error names the run that may be."""
        run_id, token = worker.begin("a")
        child = worker.start(INNER, parent=token)
        worker.fail(worker.token(child, "x"))
        with pytest.raises(UsageError, match=run_id):
            write_retry(store, child)

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
    def test_a_node_starts_again_with_other_input(self, worker, store):
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

    def test_an_earlier_visit_may_be_chosen(self, worker, store):
        """A loop is taken up in the round of that visit; what was remembered of later rounds is not kept."""
        run_id = worker.start(LOOPED)
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

    def test_what_nodes_keep_is_copied(self, worker, store):
        """A completed node whose visits are all kept has its document and messages in the new run."""
        run_id, token = worker.begin("a>b")
        store.do(SaveCheckpoint(token, saved(1, "one", "two")))
        worker.settle(token, "a")
        worker.run(run_id, "b")

        self.fork(store, run_id, "b")

        assert worker.read(new_id(run_id)).messages == {"a": ["one", "two"]}

    def test_a_fork_beside_a_retry_is_planned_again(self, worker, store):
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

    def test_a_fork_has_the_memory_of_the_visits_that_it_has(self, worker, store):
        """A node that has begun another visit, before or after the plan, leaves no memory of it to a fork."""
        run_id, token = worker.begin(shape("a>b b>a b>c a>d", any_join=["c"]))
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

    def test_events_of_a_retried_family_keep_their_numbers(self, worker, store):
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

    def test_an_answer_is_for_what_was_judged(self, worker, store):
        """While an answer is judged, its question is withdrawn by a failure and asked again for more."""
        run_id, token = worker.begin("a b", node="b")
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
