"""A graph that asks hundreds of questions at once, one with a queue of its own, and graphs inside graphs."""

from __future__ import annotations

from runner import GraphBuilder, graph
from tests.tasks.graphs import build, name_of

ASKED = 200


@graph("asks_many")
def asks_many():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: list(range(ASKED)), "list")
    builder.add_map(lambda ctx: ctx.interrupt("each"), "m")
    builder.add_node(lambda ctx: len(ctx.inputs["m"]), "count")
    builder.add_edge("list", "m")
    builder.add_edge("m", "count")
    return builder.build()


@graph("urgent")
def urgent():
    """A short graph whose nodes have a queue of their own."""
    builder = GraphBuilder()
    for node in "abc":
        builder.add_node(name_of, node, queue="urgent")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    return builder.build()


@graph("family")
def family():
    """A parent with two children, each with a child of its own."""
    builder = GraphBuilder()
    for name in ("one", "two"):
        middle = GraphBuilder()
        middle.add_node(build("xy"), "inner")
        builder.add_node(middle.build(), name)
    builder.add_node(name_of, "end")
    builder.add_edge("one", "end")
    builder.add_edge("two", "end")
    return builder.build()
