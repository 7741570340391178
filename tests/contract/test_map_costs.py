"""What an item of a map costs the server, counted in commands: machines differ, counts don't."""

from __future__ import annotations

import pytest
import redis

from runner.definition.model import MapSpec
from runner.store.redis.store import RedisStore
from runner.testing.contract.manual_worker import ManualWorker, shape


def commands_per_item(url, count, window):
    """Run a map of so many items, and count the commands of its scripts for each."""
    graph = shape("m>z", maps={"m": MapSpec("function", None, window)})
    store = RedisStore(url, push=False)
    with redis.Redis.from_url(url) as server:
        server.flushall()
        worker = ManualWorker(store)
        run_id = worker.start(graph)
        token = worker.claim(run_id, "m").token
        server.config_resetstat()
        store.expand(token, list(range(count)))
        worker.run(run_id, *(f"m[{index}]" for index in range(count)))
        ran = server.info("commandstats")
        store.close()
    assert worker.read(run_id).maps["m"].has_ended
    return sum(stat["calls"] for stat in ran.values()) / count


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 5])
def test_an_item_costs_the_same_in_a_long_list(redis_url, window):
    """A list thirty times as long costs no more commands for each item."""
    few, many = commands_per_item(redis_url, 100, window), commands_per_item(redis_url, 3_000, window)

    assert many <= few * 1.05
