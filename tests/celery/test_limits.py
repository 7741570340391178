"""Limits on real workers: places are shared by all of them, and nobody who waits has one."""

from __future__ import annotations

import pytest

from runner import Status
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def site(databases):
    """A site for both tests."""
    site = next(databases)
    yield site
    site.end()


@pytest.fixture
def limited_site(site):
    """Two workers with more slots than the limits have places."""
    site.ready(2, slots=8)
    return site


@pytest.mark.slow
def test_no_more_than_the_limit_run_at_once(limited_site):
    """Of twenty nodes three run at a time, on two workers; two that wait for people keep nobody waiting."""
    run = limited_site.client.start("limited", "go")
    result = run.wait(60)
    assert result.status is Status.INTERRUPTED
    assert len(result.execution_order) == 18
    assert limited_site.redis.zscore(f"most:{run.id}", "most") == 3

    for question in result.interrupts:
        limited_site.client.respond(question.id, "yes")
    assert run.wait(60).status is Status.COMPLETED
    assert limited_site.redis.zscore(f"most:{run.id}", "most") == 3
    assert limited_site.redis.keys("runner:{p00}:limit:*") == []


@pytest.mark.slow
def test_another_worker_goes_on_with_a_node_that_was_told_to_wait(limited_site):
    """Its worker is killed while it waits: it goes on at its time, with no attempt counted, no slot lost."""
    run = limited_site.client.start("told", "go")
    wait_until(lambda: any(event.kind == "node.retrying" for event in run.events()), "it waits")
    pid = int(limited_site.redis.lindex(f"started:{run.id}", 0))
    [worker] = [worker for worker in limited_site.workers if worker.pid == pid]
    worker.kill()

    result = run.wait(60)
    assert (result.status, result.results["a"].attempts) == (Status.COMPLETED, 1)
    assert "node.lost" not in {event.kind for event in run.events()}
    assert int(limited_site.redis.lindex(f"started:{run.id}", 1)) != pid
    assert limited_site.redis.keys("runner:{p00}:limit:*") == []
