"""Small graphs for the tests of the test kit."""

from __future__ import annotations

from itertools import pairwise

from runner import GraphBuilder


def ask(ctx):
    return ctx.interrupt(
        "approve", reason=ctx.task, expires_in=3_600, on_expire={"response": "nobody"}
    )


def pay(ctx):
    return f"paid for {ctx.inputs['ask']}"


def graph_of(*functions, **options):
    builder = GraphBuilder()
    for function in functions:
        builder.add_node(function, **options)
    for before, after in pairwise(functions):
        builder.add_edge(before.__name__, after.__name__)
    return builder.build()
