"""Loops of every shape: who runs again, what is forgotten, what leaves."""

from __future__ import annotations

from collections import Counter

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.definition.cycles import reach
from runner.definition.model import (
    Definition,
    EdgeKind,
    EdgeSpec,
    FailurePolicy,
    Join,
    NodeSpec,
)
from runner.definition.topology import topology
from runner.errors import DefinitionError
from tests.contract.store.manual_worker import shape
from tests.scheduler.playing import Play, by_visit

# Each row: what it shows, the edges, those taken by visit, the order, what did not complete.
SHAPES = [
    ("a node may loop on itself", "a>a a>b", {"a": "10 01"}, "a a b", "completed"),
    ("a loop may end without its exit", "a>b b>a b>c", {"b": "10 00"}, "a b a b", "completed: c skipped"),
    ("a loop may not repeat at all", "a>b b>a b>c", {"b": "01"}, "a b c", "completed"),
    ("an exit and a back edge may both be taken", "a>b b>a b>c", {"b": "11 00"}, "a b c a b", "completed"),
    ("an exit arrives once, at first", "a>b b>a b>c", {"b": "11 11 01"}, "a b c a b a b", "completed"),
    (
        "what a loop feeds outside of it runs once",
        "a>b b>a b>d a>x x>d",
        {"b": "10 01", "a": "11"},
        "a b x a b d",
        "completed",
    ),
    (
        "a branch inside a loop runs again, too",
        "a>b a>c b>d c>d d>a d>e",
        {"d": "10 01"},
        "a b c d a b c d e",
        "completed",
    ),
    (
        "a branch may be dead in one round and live in the next",
        "a>b a>c b>d c>d d>a d>e",
        {"a": "10 01", "d": "10 01"},
        "a b d a c d e",
        "completed: b skipped",
    ),
    (
        "a join inside a loop keeps what comes from outside",
        "s>h s>o o>m h>m m>h m>e",
        {"m": "10 01"},
        "s h o m h m e",
        "completed",
    ),
    (
        "a join inside a loop waits for outside in the first round only",
        "s>h s>o o>p p>m h>m m>h m>e",
        {"m": "10 10 01"},
        "s h o p m h m h m e",
        "completed",
    ),
    ("two back edges are one more round", "a>b a>c b>a c>a b>d c>d", {"b": "10 01", "c": "10 01"},
     "a b c a b c d", "completed"),
    (
        "one of two branches may ask for the next round",
        "a>b a>c b>a c>a c>d",
        {"b": "1 0", "c": "00 01"},
        "a b c a b c d",
        "completed",
    ),
    (
        "an inner loop repeats without its outer loop",
        "a>b b>b b>c c>a c>d",
        {"b": "10 10 01", "c": "01"},
        "a b b b c d",
        "completed",
    ),
    (
        "an outer loop begins its inner loop anew",
        "a>b b>b b>c c>a c>d",
        {"b": "10 01 10 01", "c": "10 01"},
        "a b b c a b b c d",
        "completed",
    ),
    (
        "of two loops that ask the outer one wins",
        "a>b b>b b>a b>c",
        {"b": "110 001"},
        "a b a b c",
        "completed",
    ),
    (
        "an exit of both loops leaves when it is taken",
        "a>b b>b b>a b>c",
        {"b": "101 000"},
        "a b c b",
        "completed",
    ),
    (
        "a node after a dead exit is skipped when the loop ends",
        "a>b b>a b>c c>d a>e e>d",
        {"b": "10 00", "a": "11"},
        "a b e a b d",
        "completed: c skipped",
    ),
    ("an entry point may lie inside a loop", "a>b b>a", {"b": "1 0"}, "a b a b", "completed"),
    (
        "a loop that is skipped ends at once",
        "s>a s>e a>b b>a b>c",
        {"s": "01"},
        "s e",
        "completed: a skipped, b skipped, c skipped",
    ),
    (
        "a loop may begin late, when others have ended",
        "s>t t>u u>a s>a a>b b>a",
        {"b": "1 0"},
        "s t u a b a b",
        "completed",
    ),
    (
        "three loops may lie within one another",
        "a>b b>c c>c c>b c>a c>d",
        {"c": "1000 0100 0010 0001"},
        "a b c c b c a b c d",
        "completed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edges", "decided", "order", "end"),
    [row[1:] for row in SHAPES],
    ids=[row[0] for row in SHAPES],
)
def test_loops_of_every_shape(edges, decided, order, end):
    """Whatever its shape, a loop repeats when it is asked to and is left as its exits were taken."""
    play = Play(shape(edges), by_visit(**decided))

    assert (play.order, play.end) == (order, end)


