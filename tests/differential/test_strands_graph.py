"""Graphs of the released `strands-agents` and graphs here, side by side.

Rules are those that Strands' own graphs follow: which nodes run, the form of inputs, questions, limits,
events. Where this library differs on purpose, both sides are asserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.integrations.extras import need

need("strands", "strands")

from tests.differential.graph_sides import GraphRecord, Plot, both  # noqa: E402 - only where the extra is installed
from tests.differential.sides import use  # noqa: E402

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("default"),  # another library's warnings are not ours to mend
]


def plot(edges: str, **options) -> Plot:
    """Describe a graph by its edges, "ab bc"; each node is an agent that says its name and visit."""
    pairs = [(*pair,) for pair in edges.split()]
    names = dict.fromkeys("".join(edges.split()))
    nodes = {
        name: [f"{name}{visit}" for visit in range(1, 20)] for name in names
    } | options.pop("nodes", {})
    conditions = options.pop("conditions", {})
    links = [
        (*pair, *([conditions["".join(pair)]] if "".join(pair) in conditions else []))
        for pair in pairs
    ]
    entries = options.pop("entries", next(iter(nodes)))
    return Plot(nodes, [link for link in links if len(link) > 1], tuple(entries), **options)


def play(make, *steps) -> list[list[GraphRecord]]:
    """Play a graph on both sides: texts and lists are tasks, mappings are answers. Give all that happened."""
    return [
        [
            side.answer(**step) if isinstance(step, Mapping) else side.play(step)
            for step in steps
        ]
        for side in both(make)
    ]


def same(make, *steps) -> list[GraphRecord]:
    """Play a graph on both sides and expect no difference; give what happened."""
    theirs, ours = play(make, *(steps or ("task",)))
    for step, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        assert asdict(other) == asdict(one), f"step {step}"
    return ours


def sections(message) -> list[str]:
    """Name the nodes whose output a message shows."""
    texts = [block.get("text", "") for block in message["content"]]
    return [
        text.removeprefix("\nFrom ").rstrip(":") for text in texts if text.startswith("\nFrom ")
    ]


def visits(state, node: str) -> int:
    """Count the completed visits of a node; the order of Strands has node objects."""
    return sum(getattr(run, "node_id", run) == node for run in state.execution_order)


# -- which nodes run, and when ---------------------------------------------------------------------------

SHAPES = [
    ("G9: all entry points begin", {"edges": "ac bc", "entries": "ab"}, "abc"),
    (
        "G10: a join of equal depth runs once, with both inputs",
        {"edges": "sa sb ad bd"},
        "abds",
    ),
    (
        "G10: one true edge is enough",
        {"edges": "ac bc", "entries": "ab", "conditions": {"ac": lambda state: False}},
        "abc",
    ),
    (
        "G10: no true edge, no visit",
        {"edges": "ab bc", "conditions": {"ab": lambda state: False}},
        "a",
    ),
    (
        "G12: a cycle is visits, as many as its condition lets",
        {
            "edges": "ab ba bc",
            "conditions": {
                "ba": lambda state: visits(state, "b") < 3,
                "bc": lambda state: visits(state, "b") >= 3,
            },
        },
        "aaabbbc",
    ),
    (
        "G4: an entry point may have edges into it",
        {
            "edges": "ab ba",
            "entries": "a",
            "conditions": {"ba": lambda state: visits(state, "a") < 2},
        },
        "aabb",
    ),
    (
        "G2: two edges between two nodes are one or the other",
        {"edges": "ab ab", "conditions": {"ab": lambda state: "a" in state.results}},
        "ab",
    ),
    ("G31: what is done within the limit has not failed", {"edges": "ab", "limit": 2}, "ab"),
]


@pytest.mark.parametrize(
    ("rule", "described", "expected"), SHAPES, ids=[rule for rule, _, _ in SHAPES]
)
def test_shapes(rule, described, expected):
    """The same nodes run as often, are shown the same inputs, and end with the same results."""
    (outcome,) = same(
        lambda: plot(**{**described, "conditions": dict(described.get("conditions", {}))})
    )

    assert outcome.ran == expected
    assert outcome.status == (
        "failed" if "G31" in rule and "within" not in rule else "completed"
    )


def test_a_join_of_unequal_depth():
    """G11: in Strands it runs with each batch that one of its sources is in; here once, after both."""
    theirs, ours = (side[0] for side in play(lambda: plot("ad ab bd"), "task"))

    assert (theirs.ran, ours.ran) == ("abdd", "abd")
    assert ours.requests["d"] == theirs.requests["d"][1:]
    assert sections(ours.requests["d"][0]) == ["a", "b"]


def test_a_limit_is_looked_at_before_every_node():
    """G31: in Strands between batches, so that one may pass it. Here the run stops where one node would."""
    theirs, ours = (
        side[0] for side in play(lambda: plot("sa sb sc ad bd cd", limit=2), "task")
    )

    assert (theirs.ran, ours.ran) == ("abcs", "s")
    assert ours.status == theirs.status == "failed"


def test_conditions_may_ask_for_the_state_of_the_call():
    """G3: a condition with a parameter `invocation_state` is given it."""

    def wanted(state, invocation_state):
        return invocation_state.get("never") is None

    (outcome,) = same(lambda: plot("ab", conditions={"ab": wanted}))

    assert outcome.ran == "ab"


def test_conditions_see_results():
    """G3: by the id of the node, with their text."""
    (outcome,) = same(
        lambda: plot(
            "ab bc", conditions={"bc": lambda state: str(state.results["b"].result) == "b1\n"}
        )
    )

    assert outcome.ran == "abc"


def test_a_condition_that_raises_fails_the_graph():
    """G3: Strands raises it from the call; here the run has failed and says which edge."""
    theirs, ours = (
        side[0]
        for side in play(lambda: plot("ab bc", conditions={"bc": lambda state: 1 / 0}), "task")
    )

    assert theirs.error.startswith("ZeroDivisionError")
    assert (ours.error, ours.status) == ("", "failed")
    assert ours.ran == theirs.ran == "ab"


# -- what nodes are told ---------------------------------------------------------------------------------


def test_the_form_of_inputs():
    """G17: original task, then a section per source; a task in blocks keeps its blocks."""
    (record,) = same(lambda: plot("ac bc", entries="ab"))
    assert record.requests["c"][0]["content"] == [
        {"text": "Original Task: task"},
        {"text": "\nInputs from previous nodes:"},
        {"text": "\nFrom a:"},
        {"text": "  - Agent: a1"},
        {"text": "\nFrom b:"},
        {"text": "  - Agent: b1"},
    ]

    (record,) = same(lambda: plot("ab"), [{"text": "one"}])
    assert record.requests["b"][0]["content"][:2] == [
        {"text": "Original Task:"},
        {"text": "one"},
    ]


def test_inputs_of_a_graph_inside():
    """G17: in Strands a section of a graph has a line for each of its agents; here it has its output."""
    inner = {"edges": "xy", "entries": "x"}
    theirs, ours = (
        side[0] for side in play(lambda: plot("sg gc", nodes={"g": plot(**inner)}), "task")
    )

    section = {"text": "\nFrom g:"}
    lines = [{"text": "  - Agent: x1"}, {"text": "  - Agent: y1"}]
    assert theirs.requests["c"][0]["content"][-3:] == [section, *lines]
    assert ours.requests["c"][0]["content"][-2:] == [section, lines[1]]


@pytest.mark.parametrize("reset", [False, True])
def test_memory_of_a_node_that_runs_again(reset):
    """G32, G33: an agent remembers its earlier visits, unless `reset_on_revisit` says else."""

    def make():
        # Without memory the script begins anew at each visit.
        return plot(
            "ab ba", reset=reset, conditions={"ba": lambda state: visits(state, "b") < 2}
        )

    (outcome,) = same(make)

    assert outcome.results == (
        {"a": "a1\n", "b": "b1\n"} if reset else {"a": "a2\n", "b": "b2\n"}
    )


# -- people ----------------------------------------------------------------------------------------------


def ask(ctx) -> str:
    """Ask a person."""
    return "said " + ctx.interrupt("go", reason="because")


def asks(name: str):
    """Make a tool that asks under a name of its own."""

    def tool(ctx) -> str:
        """Ask a person."""
        return f"said {ctx.interrupt(name, reason=name)}"

    tool.__name__ = f"ask_{name}"
    return tool


def test_what_follows_an_agent_that_asks_waits():
    """G14, G35, G38, G45, G46: what runs beside it completes; what follows waits for the answer."""
    nodes = {"x": [use("ask", "t1"), "x done"]}
    first, last = same(
        lambda: plot("sx sy yz xz", nodes=nodes, tools=[ask]), "task", {"go": "yes"}
    )

    assert (first.status, first.ran, first.interrupts) == (
        "interrupted",
        "sxy",
        [("go", "because")],
    )
    assert "After x" not in first.fired
    assert (last.status, last.ran) == ("completed", "xz")
    assert sections(last.requests["z"][0]) == ["x", "y"]


def test_some_of_the_answers():
    """G47: what isn't answered stays open. Strands starts its node all the same; here it isn't touched."""
    nodes = {"x": [use("ask_one", "t1"), "x done"], "y": [use("ask_two", "t2"), "y done"]}
    theirs, ours = play(
        lambda: plot("xz yz", entries="xy", nodes=nodes, tools=[asks("one"), asks("two")]),
        "task",
        {"one": 1},
        {"two": 2},
    )

    for one, other in zip(theirs, ours, strict=True):
        assert (other.status, other.interrupts, other.results) == (
            one.status,
            one.interrupts,
            one.results,
        )
    assert (theirs[1].ran, ours[1].ran) == ("xy", "x")
    assert ours[2].ran == theirs[2].ran == "yz"


def gate(*questions: str):
    """Make callbacks that ask before node "x", one question after another."""

    def callback(event):
        if event.node_id == "x":
            for name in questions:
                event.interrupt(name, reason=name)

    return [("BeforeNodeCallEvent", callback)]


def test_a_callback_that_asks_before_a_node():
    """G37, G46, G48: the node doesn't run; callbacks run again with the answer, and may ask more."""
    steps = same(
        lambda: plot("sx sy xz yz", hooks=gate("one", "two")), "task", {"one": 1}, {"two": 2}
    )

    assert [step.status for step in steps] == ["interrupted", "interrupted", "completed"]
    assert [step.interrupts for step in steps] == [[("one", "one")], [("two", "two")], []]
    assert [step.fired.count("Before x") for step in steps] == [1, 1, 1]
    assert [step.fired.count("After x") for step in steps] == [0, 0, 1]
    assert steps[2].ran == "xz"


