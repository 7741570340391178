"""Branches run side by side; a join says what a node waits for; a condition says which way to go."""

from __future__ import annotations

from runner import GraphBuilder


def named(ctx):
    return ctx.node_id


def gather(ctx):
    return sorted(ctx.inputs)


def graph(*edges, join="all"):
    builder = GraphBuilder()
    for name in ("start", "left", "right"):
        builder.add_node(named, name)
    builder.add_node(gather, "end", join=join)
    for edge in edges:
        builder.add_edge(*edge)
    return builder.build()


def test_a_node_with_two_edges_waits_for_both():
    """The default join is `all`: `end` runs once, after `left` and `right`."""
    result = graph(("start", "left"), ("start", "right"), ("left", "end"), ("right", "end"))(
        "task"
    )

    assert result.results["end"].output == ["left", "right"]


def test_a_condition_closes_a_way():
    """An edge whose condition is false is dead. What only dead edges lead to is skipped."""
    edges = (
        ("start", "left"),
        ("start", "right", lambda state: False),
        ("left", "end"),
        ("right", "end"),
    )
    result = graph(*edges)("task")

    assert result.results["right"].status == "skipped"
    assert result.results["end"].output == ["left"]


def test_a_condition_reads_results():
    """A condition sees the results so far, at the moment when its source completes."""

    def is_left(state):
        return state.results["left"].output == "left"

    result = graph(
        ("start", "left"), ("start", "right"), ("left", "end", is_left), ("right", "end")
    )("task")

    assert result.results["end"].output == ["left", "right"]


def test_the_first_may_be_enough():
    """With `join="any"` a node runs at the first arrival, and only once."""
    edges = ("start", "left"), ("start", "right"), ("left", "end"), ("right", "end")
    result = graph(*edges, join="any")("task")

    assert result.execution_order.count("end") == 1
