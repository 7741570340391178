"""A partition's scripts keep to its own keys: in a cluster no others are at hand."""

from __future__ import annotations

import pytest
import redis

from runner.operations.recovery import write_retry
from runner.store.addresses import places
from runner.store.redis.layout import Layout
from runner.store.redis.partitions import PartitionedStore
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock, StoreContract
from runner.testing.contract.manual_worker import ManualWorker, shape
from tests.chaos.transitions import Walk


def partitioned(urls, clock, *, relays=False):
    """Open a store of one partition on each of some servers."""
    where = places(",".join(urls))
    partitions = [
        RedisStore(place.url, partition=place.partition, clock=clock, lease=30, push=False) for place in where
    ]
    return PartitionedStore(partitions, Layout(where), relays=relays)


@pytest.fixture
def tight(redis_url):
    """Open a store whose user may touch nothing but the partition's keys."""
    with redis.Redis.from_url(redis_url) as client:
        client.acl_setuser("tight", enabled=True, nopass=True, commands=["+@all"], keys=["runner:{p07}:*"])
        store = RedisStore(
            f"{redis_url}&username=tight&password=any", partition="p07", push=False, clock=ManualClock()
        )
        yield store
        store.close()
        client.acl_deluser("tight")


def test_no_transition_touches_a_key_outside_of_its_partition(tight):
    """A run through every transition, and one that fails and is retried, need no other key."""
    for _verb, _wanted, send in Walk(tight, "00walk"):
        send("")
    worker = ManualWorker(tight)
    run_id = worker.start(shape("a"))
    assert worker.fail(worker.claim(run_id, "a").token) == "settled"
    write_retry(tight, run_id)
    tight.sweep()
    worker.settle(worker.claim(run_id, "a", attempt=2).token)

    assert worker.statuses(run_id) == "completed: a completed"
    assert tight.sweep().word == "0"


class TestPartitionsOfOneServer(StoreContract):
    """The contract over two partitions on one server."""

    @pytest.fixture
    def store(self, clock, redis_url):
        store = partitioned([redis_url] * 2, clock)
        yield store
        store.close()
