"""Workers whose clocks are an hour off, either way: leases, delays and expiries don't notice."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from runner import Status
from runner.dev.embedded import bundled_server
from runner.schedules.schedule import Schedule
from runner.schedules.scheduler import Scheduler
from runner.store.redis.documents import Documents
from runner.testing.plugin import absent
from tests.celery.workers import MARGIN, RECOVERY, SWEEP, Site
from tests.chaos.clock_graphs import DELAY, EXPIRES, PER
from tests.chaos.servers import Server
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


class Jumping(Server):
    """A server whose clock a test moves; what measures spans is left alone."""

    def __init__(self, folder: Path, library: str) -> None:
        super().__init__(folder)
        self._offset, program = folder / "offset", folder / "server.sh"
        self.jump("+0")
        faked = (
            f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={self._offset} FAKETIME_NO_CACHE=1"
        )
        faked += " FAKETIME_DONT_FAKE_MONOTONIC=1"
        # Debian's server has an allocator that asks for the time before the library is ready.
        program.write_text(
            f'#!/bin/sh\n{faked} exec {bundled_server()} "$@"\n', encoding="utf-8"
        )
        program.chmod(0o755)
        self._program = lambda: program

    def jump(self, offset: str) -> None:
        self._offset.write_text(offset, encoding="utf-8")


@pytest.fixture
def jumping(tmp_path, library):
    """A site on a server whose clock can jump."""
    server = Jumping(tmp_path, library).start()
    site = Site(server.url, tmp_path)
    yield server, site
    site.end()
    server.end()


@pytest.mark.parametrize("offset", ["-3600", "+3600"])
def test_the_store_s_clock_jumps(jumping, offset):
    """New work goes on, each time of a schedule has one run, a rate lets no more through; workers say so."""
    server, site = jumping
    worker = site.add(RUNNER_GRAPHS=GRAPHS)
    worker.wait_ready()
    documents = Documents(Schedule, server.url)
    scheduler = Scheduler(site.client.engine, documents)
    scheduler.add(Schedule("s", "ticking", interval=1.0))

    def ticks() -> list[str]:
        return [
            run.tags["scheduled_at"] for run in site.client.runs(tags={"schedule": "s"}).items
        ]

    wait_until(lambda: len(ticks()) > 1, "the schedule has started runs")
    running = site.client.start("gated", "go")
    wait_until(lambda: site.starts(running), "a node runs")
    before = time.monotonic()
    server.jump(offset)
    wait_until(lambda: "clock.jumped" in worker.output(), "the worker has noticed")

    rated = [site.client.start("rated", number) for number in range(4)]
    assert site.client.start("ticking", 1).wait(SLOW).status is Status.COMPLETED
    assert {run.wait(SLOW).status for run in rated} == {Status.COMPLETED}
    begun = sorted(
        event.at for run in rated for event in run.events() if event.kind == "node.started"
    )
    assert all(later - earlier > PER * 900 for earlier, later in pairwise(begun))
    site.open_gate(running)
    assert running.wait(SLOW).status is Status.COMPLETED
    assert len(site.starts(running)) == (2 if offset[0] == "+" else 1)
    times = ticks()
    assert len(times) == len(set(times)) < time.monotonic() - before + 10
    assert (offset[0] == "+") == (documents.get("s").next_at < documents.now() + 60_000)


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
