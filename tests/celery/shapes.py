"""Shapes that graphs of several modules have: each module puts nodes of its own on them."""

from __future__ import annotations

from runner import Graph, GraphBuilder


def drawn(*edges, work, **nodes) -> GraphBuilder:
    """Draw edges between nodes that all do `work`, but for `nodes`.

    An edge is a word of two letters, or a pair of names.
    """
    builder = GraphBuilder()
    for node in dict.fromkeys(node for edge in edges for node in edge):
        builder.add_node(nodes.get(node, work), node)
    for source, target in edges:
        builder.add_edge(source, target)
    return builder


def each_of(items, item, last: str, **options) -> Graph:
    """Make a list, then a map over it, then a last node that counts what that gave."""
    builder = GraphBuilder()
    builder.add_node(items, "list")
    builder.add_map(item, "m", **options)
    builder.add_node(lambda ctx: len(ctx.inputs["m"]), last)
    builder.add_edge("list", "m")
    builder.add_edge("m", last)
    return builder.build()


def repeated(rounds: int, last: str) -> Graph:
    """Write and review until there were as many rounds; then a last node says how many."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.visit, "write")
    builder.add_node(lambda ctx: ctx.inputs["write"], "review")
    builder.add_node(lambda ctx: ctx.inputs["review"], last)
    builder.add_edge("write", "review")
    builder.add_edge("review", "write", lambda state: state.results["review"].output < rounds)
    builder.add_edge("review", last, lambda state: state.results["review"].output >= rounds)
    builder.set_entry_point("write")
    return builder.build()
