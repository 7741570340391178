"""A graph whose run fails after two of its nodes, which have undos."""

from __future__ import annotations

from runner import GraphBuilder, graph
from tests.celery.graphs import name_of, pid_and_gate


def ship(ctx):
    raise ValueError("no such address")


@graph("saga")
def saga():
    builder = GraphBuilder()
    builder.add_node(name_of, "book", undo=name_of)
    builder.add_node(name_of, "charge", undo=pid_and_gate)
    builder.add_node(ship)
    builder.add_edge("book", "charge")
    builder.add_edge("charge", "ship")
    return builder.build()
