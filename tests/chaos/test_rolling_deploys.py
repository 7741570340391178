"""Workers are replaced one after the other while hundreds of runs go on: nobody notices."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
import redis

from tests.celery.workers import Site
from tests.chaos.fork_server import ForkedWorker
from tests.chaos.load import Load
from tests.chaos.stopping_graphs import STARTS
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.stopping_graphs"}
SLOW = 150
PAUSE = 0.05
"""Seconds between two starts: both workers together can do more."""


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Two places, each with two workers that are replaced."""
    sites = {"told": next(databases), "killed": next(databases)}
    # No lease may run out by itself, as it does on a machine that is too busy to renew it.
    settings = {"told": {**GRAPHS, "RUNNER_LEASE": "60"}, "killed": GRAPHS}
    for name, site in sites.items():
        for number in "ab":
            fork_server.add(site, f"{name}-{number}", slots=8, **settings[name])
    with fork_server.running(*sites.values()):
        yield sites


def replace(worker: ForkedWorker, sign: signal.Signals) -> None:
    """Tell a worker to stop, and wait until another one takes work in its place."""
    before = len(worker.pids)
    os.kill(worker.pid, sign)

    def replaced():
        return before < len(worker.pids) <= worker.output().count("worker.ready:")

    wait_until(replaced, "a new worker is ready", seconds=SLOW)


def deploy(site: Site, sign: signal.Signals, runs: int) -> tuple[Load, Counter]:
    """Deploy again and again until so many runs were begun, and count what happened in all of them."""
    with Load(site.url, graphs=("rolling",), pause=PAUSE) as load:
        while len(load.started) < runs:
            for worker in site.workers:
                replace(worker, sign)
    load.finish(SLOW)
    counts = Counter()
    for run_id in load.started.values():
        counts.update((event.kind, event.node) for event in site.client.run(run_id).events())
    return load, counts


@pytest.mark.parametrize("runs", [pytest.param(40, marks=pytest.mark.sample), 200])
def test_a_rolling_deploy_loses_nothing_and_repeats_nothing(sites, runs):
    """Runs with questions while workers are replaced: no node runs more often than it must.

    A stop may come between the claim of a node and its start: then it is left, and another worker runs it.
    """
    load, counts = deploy(sites["told"], signal.SIGTERM, runs)

    load.check()
    count = len(load.started)
    assert count >= runs
    assert {
        node: counts["node.started", node] - counts["node.left", node] for node in STARTS
    } == {node: starts * count for node, starts in STARTS.items()}
    assert not [kind for kind, _ in counts if kind == "node.lost"]
    with redis.Redis.from_url(sites["told"].url) as client:
        assert set(client.hgetall("ran").values()) == {b"1"}


def test_killed_instead_of_told_they_repeat_what_ran(sites):
    """Control: the same deploys with SIGKILL; nothing is lost either, but nodes are begun twice."""
    load, counts = deploy(sites["killed"], signal.SIGKILL, 60)

    load.check()
    assert [kind for kind, _ in counts if kind == "node.lost"]
