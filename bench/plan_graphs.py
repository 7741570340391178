"""More shapes: a loop, a map, nodes that take their time."""

from __future__ import annotations

import time

from bench.graphs import noop
from runner import Graph, GraphBuilder, NodeContext, graph

ROUNDS = 30
ITEMS = 200


def count(ctx: NodeContext) -> int:
    """Count the rounds."""
    return ctx.visit


@graph("loop")
def loop() -> Graph:
    """Build a loop of three nodes that goes round ROUNDS times."""
    builder = GraphBuilder()
    for name in ("first", "a", "b", "c", "last"):
        builder.add_node(count, name)
    builder.add_edge("first", "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    builder.add_edge("c", "a", condition=lambda state: state.results["c"].output < ROUNDS)
    builder.add_edge("c", "last", condition=lambda state: state.results["c"].output >= ROUNDS)
    return builder.build()


@graph("map")
def mapped() -> Graph:
    """Build a map of ITEMS items, eight at a time."""
    builder = GraphBuilder()
    builder.add_map(noop, "each", over=lambda ctx: ctx.task, concurrency=8)
    builder.add_node(noop, "last")
    builder.add_edge("each", "last")
    return builder.build()


def wait(_: NodeContext) -> None:
    """Take a while."""
    time.sleep(0.2)


@graph("slow")
def slow() -> Graph:
    """Build many nodes that take a while."""
    builder = GraphBuilder()
    for place in range(400):
        builder.add_node(wait, f"n{place}")
    return builder.build()
