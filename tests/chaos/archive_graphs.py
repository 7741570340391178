"""A graph whose runs are archived: a graph inside it, a map, a loop of a failing node, and a large value."""

from __future__ import annotations

from runner import GraphBuilder, RetryPolicy, graph


def flaky(ctx):
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return {"attempt": ctx.attempt, "text": "\x00é"}


@graph("report")
def report():
    inner = GraphBuilder()
    inner.add_node(lambda ctx: "y" * 2_000_000, "large")
    builder = GraphBuilder()
    builder.add_node(flaky, "flaky", retry=RetryPolicy(max_attempts=2, backoff=0.01))
    builder.add_node(inner.build(), "inner")
    builder.add_map(lambda ctx: ctx.task * 2, "map", over=lambda ctx: [1, 2, 3])
    builder.add_node(lambda ctx: "never", "skipped")
    builder.add_edge("flaky", "inner")
    builder.add_edge("flaky", "map")
    builder.add_edge("flaky", "skipped", condition=lambda state: False)
    return builder.build()
