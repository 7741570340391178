"""A store that has lost its data: workers that live publish again what only they know."""

from __future__ import annotations

import pytest

from runner import Status
from runner.celery.heartbeat import LOST_CHECK_EVERY
from runner.errors import NotFoundError
from runner.records.workers import EVERY
from runner.store.redis.keys import Keys
from tests.celery.workers import MARGIN
from tests.waiting import wait_until


def flush(redis):
    """Delete all data: the store starts empty."""
    redis.flushdb()


def restore_older_data(redis):
    """Bring data of before the worker's graphs, which lists the worker all the same."""
    redis.delete(Keys().graphs, Keys().doorbell)


@pytest.mark.parametrize(
    ("lose", "seconds"),
    [
        pytest.param(flush, 2 * EVERY, marks=pytest.mark.sample),
        (restore_older_data, LOST_CHECK_EVERY + EVERY),
    ],
)
def test_workers_publish_again_what_an_emptied_store_has_lost(site, lose, seconds):
    """Within a heartbeat, or a minute, a start rings a worker at once; control: at first it is unknown."""
    site.add(RUNNER_SWEEP_INTERVAL="300").wait_ready()
    store = site.client.engine.store
    lose(site.redis)
    with pytest.raises(NotFoundError, match="known: none yet"):
        site.client.start("chain", "go")

    wait_until(
        lambda: store.has_doorbell() and "chain" in store.graphs(),
        "it is there",
        seconds=seconds + MARGIN,
    )

    assert site.client.start("chain", "go").wait(2 * MARGIN).status is Status.COMPLETED
    assert "store.emptied: the store has lost" in site.workers[0].output()
    assert "from a backup" in site.workers[0].output()
