"""Questions that remind while workers die: a reminder belongs to the question, not to who asked it."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from runner import Status
from runner.execution import ids
from runner.store.redis.keys import Keys
from tests.celery.workers import RECOVERY
from tests.chaos.journey import EVERY
from tests.chaos.kill_switch import arm, died_at
from tests.waiting import wait_until

SLOW = 150
APPS = {"sound": "tests.chaos.kill_points:app"}
APPS |= {name: f"tests.chaos.{name}:app" for name in ("no_sweep_app", "sweeps_twice")}


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Four workers that can be killed at a step, two that never sweep, and one that sweeps twice."""
    sites = {}
    for name, count in {"sound": 4, "no_sweep_app": 2, "sweeps_twice": 1}.items():
        sites[name] = site = next(databases)
        for number in range(count):
            specs = {
                "app": APPS[name],
                "restart": False,
                "RUNNER_GRAPHS": "tests.chaos.journey",
            }
            fork_server.add(site, f"{name}{number}", **specs)
    with fork_server.running(*sites.values()):
        yield sites


def ask(site):
    """Begin a run that asks, and kill the worker that has parked it."""
    run_id = ids.run_id()
    arm(site, "park.after", f"{run_id}/ask")
    site.client.engine.start("reminding", "go", run_id=run_id)
    return site.client.run(run_id)


def reminders(site, run) -> dict[int, int]:
    """The times of all reminders that were told, in ms of the store, by their numbers."""
    entries = [fields for _, fields in site.redis.xrange(Keys().notices)]
    mine = [
        fields
        for fields in entries
        if fields[b"kind"] == b"interrupt.reminded" and fields[b"run_id"] == run.id.encode()
    ]
    times = {int(fields[b"reminded"]): int(fields[b"at"]) for fields in mine}
    assert len(times) == len(mine), "a reminder came twice under one number"
    return times


def gaps(times: dict[int, int]) -> list[int]:
    return [later - one for one, later in pairwise(times.values())]


@pytest.mark.sample
def test_reminders_come_whoever_dies(sites):
    """Killed are who parked the node, who was about to sweep and who has just reminded: each comes once."""
    site = sites["sound"]
    run = ask(site)
    wait_until(
        lambda: died_at(site, "park.after", f"{run.id}/ask"), "who asked is dead", seconds=SLOW
    )
    for point in ("sweep.before", "sweep.after"):
        arm(site, point, "any")
        wait_until(
            lambda point=point: died_at(site, point, "any"), "a sweeper is dead", seconds=SLOW
        )
    before = len(reminders(site, run))

    wait_until(
        lambda: len(reminders(site, run)) >= before + 2, "the last worker reminds", seconds=SLOW
    )

    assert sum(worker.alive for worker in site.workers) == 1
    (question,) = run.interrupts()
    times = reminders(site, run)
    assert list(times) == list(range(1, len(times) + 1))
    assert min(gaps(times)) >= EVERY * 1000
    assert question.reminded in times
    site.client.respond(question.id, "yes")
    assert run.wait(SLOW).status is Status.COMPLETED


def test_without_a_sweep_nobody_is_reminded(sites):
    """Control: the question waits, and no reminder of it comes."""
    site = sites["no_sweep_app"]
    run = ask(site)
    wait_until(
        lambda: died_at(site, "park.after", f"{run.id}/ask"), "who asked is dead", seconds=SLOW
    )
    ends = time.monotonic() + EVERY + RECOVERY

    wait_until(lambda: time.monotonic() > ends, "a reminder would have come")

    assert run.status is Status.INTERRUPTED
    assert not reminders(site, run)


def test_where_a_sweep_is_done_twice_reminders_come_too_soon(sites):
    """Control: timers that come back after a sweep remind again at once."""
    site = sites["sweeps_twice"]
    run = site.client.start("reminding", "go")

    # A slow machine may sweep late for the second time, too: then the next reminder tells.
    def soonest():
        return min(gaps(reminders(site, run)), default=SLOW * 1000)

    wait_until(lambda: soonest() < EVERY * 1000, "a reminder comes too soon", seconds=SLOW)
