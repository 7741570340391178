"""Workers are replaced one after the other while hundreds of runs go on: nobody notices."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.chaos.load import Load
from tests.chaos.stopping_graphs import STARTS
from tests.tasks.workers import Site
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.stopping_graphs"}
SLOW = 90


@pytest.fixture
def site(databases):
    """Two workers that are replaced."""
    site = next(databases)
    yield site
    site.end()


def replace_all(site: Site, sign: signal.Signals) -> None:
    """A rolling deploy: each worker is told to stop, and the next one waits until a new one is there."""
    for old in list(site.workers):
        os.kill(old.pid, sign)
        site.add(slots=8, **GRAPHS).wait_ready()
        wait_until(lambda old=old: not old.alive, "the old worker has gone", seconds=SLOW)
        site.workers.remove(old)
        old.end()


def deploy(site: Site, sign: signal.Signals, runs: int) -> tuple[Load, Counter]:
    """Deploy again and again until so many runs were begun, and count what happened in all of them."""
    site.ready(2, slots=8, **GRAPHS)
    with Load(site.url, graphs=("rolling",)) as load:
        replace_all(site, sign)
        wait_until(lambda: len(load.started) >= runs, f"{runs} runs were begun", seconds=SLOW)
    load.finish(SLOW)
    found = Counter()
    for run_id in load.started.values():
        found.update((event.kind, event.node) for event in site.client.run(run_id).events())
    return load, found


def test_a_rolling_deploy_loses_nothing_and_repeats_nothing(site):
    """200 runs with questions, both workers replaced: no node is started more often than it must be."""
    load, found = deploy(site, signal.SIGTERM, 200)

    load.check()
    count = len(load.started)
    assert count >= 200
    assert {node: found["node.started", node] for node in STARTS} == {
        node: starts * count for node, starts in STARTS.items()
    }
    assert not [kind for kind, _ in found if kind in ("node.lost", "node.left")]


def test_killed_instead_of_told_they_repeat_what_ran(site):
    """Control: the same deploys with SIGKILL; nothing is lost either, but nodes are begun twice."""
    load, found = deploy(site, signal.SIGKILL, 60)

    load.check()
    assert [kind for kind, _ in found if kind == "node.lost"]
