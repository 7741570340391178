"""An app of somebody else's that knows nothing of ours, and a worker of which may run beside ours."""

from __future__ import annotations

import os
import threading
from decimal import Decimal

import redis
from celery import Celery

from runner.settings import as_broker

app = Celery("shop", broker=as_broker(os.environ["RUNNER_REDIS_URL"]))
app.conf.worker_prefetch_multiplier = 1


def store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["RUNNER_REDIS_URL"])


@app.task(name="shop.charge", bind=True)
def charge(self, order):
    return {"order": order, "task": self.request.id}


@app.task(name="shop.decline")
def decline(card, *, times):
    """Fail so many times."""
    with store() as client:
        if client.incr(f"declined:{card}") <= times:
            raise LookupError(f"no card {card}")
    return card


@app.task(name="shop.price")
def price():
    return Decimal("1.5")


class Prices:
    """What an app teaches kombu to write, in its own form."""

    def __json__(self):
        return {"prices": [Decimal("1.5"), float("inf")]}


@app.task(name="shop.prices")
def prices():
    return Prices()


@app.task(name="shop.slow", bind=True)
def slow(self, gate):
    """Say that it has begun, then wait for a gate."""
    with store() as client:
        client.rpush(f"begun:{gate}", self.request.id)
        pause = threading.Event()
        for _ in range(3000):
            if client.exists(f"gate:{gate}"):
                return gate
            pause.wait(0.05)
    raise TimeoutError("the test never opened the gate")