def test_questions_of_a_callback_and_of_the_agent():
    """G48: first the callback's, then the agent's; the callback is not asked again."""
    nodes = {"x": [use("ask", "t1"), "x done"]}
    steps = same(
        lambda: plot("x xz", nodes=nodes, tools=[ask], hooks=gate("may")),
        "task",
        {"may": 1},
        {"go": "yes"},
    )

    assert [step.interrupts for step in steps] == [[("may", "may")], [("go", "because")], []]


def test_a_question_in_a_graph_inside():
    """G38, G46: it is the outer graph's, and its answer reaches the graph inside. Strands starts the
    outer node again for it; here only what asked starts again.
    """
    inner = plot("xy", nodes={"x": [use("ask", "t1"), "x done"]})
    theirs, ours = play(
        lambda: plot("sg sy gz", nodes={"g": inner}, tools=[ask]), "task", {"go": "yes"}
    )
    first, last = ours

    # The graph inside gets its input as data here, and the text of an agent's prompt there.
    for record, prompt in ((first, "s1"), (theirs[0], "  - Agent: s1")):
        assert record.requests.pop("g/x")[0]["content"][-1] == {"text": prompt}
    assert last.requests.pop("g/y")[0]["content"][0] == {"text": "Original Task: s1"}
    assert theirs[1].requests.pop("g/y")[0]["content"][1] == {"text": "Original Task: task"}
    assert asdict(first) == asdict(theirs[0])
    assert sorted([*last.fired, "Before g"]) == theirs[1].fired
    # What follows is shown the output of the graph here, and the text of each of its agents there.
    for record in (last, theirs[1]):
        assert record.requests.pop("z")[0]["content"][-1] == {"text": "  - Agent: y1"}
    assert {**asdict(last), "fired": []} == {**asdict(theirs[1]), "fired": []}
    assert (first.status, first.ran, last.ran) == ("interrupted", "gsy", "gz")


