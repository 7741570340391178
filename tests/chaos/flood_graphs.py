"""A graph that asks hundreds of questions at once, one with a queue of its own, and graphs inside graphs."""

from __future__ import annotations

from runner import GraphBuilder, graph
from tests.celery.graphs import name_of
from tests.celery.shapes import each_of

ASKED = 200


@graph("asks_many")
def asks_many():
    return each_of(lambda ctx: list(range(ASKED)), lambda ctx: ctx.interrupt("each"), "count")


@graph("urgent")
def urgent():
    """A short graph whose nodes have a queue of their own."""
    builder = GraphBuilder()
    for node in "abc":
        builder.add_node(name_of, node, queue="urgent")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    return builder.build()
