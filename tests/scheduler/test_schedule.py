"""Joins, dead paths and failures: what becomes ready, and what is skipped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.definition.model import Definition, EdgeSpec, FailurePolicy, Join, NodeSpec
from runner.definition.topology import topology
from runner.records.run import Status
from tests.contract.store.manual_worker import shape
from tests.scheduler.playing import Play, by_visit

DIAMOND = "a>b a>c b>d c>d"


@pytest.mark.parametrize(
    ("edges", "decided", "order", "end"),
    [
        ("a", {}, "a", "completed"),
        ("a>b b>c", {}, "a b c", "completed"),
        ("a>b b>c", {"a": "0"}, "a", "completed: b skipped, c skipped"),
        (DIAMOND, {}, "a b c d", "completed"),
        (DIAMOND, {"a": "10"}, "a b d", "completed: c skipped"),
        (DIAMOND, {"b": "0"}, "a b c d", "completed"),
        (DIAMOND, {"b": "0", "c": "0"}, "a b c", "completed: d skipped"),
        (DIAMOND, {"a": "00"}, "a", "completed: b skipped, c skipped, d skipped"),
        ("a>b a>d b>c c>d", {"a": "01"}, "a d", "completed: b skipped, c skipped"),
        ("a>b a>c b>c", {"b": "0"}, "a b c", "completed"),
        ("a>x x>y a>y y>z", {"x": "0", "a": "10"}, "a x", "completed: y skipped, z skipped"),
    ],
)
def test_a_join_waits_for_what_may_still_come(edges, decided, order, end):
    """A node runs when every edge has arrived and one is live; when all are dead it is skipped."""
    play = Play(shape(edges), by_visit(**decided))

    assert (play.order, play.end) == (order, end)


@pytest.mark.parametrize(
    ("decided", "order", "end"),
    [
        ({}, "a b c d", "completed"),
        ({"b": "0"}, "a b c d", "completed"),
        ({"a": "01"}, "a c d", "completed: b skipped"),
        ({"b": "0", "c": "0"}, "a b c", "completed: d skipped"),
    ],
)
def test_a_join_of_any_runs_once(decided, order, end):
    """A node with join "any" runs at its first live edge and is skipped only when all are dead."""
    play = Play(shape(DIAMOND, any_join=["d"]), by_visit(**decided))

    assert (play.order, play.end) == (order, end)


def test_a_join_of_any_does_not_wait():
    """A node with join "any" is ready while other edges of it are still on their way."""
    play = Play(shape("a>d b>c c>d", any_join=["d"]), by_visit())

    assert play.order == "a b d c"
    assert play.inputs["d", 1] == [("a", 1)]


def test_an_entry_point_that_others_lead_to_waits_for_them_too():
    """The start is one arrival among the others at an entry point."""
    assert Play(shape("a>b b>c", entries=["a", "b"]), by_visit()).order == "a b c"
    assert Play(shape("a>b b>c", entries=["a", "b"]), by_visit(a="0")).order == "a b c"


def test_two_edges_between_two_nodes_are_two_arrivals():
    """Parallel edges each arrive; the upstream output is given once."""
    play = Play(shape("a>b a>b"), by_visit(a="01"))

    assert (play.order, play.inputs["b", 1]) == ("a b", [("a", 1)])


@pytest.mark.parametrize(
    ("policy", "order", "end"),
    [
        ("fail_fast", "a", "failed: b failed, c cancelled"),
        ("continue", "a c e", "failed: b failed, d skipped"),
    ],
)
def test_a_failure_stops_the_run_or_its_branch(policy, order, end):
    """Under fail_fast nothing new begins after a failure; under continue only its branch dies."""
    play = Play(shape("a>b a>c b>d d>e c>e", policy=policy), by_visit(), fails=frozenset("b"))

    assert play.end == end
    assert play.order == order


@st.composite
def acyclic(draw):
    """Draw a graph without cycles, and for each node the edges that it takes."""
    size = draw(st.integers(1, 8))
    names = "abcdefgh"[:size]
    pairs = draw(
        st.lists(
            st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)),
            max_size=14,
            unique=True,
        )
    )
    edges = [(names[low], names[high]) for low, high in pairs if low < high]
    reached = {target for _, target in edges}
    definition = Definition(
        id="g",
        nodes={
            name: NodeSpec(
                name, executor=None, kind="function", join=draw(st.sampled_from(Join))
            )
            for name in names
        },
        edges=tuple(EdgeSpec(*edge) for edge in edges),
        entries=tuple(name for name in names if name not in reached),
        policy=FailurePolicy.CONTINUE,
    )
    return topology(definition), {
        name: draw(st.text("01", min_size=14, max_size=14)) for name in names
    }


def expected(graph, decided, fails):
    """Work out who runs without any scheduling: a node runs when an edge to it is live."""
    runs = {}
    for name in sorted(graph.nodes):
        live = name in graph.entries or any(
            runs[edge.source]
            and edge.source not in fails
            and decided[edge.source][edge.position] == "1"
            for edge in graph.incoming[name]
        )
        runs[name] = live
    return {
        name: Status.SKIPPED
        if not live
        else Status.FAILED
        if name in fails
        else Status.COMPLETED
        for name, live in runs.items()
    }


@pytest.mark.slow
@given(drawn=acyclic(), data=st.data())
def test_who_runs_depends_on_the_edges_taken_alone(drawn, data):
    """In whatever order visits end: a node runs exactly when an edge to it was taken, else it is skipped."""
    graph, decided = drawn
    fails = frozenset(data.draw(st.sets(st.sampled_from(sorted(graph.nodes)), max_size=2)))
    play = Play(
        graph,
        lambda node, _: decided[node],
        choose=lambda count: data.draw(st.integers(0, count - 1)),
        fails=fails,
    )

    snapshot = play.worker.read(play.run_id)
    assert {name: record.status for name, record in snapshot.nodes.items()} == expected(
        graph, decided, fails
    )
    assert snapshot.record.status is (
        Status.FAILED if snapshot.record.failed else Status.COMPLETED
    )
    for (name, _), inputs in play.inputs.items():
        if graph.nodes[name].join is Join.ALL:
            live = [edge.source for edge in graph.incoming[name] if taken(snapshot, edge)]
            assert [source for source, _ in inputs] == list(dict.fromkeys(live))


def taken(found, edge):
    """Tell whether an edge was taken, from the record of its source."""
    return found.nodes[edge.source].edges[edge.position : edge.position + 1] == "1"
