"""The same graph twice: with turns between tenants, and without."""

from __future__ import annotations

import os

import redis

from runner import Fairness, Graph, GraphBuilder, NodeContext, graph

STORE = redis.Redis.from_url(os.environ["RUNNER_REDIS_URL"])


def note(ctx: NodeContext) -> None:
    """Write down whose turn it is."""
    STORE.rpush(f"turns:{ctx.task['line']}", ctx.task["tenant"])


def _build() -> Graph:
    builder = GraphBuilder()
    builder.add_node(note, "note")
    return builder.build()


graph("shared", fairness=Fairness("tag:tenant", {"gold": 3}))(_build)
graph("unshared")(_build)
