"""Doorbells of the store and of the rule itself: whoever comes when, the turns are the same."""

from __future__ import annotations

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.dev.embedded import embedded_store
from runner.limits.fairness import Fairness, window
from runner.store.redis.store import RedisStore
from runner.store.requests import ShareSlots
from runner.testing import ManualClock
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import shape
from tests.simulation.stride_queue import StrideQueue

WEIGHTS = {"b": 3, "c": 0.3}

STEPS = st.lists(st.sampled_from(["a", "b", "c", "", "take", "take", "take"]), max_size=40)


@pytest.fixture(scope="module")
def server():
    with embedded_store() as server:
        yield server


def turns(store, clock, steps):
    """Do the steps, then take what is left; name the tenants in the order in which they were rung."""
    graph = shape("a", fairness=Fairness("tag:tenant", WEIGHTS))
    worker = ManualWorker(store, clock)
    store.do(ShareSlots({"g": 1}))
    bells, tenants, rung = [], {}, []

    def ring(doorbells):
        bells.extend(doorbells)
        rung.extend(tenants[bell.run_id] for bell in doorbells)

    def take():
        bell = bells.pop(0)
        ring(worker.claim(bell.run_id, bell.node).doorbells)

    for step in steps:
        clock.advance(0.001)
        if step != "take":
            run_id, doorbells = worker.begun(graph, tags={"tenant": step})
            tenants[run_id] = step
            ring(doorbells)
        elif bells:
            take()
    while bells:
        take()
    return rung


def planned(steps):
    """Do the steps with the rule alone."""
    fairness, queue, rung, out = Fairness("tag:tenant", WEIGHTS), StrideQueue[int](), [], 0
    for number, step in enumerate([*steps, *["take"] * len(steps)]):
        if step != "take":
            queue.add(fairness.share(step), number)
        elif out:
            out -= 1
        while out < window(1) and (node := queue.pop()):
            rung.append(node[0])
            out += 1
    return rung


@pytest.mark.full
@settings(max_examples=15, deadline=None)
@given(steps=STEPS)
@example(steps=["a"] * 14 + ["take"] * 8 + [""] * 6)  # a key that comes late
def test_the_store_rings_in_the_order_of_the_rule(server, steps):
    """What the scripts of Redis and the rule ring for is the same, in the same order."""
    clock, expected = ManualClock(), planned(steps)
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    in_redis = RedisStore(server.url, clock=clock)

    assert turns(in_redis, clock, steps) == expected
    in_redis.close()
