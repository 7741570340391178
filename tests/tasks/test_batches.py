"""Graphs that run in batches, as Strands runs them, on real workers that are killed."""

from __future__ import annotations

import pytest

from runner import Status
from tests.tasks.workers import MARGIN, RECOVERY
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def pair(databases):
    """Two workers that tests may kill; the next test gets new ones."""
    site = next(databases)
    yield site
    site.end()


@pytest.mark.slow
def test_a_batch_outlives_the_workers_that_run_and_choose(pair):
    """A worker dies in the middle of a batch that also waits for a person, and one while it chooses the
    next batch: every node completes once, and the join comes once, after both.
    """
    pair.ready(2)
    run = pair.client.start("batches", "go")
    pair.starter(run).kill()
    (question,) = wait_for_questions(run)
    run.respond([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
    pair.ready(2)
    pair.open_gate(run)
    wait_until(lambda: pair.redis.exists("died:go"), "a worker dies while it chooses")
    pair.ready(2)

    result = run.wait(2 * (RECOVERY + MARGIN))

    assert result.status is Status.COMPLETED
    assert (result.execution_order[0], result.execution_order[-1]) == ("s", "z")
    assert sorted(result.execution_order) == ["a", "g", "s", "z"]
    assert result.results["z"].output == ["z", "a", "g"]
    assert [start[1] for start in pair.starts(run)] == ["1", "2"]


def wait_for_questions(run):
    wait_until(run.interrupts, "the run asks")
    return run.interrupts()