def test_a_header_gets_the_outputs_that_sent_for_it():
    """A new round's header sees the visits whose back edges asked, beside what came from outside."""
    play = Play(shape("s>a a>b a>c b>a c>a"), by_visit(b="1 0", c="1 0"))

    assert play.inputs["a", 1] == [("s", 1)]
    assert play.inputs["a", 2] == [("s", 1), ("b", 1), ("c", 1)]
    assert play.inputs["b", 2] == [("a", 2)]


def test_a_node_behind_a_loop_gets_the_visit_that_left_it():
    """An exit carries the output of the visit that first took it."""
    play = Play(shape("a>b b>a b>c"), by_visit(b="10 11 01"))

    assert play.inputs["c", 1] == [("b", 2)]


def test_an_entry_point_inside_a_loop_waits_for_its_forward_edges():
    """Only back edges are ignored on the first visit, so a second entry point waits for its edge."""
    play = Play(shape("a>b b>a", entries=["a", "b"]), by_visit(b="1 0"))

    assert play.order == "a b a b"


def test_a_join_of_any_inside_a_loop_runs_once_a_round():
    """Each round forgets who came first in the round before."""
    play = Play(shape("a>b a>c b>d c>d d>a", any_join=["d"]), by_visit(d="1 0"))

    assert play.order == "a b c d a b c d"


def test_the_limit_counts_every_visit():
    """A loop that never ends is stopped by the limit on executions, and says so."""
    play = Play(shape("a>b b>a", max_node_executions=5), by_visit())

    assert play.order == "a b a b a"
    assert (
        play.worker.read(play.run_id).record.reason
        == 'max_node_executions (5) reached before "b"'
    )


def test_a_failure_inside_a_loop_ends_its_round():
    """Under continue a failed node takes no back edge; the loop ends when the others have settled."""
    play = Play(shape("a>b b>a b>c a>d", policy="continue"), by_visit(), fails=frozenset("b"))

    assert (play.order, play.end) == ("a d", "failed: b failed, c skipped")


@st.composite
def looping(draw):
    """Draw any graph that can be built, and the edges that each visit takes; late visits take none back."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=10, unique=True
        )
    )
    onward = {node: [target for source, target in pairs if source == node] for node in names}
    kept = sorted(reach("a", onward))
    definition = Definition(
        id="g",
        nodes={
            name: NodeSpec(name, executor=None, kind="function", join=Join.ALL) for name in kept
        },
        edges=tuple(EdgeSpec(source, target) for source, target in pairs if source in kept),
        entries=("a",),
        policy=FailurePolicy.CONTINUE,
    )
    try:
        graph = topology(definition)
    except DefinitionError:
        hypothesis.reject()
    bits = {
        name: draw(st.lists(st.text("01", min_size=10, max_size=10), min_size=3, max_size=3))
        for name in kept
    }
    return graph, bits


def test_a_loop_repeats_if_it_ends_before_the_loop_around_it_is_asked():
    """A request from beside an inner loop cancels the inner one's: which ends first decides."""
    graph, takes = shape("a>b a>c b>a c>c c>a"), by_visit(b="1 0", c="10 00")

    assert Play(graph, takes).order.count("c") == 2
    assert Play(graph, takes, choose=lambda count: count - 1).order.count("c") == 3


def depends_on_timing(graph, takes, order):
    """Return whether a loop and, from outside of it, one around it were asked to repeat (decision 0002)."""
    visits, asked = Counter(), []
    for node in order.split():
        visits[node] += 1
        taken = zip(takes(node, visits[node]), graph.outgoing[node], strict=False)
        back = [edge.loop for bit, edge in taken if bit == "1" and edge.kind is EdgeKind.BACK]
        asked += [(loop, graph.nodes[node].loops) for loop in back]
    return any(
        outer in graph.loops[inner].outer and inner not in around
        for inner, _ in asked
        for outer, around in asked
    )


@pytest.mark.full
@given(drawn=looping(), data=st.data())
def test_the_order_of_endings_changes_nothing(drawn, data):
    """However the visits of parallel branches interleave, the same visits happen with the same inputs."""
    graph, bits = drawn

    def takes(node, visit):
        return bits[node][visit - 1] if visit <= 3 else "0" * 10

    plain = Play(graph, takes)
    other = Play(graph, takes, choose=lambda count: data.draw(st.integers(0, count - 1)))

    if other.inputs != plain.inputs:
        hypothesis.assume(not depends_on_timing(graph, takes, plain.order))
    assert other.inputs == plain.inputs
    assert other.end == plain.end
    assert sorted(other.order.split()) == sorted(plain.order.split())
