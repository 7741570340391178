"""Whole graphs on the Redis store, as in process: what the scripts must not trip over."""

from __future__ import annotations

import functools

import pytest

from runner import Status
from runner.store.redis.store import RedisStore
from tests.graphs import Bench, ident, wired


@pytest.fixture
def on_redis(redis_url):
    """Make a bench whose store is Redis, with the test's clock."""

    def make(graph):
        return Bench(graph, functools.partial(_open, redis_url))

    return make


def _open(url, clock):
    return RedisStore(url, clock=clock, push=False)


def visit(ctx):
    return ctx.visit


def test_a_loop_whose_counts_return_to_nothing(on_redis):
    """A node that repeats itself before the loop around it has begun leaves that loop's record readable."""
    graph = wired(
        {"a": ident, "c": ident, "d": visit},
        "a c",
        "a d",
        "c d",
        ("d d", lambda state: state.visit < 2),
        ("d c", lambda state: state.visit == 2),
        d={"join": "any"},
    ).build()
    bench = on_redis(graph).start()
    bench.deliver("a")
    bench.deliver("d")

    assert bench.finish().status is Status.COMPLETED
