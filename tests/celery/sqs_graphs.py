"""The graphs of the tests of SQS: a worker of them reads more queues than kombu does at a time."""

from __future__ import annotations

import os
import threading

import redis

from runner import graph
from tests.celery.shapes import drawn

GATE_SECONDS = 150


def gate(ctx):
    """Say which process runs this, then wait until the test opens the gate of the run."""
    pause = threading.Event()
    with redis.Redis.from_url(os.environ["RUNNER_REDIS_URL"]) as client:
        client.rpush(f"started:{ctx.run_id}", f"{os.getpid()} {ctx.attempt}")
        for _ in range(GATE_SECONDS * 20):
            if client.exists(f"gate:{ctx.run_id}"):
                return ctx.attempt
            pause.wait(0.05)
    raise TimeoutError("the test never opened the gate")


def make(edges, **nodes):
    return drawn(*edges.split(), work=lambda ctx: ctx.node_id, **nodes).build()


for number in range(12):
    graph(f"diamond{number}")(lambda: make("ab ac bd cd"))

graph("question")(lambda: make("ab bc", b=lambda ctx: ctx.interrupt("go?")))
graph("gated")(lambda: make("ab bc", b=gate))
