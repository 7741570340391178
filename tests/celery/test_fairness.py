"""Turns between tenants on real workers: a noisy one, and a control."""

from __future__ import annotations

import pytest

from runner import Status
from tests.simulation.stride_queue import UNKNOWN_WINDOW
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NOISE, QUIET = 100, 5

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.fair_graphs"}


def starts(site, graph, tenant, count):
    task = {"tenant": tenant, "line": graph}
    return [site.client.start(graph, task, tags={"tenant": tenant}) for _ in range(count)]


def turns(site, graph):
    return [tenant.decode() for tenant in site.redis.lrange(f"turns:{graph}", 0, -1)]


def ended(runs):
    wait_until(
        lambda: all(run.status is Status.COMPLETED for run in runs), "all runs are completed"
    )


def boot(site, slots):
    worker = site.add(slots=slots, **GRAPHS)
    worker.wait_ready()
    return worker


def test_a_noisy_tenant_does_not_keep_another_waiting(empty_site):
    """Its backlog is a window ahead, and then takes turns; control: without turns all of it is first."""
    boot(empty_site, 1).kill()
    runs, last = [], {}
    for graph in ("shared", "unshared"):
        runs += starts(empty_site, graph, "noisy", NOISE)
        runs += starts(empty_site, graph, "quiet", QUIET)
    boot(empty_site, 1)
    ended(runs)

    for graph in ("shared", "unshared"):
        order = turns(empty_site, graph)
        last[graph] = max(turn for turn, tenant in enumerate(order) if tenant == "quiet")
    assert last["shared"] < UNKNOWN_WINDOW + 4 * QUIET < NOISE < last["unshared"]
