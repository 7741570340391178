"""A worker dies with nodes whose keys take turns and have a limit each: none is lost, none too many run."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from runner import Status
from tests.celery.workers import RECOVERY
from tests.chaos.metered_graphs import LIMIT
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.metered_graphs"}
NOISY, QUIET = 30, 4
SLOTS = 4
LONG = 120


def starts(site, graph):
    tenants = ["noisy"] * NOISY + ["quiet"] * QUIET
    return [site.client.start(graph, tenant, tags={"tenant": tenant}) for tenant in tenants]


def log(site, graph):
    return [line.decode().split() for line in site.redis.lrange(f"log:{graph}", 0, -1)]


def most_at_once(lines):
    """Return how many nodes of one key ran at once, at most; those of a worker that is gone end with it."""
    running, most, gone = Counter(), 0, set()
    for sign, tenant, pid in lines:
        if pid in gone:
            continue
        if sign == "killed":
            gone.add(pid)
            running = Counter({at: count for at, count in running.items() if at[1] != pid})
            continue
        running[tenant, pid] += 1 if sign == "+" else -1
        most = max(most, sum(count for at, count in running.items() if at[0] == tenant))
    return most


def kill_one(site, **settings):
    """Start runs on two workers, kill the one that has the first node in hand, and let the other go on."""
    site.ready(2, slots=SLOTS, **settings, **GRAPHS)
    runs = starts(site, "metered")
    wait_until(lambda: len(log(site, "metered")) >= 2 * LIMIT, "as many run as may")
    pid = log(site, "metered")[0][2]
    next(worker for worker in site.workers if str(worker.pid) == pid).kill()
    site.redis.rpush("log:metered", f"killed all {pid}")
    site.redis.set("open:metered", 1)
    return runs


def completed(runs):
    return [run for run in runs if run.status is Status.COMPLETED]


@pytest.mark.sample
def test_a_worker_killed_under_a_key_and_a_limit_costs_time_only(empty_site):
    """Every run ends, no key exceeds its limit, no doorbell stays; control: with no limit more run."""
    runs = kill_one(empty_site, RUNNER_LEASE="5")
    wait_until(lambda: len(completed(runs)) == len(runs), "every run ends", seconds=LONG)
    assert most_at_once(log(empty_site, "metered")) == LIMIT
    assert empty_site.redis.keys("*fair:n:*") == []

    starts(empty_site, "free")
    wait_until(
        lambda: most_at_once(log(empty_site, "free")) > LIMIT, "more than a limit allows"
    )


def test_without_the_sweep_its_nodes_stay_lost(empty_site):
    """Control: what the killed worker had does not come back where none looks at what is due."""
    runs = kill_one(empty_site, app="tests.chaos.no_sweep_app:app")
    ends = time.monotonic() + RECOVERY + 1.5
    wait_until(lambda: time.monotonic() > ends, "the time is over in which it would come back")

    assert len(completed(runs)) < len(runs)
