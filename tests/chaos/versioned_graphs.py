"""Three versions of one graph: which one a worker has is decided by its environment."""

from __future__ import annotations

import os

from runner import Graph, GraphBuilder, graph

VERSION = os.environ.get("TEST_VERSION", "old")


def first(ctx):
    return f"{VERSION} first"


def ask(ctx):
    return [VERSION, ctx.once("effect", lambda: VERSION), ctx.interrupt("approve")]


def last(ctx):
    return [VERSION, next(iter(ctx.inputs.values()))]


@graph("versioned")
def versioned() -> Graph:
    """The new version has another name for the waiting node, the other one only another `version`."""
    name = "approval" if VERSION == "new" else "ask"
    builder = GraphBuilder()
    builder.add_node(first, "first")
    builder.add_node(ask, name, version="2" if VERSION == "other" else "")
    builder.add_node(last, "last")
    builder.add_edge("first", name)
    builder.add_edge(name, "last")
    return builder.build()
