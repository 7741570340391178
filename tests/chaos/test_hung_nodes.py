"""Nodes that hang, and workers that freeze for longer than their lease and come back."""

from __future__ import annotations

import os
import signal
import time

import pytest

from runner import Status
from runner.errors import NodeTimedOut
from tests.celery.workers import MARGIN, RECOVERY
from tests.chaos import journey
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.node_lines,tests.chaos.hanging"}
LONG = 150


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Give a pair of workers as they should be, a pair without the fence, and a worker with time limits."""
    sites = {name: next(databases) for name in ("fenced", "no_fence", "limited")}
    for number in "ab":
        fork_server.add(sites["fenced"], f"fenced{number}", **GRAPHS)
        fork_server.add(
            sites["no_fence"], f"no_fence{number}", app="tests.chaos.no_fence:app", **GRAPHS
        )
    fork_server.add(
        sites["limited"],
        "limited",
        app="tests.chaos.time_limits:app",
        pool="prefork",
        slots=2,
        **GRAPHS,
    )
    with fork_server.running(*sites.values()):
        yield sites


def come_back_late(site):
    """Freeze the worker of a node until another one has done the node's work, and let it go on then."""
    run = site.client.start("hung_deaf", "go")
    frozen = site.starter(run)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: len(site.starts(run)) == 2, "another worker runs the node", seconds=LONG
        )
        site.open_gate(run)
        assert run.wait(LONG).status is Status.INTERRUPTED
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    wait_until(lambda: ended(frozen, run), "it has tried to commit", seconds=LONG)
    return run


@pytest.mark.sample
def test_a_worker_that_comes_back_is_refused(sites):
    """A result that comes after its lease has gone to another changes nothing; both starts had one key."""
    site = sites["fenced"]

    run = come_back_late(site)

    first, second = site.starts(run)
    assert first[0] != second[0]
    assert first[2] == second[2]
    assert journey.commits(run)["a", 1] == 1
    assert run.result().results["a"].output == 2


def test_without_the_fence_it_would_commit_again(sites):
    """Control: with scripts that don't look at the fence the same visit is committed twice."""
    run = come_back_late(sites["no_fence"])

    wait_until(
        lambda: journey.commits(run)["a", 1] == 2,
        "the visit is committed once more",
        seconds=LONG,
    )


def test_a_deaf_node_fails_at_its_deadline(sites):
    """A node past its timeout is given up though its code goes on, and what that brings later is refused."""
    site = sites["fenced"]

    run = site.client.start("hung_deaf_in_time", "go")
    result = run.wait(LONG)
    site.open_gate(run)

    assert result.status is Status.FAILED
    assert isinstance(result.results["a"].result, NodeTimedOut)
    (worker,) = [
        candidate for candidate in site.workers if f"{run.id}.a.1.1" in candidate.output()
    ]
    wait_until(lambda: ended(worker, run), "its code has come to its end", seconds=LONG)
    assert run.status is Status.FAILED
    assert not journey.commits(run)


def ended(worker, run) -> bool:
    lines = [line for line in worker.output().splitlines() if f"[{run.id}.a.1.1]" in line]
    return any("received" not in line for line in lines)


def test_a_node_that_asks_is_told_of_its_deadline(sites):
    """Code that calls `check` is stopped at the deadline and can clean up."""
    site = sites["fenced"]

    run = site.client.start("hung_polite_in_time", "go")

    assert isinstance(run.wait(LONG).results["a"].result, NodeTimedOut)
    wait_until(
        lambda: site.redis.exists(f"cleaned:{run.id}"), "it has cleaned up", seconds=LONG
    )


def test_a_node_without_a_deadline_hangs_on(sites):
    """Control: the same node without a timeout keeps its lease and is neither stopped nor repeated."""
    site = sites["fenced"]
    run = site.client.start("hung_polite", "go")
    wait_until(lambda: site.starts(run), "the node runs", seconds=LONG)
    ends = time.monotonic() + RECOVERY + 1.5

    wait_until(lambda: time.monotonic() > ends, "deadline and lease of the others are over")

    assert run.status is Status.EXECUTING
    assert len(site.starts(run)) == 1
    site.open_gate(run)
    assert run.wait(LONG).status is Status.COMPLETED


def test_celery_s_soft_limit_fails_the_node(sites):
    """The exception of the soft limit is the node's failure, with its name kept."""
    run = sites["limited"].client.start("hung_polite", "go")

    result = run.wait(LONG)

    assert result.status is Status.FAILED
    assert result.results["a"].error.type.endswith("SoftTimeLimitExceeded")


def test_celery_s_hard_limit_costs_a_child_and_not_the_run(sites):
    """A node that ignores the soft limit loses its process at the hard one, and runs again in another."""
    site = sites["limited"]
    run = site.client.start("hung_stubborn", "go")

    assert run.wait(LONG + MARGIN).results["a"].output == 2
    first, second = site.starts(run)
    assert first[0] != second[0]
    assert first[2] == second[2]