def test_a_question_in_a_cycle():
    """B2's shape: a node that waits may lie on a cycle, at any visit. While it waits, Strands still shows
    the result of its visit before; here a node shows its latest visit.
    """
    nodes = {"b": [use("ask", "t1"), "b1", use("ask", "t2"), "b2"]}
    steps = list(
        zip(
            *play(
                lambda: plot(
                    "ab ba",
                    nodes=nodes,
                    tools=[ask],
                    conditions={"ba": lambda state: visits(state, "b") < 2},
                ),
                "task",
                {"go": "one"},
                {"go": "two"},
            ),
            strict=True,
        )
    )

    for theirs, ours in steps:
        assert (ours.status, ours.ran, ours.requests) == (
            theirs.status,
            theirs.ran,
            theirs.requests,
        )
    assert [ours.ran for _, ours in steps] == ["ab", "abb", "b"]
    assert [sorted(step.results) for step in steps[1]] == [["a", "b"], ["a"]]
    assert steps[-1][1].results == steps[-1][0].results


# -- callbacks, failures ---------------------------------------------------------------------------------


def test_a_cancelled_node_fails_the_graph():
    """G25: Strands raises from the call; here the result has failed. Both tell the text, run nothing more."""

    def refuse(event):
        event.cancel_node = "not today" if event.node_id == "b" else False

    theirs, ours = (
        side[0]
        for side in play(lambda: plot("ab bc", hooks=[("BeforeNodeCallEvent", refuse)]), "task")
    )

    assert theirs.error == "RuntimeError: not today"
    assert (ours.error, ours.status) == ("", "failed")
    assert ours.ran == theirs.ran == "ab"
    assert ours.fired == theirs.fired


