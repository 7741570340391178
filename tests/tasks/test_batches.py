"""Graphs that run in batches, as Strands runs them, on real workers that are killed."""

from __future__ import annotations

import pytest

from runner import Status
from tests.tasks.workers import MARGIN, RECOVERY
from tests.waiting import wait_until


@pytest.mark.slow
def test_a_batch_outlives_the_workers_that_run_and_choose(empty_site):
    """A worker dies in the middle of a batch that also waits for a person, and one while it chooses the
    next batch: every node completes once, and the join comes once, after both.
    """
    empty_site.ready(2)
    run = empty_site.client.start("batches", "go")
    empty_site.starter(run).kill()
    (question,) = wait_for_questions(run)
    run.respond([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
    empty_site.ready(2)
    empty_site.open_gate(run)
    wait_until(lambda: empty_site.redis.exists("died:go"), "a worker dies while it chooses")
    empty_site.ready(2)

    result = run.wait(2 * (RECOVERY + MARGIN))

    assert result.status is Status.COMPLETED
    assert (result.execution_order[0], result.execution_order[-1]) == ("s", "z")
    assert sorted(result.execution_order) == ["a", "g", "s", "z"]
    assert result.results["z"].output == ["z", "a", "g"]
    assert [start[1] for start in empty_site.starts(run)] == ["1", "2"]


def wait_for_questions(run):
    wait_until(run.interrupts, "the run asks")
    return run.interrupts()
