"""A store that has lost its data: workers that live publish again what only they know."""

from __future__ import annotations

import pytest

from runner import Status
from runner.errors import NotFoundError
from runner.store.redis.workers import EVERY
from tests.celery.workers import MARGIN
from tests.waiting import wait_until


@pytest.mark.sample
def test_workers_publish_again_what_an_emptied_store_has_lost(site):
    """Within a heartbeat a start rings a worker at once, not by a sweep; control: at first it is unknown."""
    site.add(RUNNER_SWEEP_INTERVAL="300").wait_ready()
    store = site.client.engine.store
    site.redis.flushdb()
    with pytest.raises(NotFoundError, match="known: none yet"):
        site.client.start("chain", "go")

    wait_until(
        lambda: store.has_doorbell() and "chain" in store.graphs(),
        "it is there",
        seconds=2 * EVERY + MARGIN,
    )

    assert site.client.start("chain", "go").wait(2 * MARGIN).status is Status.COMPLETED
    assert "store.emptied: the store has lost" in site.workers[0].output()