def test_a_question_beats_a_cancel():
    """G37: when one callback asks and another cancels, the question is asked."""

    def refuse(event):
        event.cancel_node = event.node_id == "x"

    (outcome,) = same(lambda: plot("x", hooks=[("BeforeNodeCallEvent", refuse), *gate("may")]))

    assert (outcome.status, outcome.interrupts) == ("interrupted", [("may", "may")])


def test_a_failure_beside_a_question_wedges_nothing():
    """B1: in Strands the graph can't be used any more; here the question is withdrawn and the run is over."""

    def refuse(event):
        event.cancel_node = event.node_id == "y"

    def make():
        nodes = {"x": [use("ask", "t1"), "x done"]}
        return plot(
            "x y",
            entries="xy",
            nodes=nodes,
            tools=[ask],
            hooks=[("BeforeNodeCallEvent", refuse)],
        )

    _, ours = both(make)
    first = ours.play("task")

    assert (first.status, first.interrupts) == ("failed", [])
    assert ours.play("again").status == "failed"


# -- any graph -------------------------------------------------------------------------------------------


@st.composite
def trees(draw) -> tuple[str, list[str]]:
    """Draw edges of a tree, and those of them whose condition never holds."""
    pool = "abcdef"[: draw(st.integers(1, 6))]
    pairs = [draw(st.sampled_from(pool[:place])) + pool[place] for place in range(1, len(pool))]
    return " ".join(["a", *pairs]), [
        pair for pair in pairs if draw(st.sampled_from([False, False, True]))
    ]


@hypothesis.given(trees())
@hypothesis.settings(
    max_examples=max(10, hypothesis.settings.default.max_examples // 10),
    suppress_health_check=list(hypothesis.HealthCheck),
    deadline=None,
)
def test_any_tree(drawn):
    """Where no node has two edges into it, random graphs run the same nodes and show them the same."""
    edges, dead = drawn

    same(lambda: plot(edges, conditions=dict.fromkeys(dead, lambda state: False)))
