"""Sabotage: a worker that trusts no sweep, and lets the next one do everything once more."""

from __future__ import annotations

from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from tasks.app import app
from tests.celery.graphs import store

__all__ = ["app"]

TIMERS = f"{Keys().prefix}timers"
sweep = RedisStore.sweep


def sweep_and_put_back(self, *asked):
    with store() as client:
        due = client.zrangebyscore(TIMERS, "-inf", client.time()[0] * 1000)
        reply = sweep(self, *asked)
        if due:
            client.zadd(TIMERS, dict.fromkeys(due, 0))
    return reply


RedisStore.sweep = sweep_and_put_back
