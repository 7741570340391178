"""What a retry and a fork choose and refuse; what the store does then is in its contract."""

from __future__ import annotations

import pytest

from runner.errors import ConflictError, NotFoundError, UsageError
from runner.operations.recovery import ForkOptions, plan_fork, write_retry
from runner.store.requests import ForkRun
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, rung, shape

NEW = "00new"


@pytest.fixture
def worker(in_redis):
    clock = ManualClock()
    return ManualWorker(in_redis(clock, lease=30), clock)


@pytest.fixture
def store(worker):
    return worker.store


def fork(store, run_id, node, visit=None):
    return store.do(ForkRun(plan_fork(store, run_id, node, visit, ForkOptions(NEW))))


def test_what_can_not_be_retried_is_refused(worker, store):
    """A run that goes on or has completed, and a node that has completed, stay as they are."""
    run_id = worker.start("a>b")
    with pytest.raises(ConflictError, match="has not ended"):
        write_retry(store, run_id)
    worker.run(run_id, "a")
    worker.fail(worker.claim(run_id, "b").token)
    with pytest.raises(UsageError, match="completed"):
        write_retry(store, run_id, "a")
    write_retry(store, run_id)
    worker.settle(worker.claim(run_id, "b", 1, 2).token)
    with pytest.raises(ConflictError, match="has completed"):
        write_retry(store, run_id)


def test_a_misspelled_node_gets_the_name_that_was_meant(worker, store):
    """At a retry and at a fork."""
    run_id = worker.start("refund>pay")
    worker.fail(worker.claim(run_id, "refund").token)
    for change in (write_retry, fork):
        with pytest.raises(NotFoundError, match=r"Did you mean 'refund'\?$"):
            change(store, run_id, "refnd")


def test_a_run_that_waits_may_be_forked(worker, store):
    """What had not completed starts again in the new run, and asks questions of its own."""
    run_id = worker.start("a b")
    worker.run(run_id, "a")
    (question,) = worker.park(run_id, "b")

    assert sorted(rung(fork(store, run_id, "a"))) == ["a.1.1", "b.1.1"]

    (other,) = worker.park(NEW, "b")
    assert other.id != question.id
    assert worker.statuses(run_id) == "interrupted: a completed, b waiting"


def test_what_can_not_be_forked_is_refused(worker, store):
    """A node that has not run, and one or a visit that there is none of, are refused."""
    run_id = worker.start("a>b")
    with pytest.raises(UsageError, match="has not run yet"):
        fork(store, run_id, "b")
    with pytest.raises(NotFoundError, match="no node"):
        fork(store, run_id, "unknown")
    with pytest.raises(NotFoundError, match="no visit 7"):
        fork(store, run_id, "a", 7)
    with pytest.raises(NotFoundError):
        fork(store, "00none", "a")


def test_a_choice_that_read_a_result_depends_on_it(worker, store):
    """A node whose conditions read the node that starts again is not kept."""
    run_id = worker.start("a b>c d")
    worker.run(run_id, "a", "d")
    token = worker.claim(run_id, "b").token
    worker.settle(token, "b", note={"reads": [["a", 1]]}, reads=[("a", 1, "completed")])

    assert sorted(rung(fork(store, run_id, "a"))) == ["a.1.1", "b.1.1"]
    assert worker.statuses(NEW) == "executing: a ready, b ready, d completed"


def test_a_fork_of_a_failed_run_goes_on(worker, store):
    """Under fail_fast what failed starts again, under continue it is kept unless it depends."""
    run_id = worker.start("a b")
    worker.run(run_id, "a")
    worker.fail(worker.claim(run_id, "b").token)
    fork(store, run_id, "a")
    assert worker.statuses(NEW) == "executing: a ready, b ready"
    assert worker.statuses(run_id) == "failed: a completed, b failed"


def test_of_several_failed_nodes_one_may_stop_the_run(worker, store):
    """Under fail_fast a retry of one failed node is refused: the others would stop the run at once."""
    run_id = worker.start("a b")
    token = worker.claim(run_id, "a").token
    worker.fail(worker.claim(run_id, "b").token)
    worker.fail(token)
    with pytest.raises(ConflictError, match="b failed, too"):
        write_retry(store, run_id, "a")


def test_a_failure_counts_after_its_node_was_skipped(worker, store):
    """What failed in one round of a loop and was skipped in the next is still part of the history."""
    run_id = worker.start(shape("a>a a>b b>a b>b c", ["a", "c"], policy="continue"))
    worker.run(run_id, "a")
    worker.fail(worker.token(run_id, "b"))
    worker.settle(worker.token(run_id, "a", 2), edges="00")
    assert worker.statuses(run_id) == "executing: a completed, b skipped, c ready"

    assert rung(fork(store, run_id, "c")) == ["c.1.1"]

    assert worker.statuses(NEW) == "executing: a completed, b skipped, c ready"


def test_numbers_of_undone_visits_are_not_given_out_again(worker, store):
    """A retry undoes a loop's second round; the next one has new numbers, so new keys and new questions."""
    run_id = worker.start(shape("a>x f>y x>y y>x y>z", ["a", "f"], policy="continue"))
    worker.run(run_id, "a")
    worker.fail(worker.token(run_id, "f"))
    worker.run(run_id, "x")
    worker.settle(worker.token(run_id, "y"), edges="10")
    worker.settle(worker.token(run_id, "x", 2))
    worker.settle(worker.token(run_id, "y", 2), edges="01")
    worker.run(run_id, "z")

    write_retry(store, run_id)
    worker.settle(worker.token(run_id, "f", 1, 2))
    worker.settle(worker.token(run_id, "y", 3), edges="10")

    assert store.read(run_id).nodes["x"].visit == 3
    worker.settle(worker.token(run_id, "x", 3))
    worker.settle(worker.token(run_id, "y", 4), edges="01")
    worker.settle(worker.token(run_id, "z", 2))
    assert worker.statuses(run_id).startswith("completed")
