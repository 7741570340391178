"""Graphs whose runs depend on time: on leases, a delay, and an expiry."""

from __future__ import annotations

from runner import GraphBuilder, Limit, RetryPolicy, graph
from runner.errors import InterruptExpired
from tests.celery.graphs import gated

__all__ = ["gated"]

DELAY = 1.0
EXPIRES = 1.5
PER = 2.0
"""Seconds between two starts under a rate."""


def fail_first(ctx):
    if ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    return ctx.attempt


def ask_briefly(ctx):
    try:
        return ctx.interrupt("quick", expires_in=EXPIRES)
    except InterruptExpired:
        return "nobody answered"


@graph("timed")
def timed():
    builder = GraphBuilder()
    builder.add_node(
        fail_first, "flaky", retry=RetryPolicy(max_attempts=2, backoff=DELAY, jitter=0)
    )
    builder.add_node(ask_briefly, "asks")
    return builder.build()


@graph("ticking")
def ticking():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.task, "tick")
    return builder.build()


@graph("rated")
def rated():
    builder = GraphBuilder()
    limits = [Limit("second", rate=1, per=PER)]
    builder.add_node(lambda ctx: ctx.task, "rated", limits=limits)
    return builder.build()
