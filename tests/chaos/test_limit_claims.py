"""Limits over four partitions on two servers, while the processes that claim are killed and frozen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.celery.test_partitions import two_servers
from tests.chaos.metered_graphs import LIMIT
from tests.chaos.test_fair_deaths import (
    GRAPHS,
    LONG,
    SLOTS,
    completed,
    log,
    most_at_once,
    starts,
)
from tests.waiting import wait_until


def count(*options):
    """Have a few hundred claims counted, in a program of its own."""
    command = [sys.executable, "-m", "tests.chaos.limit_claims", "--seconds", "120", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.sample
@pytest.mark.timeout(400)
def test_no_limit_is_exceeded_whatever_dies():
    """No more nodes are at work than a key has slots, every run ends, and then every slot is free."""
    tally = count("--claims", "300", "--faults", "4")

    assert tally["claims"] >= 300
    assert tally["killed"] + tally["frozen"] >= 4
    assert (tally["overshoot"], tally["taken"]) == (0, 0)


@pytest.mark.timeout(400)
def test_partitions_that_count_alone_exceed_a_limit():
    """Control: where each partition counts a key for itself, more nodes are at work."""
    assert count("--claims", "500", "--alone")["overshoot"] > 0


@pytest.fixture
def pair(tmp_path):
    """Two servers without a worker."""
    site = two_servers(tmp_path)
    yield site
    site.end()


def strike(site, sign, gone):
    """Send a signal to a worker that has a node, when as many run as may; return the ids of who is gone."""

    def running():
        return [line for line in log(site, "metered") if line[0] == "+" and line[2] not in gone]

    wait_until(lambda: len(running()) == 2 * LIMIT, "as many run as may", seconds=LONG)
    pid = running()[0][2]
    os.kill(int(pid), sign)
    site.redis.rpush("log:metered", f"killed all {pid}")
    return {*gone, pid}


@pytest.mark.timeout(400)
def test_a_killed_and_a_frozen_worker_exceed_no_limit(pair):
    """Of three workers on two servers one is left: it ends all runs, and no key exceeds its limit."""
    pair.ready(3, slots=SLOTS, RUNNER_LEASE="5", **pair.settings, **GRAPHS)
    runs = starts(pair, "metered")
    assert {run.id[:2] for run in runs} == {"00", "01"}
    strike(pair, signal.SIGSTOP, strike(pair, signal.SIGKILL, set()))
    pair.redis.set("open:metered", 1)
    wait_until(lambda: len(completed(runs)) == len(runs), "every run ends", seconds=LONG)

    assert most_at_once(log(pair, "metered")) == LIMIT


@pytest.mark.timeout(400)
def test_workers_whose_partitions_count_alone_exceed_a_limit(pair):
    """Control: each partition lets as many run as the limit allows."""
    app = "tests.chaos.counts_alone:app"
    pair.ready(2, slots=SLOTS, app=app, **pair.settings, **GRAPHS)
    starts(pair, "metered")
    wait_until(lambda: most_at_once(log(pair, "metered")) > LIMIT, "more than a limit allows")
