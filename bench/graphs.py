"""The same shapes as graphs of ours: a chain, a fan with a join, a lattice, a question."""

from __future__ import annotations

import time

from runner import Graph, GraphBuilder, NodeContext, graph

LENGTH = 100
WIDTH = 500
SIDE = 10


def noop(_: NodeContext) -> None:
    """Do nothing."""


def moment(_: NodeContext) -> float:
    """Return the time, in seconds."""
    return time.time()


def question(ctx: NodeContext) -> float:
    """Ask, and return the time at which the answer was there."""
    ctx.interrupt("go")
    return time.time()


@graph("chain")
def chain() -> Graph:
    """Build a chain of LENGTH nodes."""
    return _chain(noop)


@graph("clocked")
def clocked() -> Graph:
    """Build the same chain, each node telling the time."""
    return _chain(moment)


def _chain(function: object) -> Graph:
    builder = GraphBuilder()
    for place in range(LENGTH):
        builder.add_node(function, f"n{place}")
        if place:
            builder.add_edge(f"n{place - 1}", f"n{place}")
    return builder.build()


@graph("fan")
def fan() -> Graph:
    """Build a node, WIDTH nodes after it, and a join."""
    builder = GraphBuilder()
    builder.add_node(noop, "first")
    builder.add_node(noop, "join")
    for place in range(WIDTH):
        builder.add_node(noop, f"n{place}")
        builder.add_edge("first", f"n{place}")
        builder.add_edge(f"n{place}", "join")
    return builder.build()


@graph("lattice")
def lattice() -> Graph:
    """Build SIDE layers of SIDE nodes, each after two nodes of the layer before."""
    builder = GraphBuilder()
    for layer in range(SIDE):
        for place in range(SIDE):
            builder.add_node(noop, f"n{layer}.{place}")
            if layer:
                builder.add_edge(f"n{layer - 1}.{place}", f"n{layer}.{place}")
                builder.add_edge(f"n{layer - 1}.{(place + 1) % SIDE}", f"n{layer}.{place}")
    return builder.build()


@graph("asking")
def asking() -> Graph:
    """Build one node with a question."""
    builder = GraphBuilder()
    builder.add_node(question, "ask")
    return builder.build()
