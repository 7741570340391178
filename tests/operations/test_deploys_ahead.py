"""What a deploy would do to runs under way can be known before it."""

from __future__ import annotations

import pytest

from runner import GraphBuilder
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.deploys import held
from tests.graphs import Bench, ident, wired


def ask(ctx):
    return ctx.interrupt("approve")


BEFORE = {"a": ident, "b": ask, "c": ident}


EVERY = [
    "it was a function and is a graph now",
    'its version was "" and is "2" now',
    "its join was all and is any now",
    "its resume was all and is each now",
    "the edge from b to c is gone",
    "the edge from b to d is new",
]
"""What the differences of one node are told as."""


@pytest.fixture
def waiting(in_redis):
    """Start runs whose node b waits for a person."""

    def start(*edges, **nodes):
        graph = wired(nodes or BEFORE, *(edges or ("a b", "b c"))).build()
        bench = Bench(graph, in_redis).start()
        bench.finish()
        return bench

    return start


def ahead(bench, graph):
    """Name what another version of the graph would hold: node, status, reason."""
    registry = Registry()
    registry.add("bench", lambda: graph)
    return [
        (change.node, change.status, change.reason)
        for change in held(bench.store, registry, ["bench"])
    ]


def test_the_same_graph_holds_nothing(waiting):
    """Where the shape is what it was, no run is even looked at."""
    assert ahead(waiting(), wired(BEFORE, "a b", "b c").build()) == []


def test_each_difference_is_named(waiting):
    """Who reads the list sees what to change back: the node, where it stands, and each thing that differs."""
    now = GraphBuilder()
    now.add_node(ident, "a")
    now.add_node(wired({"x": ask}).build(), "b", version="2", join="any", resume="each")
    now.add_node(ident, "d")
    now.add_edge("a", "b")
    now.add_edge("b", "d")

    assert ahead(waiting(), now.build()) == [
        (
            "b",
            "waiting",
            "; ".join(EVERY),
        ),
        ("c", "pending", "the graph has no such node now"),
    ]


def test_a_condition_that_came_or_went_is_a_difference(waiting):
    """An edge that had no condition and has one now leads elsewhere, so its ends are other nodes."""
    now = wired(BEFORE, "a b", ("b c", lambda state: True)).build()

    assert ahead(waiting(), now) == [
        ("b", "waiting", "its edges have other conditions or another order"),
        ("c", "pending", "its edges have other conditions or another order"),
    ]


def test_what_has_ended_does_not_matter(waiting):
    """Nodes that have completed are not claimed again, so it is no matter how they differ."""
    assert ahead(waiting(), wired({**BEFORE, "z": ident}, "a b", "b c", "z a").build()) == []


def test_in_a_loop_that_goes_on_completed_nodes_come_again(in_redis):
    """A node that the next round visits is named although it has completed in this one."""

    def graph(version):
        builder = wired(
            {"a": ident, "b": ask}, "a b", ("b a", lambda state: False), a={"version": version}
        )
        return builder.set_entry_point("a").build()

    bench = Bench(graph("1"), in_redis).start()
    bench.finish()
    now = graph("2")

    (change,) = ahead(bench, now)

    assert change == ("a", "completed", 'its version was "1" and is "2" now')
    bench.answer()
    bench.finish()
    assert ahead(bench, now) == []


def test_graphs_inside_are_looked_at_where_they_wait(in_redis):
    """The run of the graph inside is named, with its own node."""

    def graph(version):
        inner = wired({"x": ask}, x={"version": version}).build()
        return wired({"a": ident, "b": inner}, "a b").build()

    bench = Bench(graph("1"), in_redis).start()
    bench.finish()
    registry = Registry()
    registry.add("bench", lambda: graph("2"))

    (change,) = held(bench.store, registry, ["bench"])

    assert (change.graph_id, change.node, change.status) == ("bench/b", "x", "waiting")
    assert change.run_id in bench.store.children(bench.run_id)


def test_what_is_told_is_what_happens(waiting):
    """The node that was named is the one that is held after the deploy, and no other."""
    bench = waiting()
    now = wired(BEFORE, "a b", "b c", c={"version": "2"}).build()
    changes = ahead(bench, now)

    registry = Registry()
    registry.add("bench", lambda: now)
    bench.engine = Engine(bench.store, bench, registry)
    bench.engine.publish(["bench"])
    bench.answer()
    bench.finish_all()

    record = bench.store.read(bench.run_id).nodes
    assert (
        [node for node, _, _ in changes]
        == ["c"]
        == [name for name in record if record[name].held]
    )
    assert ahead(bench, now) == [("c", "waiting", 'its version was "" and is "2" now')]


@pytest.mark.full
def test_many_waiting_runs_cost_one_look_at_each_shape(waiting):
    """Runs that began with one shape are judged together: the shape is read once for all of them."""

    class Counting:
        def __init__(self, store):
            self.store, self.read = store, 0

        def __getattr__(self, name):
            return getattr(self.store, name)

        def topology(self, graph_id, fingerprint):
            self.read += 1
            return self.store.topology(graph_id, fingerprint)

    bench = waiting()
    for _ in range(200):
        bench.start()
    bench.store = Counting(bench.store)

    changes = ahead(bench, wired(BEFORE, "a b", "b c", b={"version": "2"}).build())

    assert len(changes) == 201
    assert bench.store.read == 1
