"""Workers whose clocks are an hour off, either way: leases, delays and expiries don't notice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runner import Status
from runner.testing.plugin import absent
from tests.celery.workers import MARGIN, RECOVERY, SWEEP
from tests.chaos.clock_graphs import DELAY, EXPIRES
from tests.waiting import wait_until

GRAPHS = "tests.chaos.clock_graphs"
OFF = ("+3600s", "-3600s")
SLOW = 150


@pytest.fixture(scope="module")
def library() -> str:
    """Fakes the clock of a process; without it the tests are skipped, and on CI they fail."""
    files = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
    if not files:
        absent("there is no libfaketime to test with; install it (apt install faketime)")
    return str(files[0])


def add(site, library: str, off: str, graphs: str = GRAPHS):
    """Start a worker whose clock is off; what measures spans is left alone, as it is on a real machine."""
    faked = (
        {"LD_PRELOAD": library, "FAKETIME": off, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        if off
        else {}
    )
    return site.add(slots=4, RUNNER_GRAPHS=graphs, **faked)


@pytest.fixture
def site(databases, library):
    """Three workers of this test alone, which may kill one: an hour ahead, an hour behind, and right."""
    site = next(databases)
    for off in (*OFF, ""):
        add(site, library, off)
    for worker in site.workers:
        worker.wait_ready()
    yield site
    site.end()


def all_started(site, count: int) -> list:
    runs = [site.client.start("gated", "go") for _ in range(count)]
    for run in runs:
        wait_until(lambda run=run: site.starts(run), "the node runs", seconds=SLOW)
    ends = time.monotonic() + RECOVERY + 2 * SWEEP
    wait_until(lambda: time.monotonic() > ends, "a lease and a sweep are over", seconds=SLOW)
    return runs


def gap(run, first: str, second: str, node: str) -> float:
    """Seconds of the store's clock between two events of a node."""
    times = {(event.kind, event.node): event.at for event in run.events()}
    return (times[second, node] - times[first, node]) / 1000


@pytest.mark.sample
def test_clocks_that_are_off_change_no_lease_and_no_delay(site):
    """No node is taken from its worker; a retry and an expiry come when they should by the store's clock."""
    timed = site.client.start("timed", "go")
    runs = all_started(site, 9)
    assert len({site.starts(run)[0][0] for run in runs}) == 3, "all three workers run some"
    assert [len(site.starts(run)) for run in runs] == [1] * 9
    for run in runs:
        site.open_gate(run)

    assert {run.wait(SLOW).status for run in runs} == {Status.COMPLETED}
    wait_until(
        lambda: timed.status is Status.COMPLETED, "the question has expired", seconds=SLOW
    )
    assert timed.result().results["asks"].output == "nobody answered"
    assert (
        EXPIRES <= gap(timed, "interrupt.asked", "interrupt.expired", "asks") < EXPIRES + SLOW
    )
    assert DELAY - 0.05 <= gap(timed, "node.retrying", "node.started", "flaky") < DELAY + SLOW


def test_a_killed_worker_is_noticed_in_time(site):
    """The node of a worker whose clock was behind begins elsewhere within lease and sweep."""
    run = site.client.start("gated", "go")
    site.starter(run).kill()
    killed = time.monotonic()
    wait_until(lambda: len(site.starts(run)) == 2, "another worker runs the node", seconds=SLOW)
    site.open_gate(run)

    assert time.monotonic() - killed < RECOVERY + MARGIN
    assert run.wait(SLOW).status is Status.COMPLETED


def test_with_clocks_of_their_own_workers_rob_each_other(databases, library):
    """Control: where each worker believes its own clock, one that is ahead takes what the others run."""
    site = next(databases)
    for off in (OFF[0], ""):
        add(site, library, off, f"{GRAPHS},tests.chaos.own_clock").wait_ready()

    runs = all_started(site, 6)

    assert max(len(site.starts(run)) for run in runs) > 1
    site.end()
