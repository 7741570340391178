"""A map on real workers: its items run side by side, survive a killed worker, and wait for people."""

from __future__ import annotations

import pytest

from runner import Status
from tests.celery.workers import MARGIN, RECOVERY
from tests.waiting import wait_until

WITHIN = RECOVERY + MARGIN


@pytest.mark.slow
def test_a_cancel_ends_a_map_that_stores_its_list(empty_site):
    """A list of 60,000 items, written in small pieces, is not stored to its end, and no item begins."""
    empty_site.ready(1, RUNNER_GRAPHS="tests.celery.graphs,tests.celery.small_pieces")
    run = empty_site.client.start("mapped", 60_000)
    items = f"runner:{{p00}}:r:{run.id}:f"
    wait_until(lambda: empty_site.redis.hlen(items), "it is being stored")
    run.cancel("enough")

    assert run.wait(WITHIN).status is Status.CANCELLED
    assert empty_site.redis.hlen(items) < 600
    assert "m[0]" not in {event.node for event in run.events()}


@pytest.mark.slow
def test_a_cancelled_map_s_doorbells_hold_up_no_other_run(empty_site):
    """They leave the queue without being taken one by one, and those of another map among them stay."""
    settings = {"RUNNER_GRAPHS": "tests.celery.wide_graphs", "RUNNER_LEASE": "12"}
    empty_site.ready(1, slots=3, **settings)

    cancelled, other = (empty_site.client.start("wide", items) for items in (2_000, 200))
    for run, items in ((cancelled, 2_000), (other, 200)):
        wait_until(
            lambda run=run, items=items: len(run.result().results) > items, "it is ready"
        )
    (before,) = empty_site.control.inspect().stats().values()
    cancelled.cancel("enough")

    assert other.wait(WITHIN).results["after"].output == 200
    (stats,) = empty_site.control.inspect().stats().values()
    taken = sum(stats["total"].values()) - sum(before["total"].values())
    assert sum(stats["total"].values()) > 200
    assert taken < 1_000
