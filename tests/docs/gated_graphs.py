"""A graph whose node runs until the key "gate" is set on its store."""

from __future__ import annotations

import redis

from runner import graph
from runner.settings import Settings
from tests.graphs import wired
from tests.waiting import wait_until


def pay(ctx):
    client = redis.Redis.from_url(Settings().redis_url)
    wait_until(lambda: ctx.check() or client.exists("gate"), "the gate is open", seconds=300)
    return "paid"


@graph("refund")
def refund():
    return wired({"pay": pay}).build()
