"""Whole graphs on the Redis store, as in process: what the scripts must not trip over."""

from __future__ import annotations

import functools

import pytest

from runner import GraphBuilder, Status
from runner.store.redis.store import RedisStore
from tests.graphs import Bench, answer_all, ident, single, wired


@pytest.fixture
def on_redis(redis_url):
    """Make a bench whose store is Redis, with the test's clock."""

    def make(graph):
        return Bench(graph, functools.partial(_open, redis_url))

    return make


def _open(url, clock):
    return RedisStore(url, clock=clock, push=False)


def inputs(ctx):
    return dict(ctx.inputs)


def visit(ctx):
    return ctx.visit


def test_a_loop_whose_counts_return_to_nothing(on_redis):
    """A node that repeats itself before the loop around it has begun leaves that loop's record readable."""
    graph = wired(
        {"a": ident, "c": ident, "d": visit},
        "a c",
        "a d",
        "c d",
        ("d d", lambda state: state.visit < 2),
        ("d c", lambda state: state.visit == 2),
        d={"join": "any"},
    ).build()
    bench = on_redis(graph).start()
    bench.deliver("a")
    bench.deliver("d")

    assert bench.finish().status is Status.COMPLETED


SHAPES = {
    "chain": ({"a": ident, "b": ident, "c": inputs}, ["a b", "b c"]),
    "dead path": (
        {"a": ident, "b": ident, "c": inputs},
        [("a b", lambda state: False), "b c", "a c"],
    ),
    "loop": ({"a": visit, "b": visit}, ["a b", ("b a", lambda state: state.visit < 3)]),
    "nested loops": (
        {"a": visit, "b": visit, "c": ident},
        [
            "a b",
            ("b b", lambda state: state.visit % 2),
            ("b a", lambda state: state.visit in {2, 4}),
            ("b c", lambda state: state.visit == 6),
        ],
    ),
    "questions": (
        {
            "a": lambda ctx: [ctx.interrupt("one"), ctx.interrupt("two")],
            "b": inputs,
            "c": ident,
        },
        ["a b", "c b"],
    ),
    "large results": (
        {
            "a": lambda ctx: "x" * 100_000,
            "b": single(inputs),
            "c": lambda ctx: [ctx.input_text, ctx.inputs],
        },
        ["a b", "b c", "a c"],
    ),
    "inner graph": (
        {
            "a": wired({"x": lambda ctx: ctx.interrupt("ok?"), "y": inputs}, "x y").build(),
            "b": inputs,
        },
        ["a b"],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_graph_ends_alike_on_both_stores(on_redis, name):
    """The same graph has the same statuses, outputs and order on Redis as in memory."""
    nodes, edges = SHAPES[name]
    graph = wired(nodes, *edges).set_entry_point("a")
    graph = (graph.set_entry_point("c") if name == "questions" else graph).build()
    expected = graph("task")
    while expected.interrupts:
        expected = graph(answer_all(expected))

    bench = on_redis(graph).start()
    found = bench.finish()
    while found.interrupts:
        bench.answer()
        found = bench.finish()

    assert (found.status, found.execution_order) == (expected.status, expected.execution_order)
    assert {node: result.output for node, result in found.results.items()} == {
        node: node_result.output for node, node_result in expected.results.items()
    }


def test_a_graph_inside_a_loop_runs_once_a_round(on_redis):
    """Each visit of a graph's node has a child run of its own, in memory and on Redis."""
    builder = GraphBuilder()
    builder.add_node(wired({"x": ident, "y": inputs}, "x y").build(), "a")
    builder.add_node(visit, "b")
    builder.add_edge("a", "b")
    builder.add_edge("b", "a", lambda state: state.results["b"].output < 2)
    builder.set_entry_point("a").set_max_node_executions(9)
    graph = builder.build()
    bench = on_redis(graph).start()

    for found in (graph("task"), bench.finish()):
        assert found.status is Status.COMPLETED
        assert found.execution_order == ["a", "b", "a", "b"]
    assert len(bench.store.children(bench.run_id)) == 2
