"""Graphs of the released `strands-agents` and graphs here with `compat="strands"`, side by side.

Rules are those that Strands' own graphs follow: batches, joins of any, the form of inputs, questions,
limits, events. Where this library does better on purpose, both sides are asserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.adapters.extras import need

need("strands", "strands")

from tests.differential.graph_sides import Plot, Told, both  # noqa: E402 - only where the extra is installed
from tests.differential.sides import use  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # another library's warnings are not ours to mend


def plot(edges: str, **said) -> Plot:
    """Describe a graph by its edges, "ab bc"; each node is an agent that says its name and visit."""
    pairs = [(*pair,) for pair in edges.split()]
    names = dict.fromkeys("".join(edges.split()))
    nodes = {name: [f"{name}{visit}" for visit in range(1, 20)] for name in names} | said.pop("nodes", {})
    conditions = said.pop("conditions", {})
    links = [(*pair, *([conditions["".join(pair)]] if "".join(pair) in conditions else [])) for pair in pairs]
    entries = said.pop("entries", next(iter(nodes)))
    return Plot(nodes, [link for link in links if len(link) > 1], tuple(entries), **said)


def play(make, *steps) -> list[list[Told]]:
    """Play a graph on both sides: texts and lists are tasks, mappings are answers. Give all that happened."""
    return [
        [side.answer(**step) if isinstance(step, Mapping) else side.play(step) for step in steps]
        for side in both(make)
    ]


def same(make, *steps) -> list[Told]:
    """Play a graph on both sides and expect no difference; give what happened."""
    theirs, ours = play(make, *(steps or ("task",)))
    for step, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        assert asdict(other) == asdict(one), f"step {step}"
    return ours


def alike(make) -> Told:
    """Expect no difference but in what siblings say: in Strands a quick one is heard in its own batch."""
    theirs, ours = (side[0] for side in play(make, "task"))
    one, other = asdict(theirs), asdict(ours)
    assert {**other, "requests": without_siblings(ours)} == {**one, "requests": without_siblings(theirs)}
    return ours


def names(told: Told) -> str:
    """Write batches as "a bc d"."""
    return " ".join("".join(batch) for batch in told.batches)


def sections(message) -> list[str]:
    """Name the nodes whose output a message shows."""
    texts = [block.get("text", "") for block in message["content"]]
    return [text.removeprefix("\nFrom ").rstrip(":") for text in texts if text.startswith("\nFrom ")]


def visits(state, node: str) -> int:
    """Count a node's visits as both sides let a condition do it."""
    return sum(each.node_id == node for each in state.execution_order)


def without_siblings(told: Told) -> dict[str, list[list[str]]]:
    """Name the sources that each start of a node was told of, but those that ran beside it."""
    found: dict[str, list[list[str]]] = {}
    for batch in told.batches:
        for node in batch:
            place = len(found.setdefault(node, []))
            seen = sections(told.requests[node][place])
            found[node].append([each for each in seen if each not in batch])
    return found


# -- which nodes run, and when ---------------------------------------------------------------------------

SHAPES = [
    ("G9: all entry points are one batch", {"edges": "ac bc", "entries": "ab"}, "ab c"),
    ("G10: a join of equal depth runs once, with both inputs", {"edges": "sa sb ad bd"}, "s ab d"),
    (
        "G10: one true edge is enough",
        {"edges": "ac bc", "entries": "ab", "conditions": {"ac": lambda state: False}},
        "ab c",
    ),
    ("G10: no true edge, no visit", {"edges": "ab bc", "conditions": {"ab": lambda state: False}}, "a"),
    ("G11: a target of two batches runs in both", {"edges": "sa ab ad bc cd", "entries": "s"}, "s a bd c d"),
    (
        "G12: a cycle is visits, as many as its condition lets",
        {
            "edges": "ab ba bc",
            "conditions": {
                "ba": lambda state: visits(state, "b") < 3,
                "bc": lambda state: visits(state, "b") >= 3,
            },
        },
        "a b a b a b c",
    ),
    (
        "G12: a node may follow itself",
        {"edges": "aa ab", "conditions": {"aa": lambda state: visits(state, "a") < 3}},
        "a ab ab b",
    ),
    (
        "G4: an entry point may have edges into it",
        {"edges": "ab ba", "entries": "a", "conditions": {"ba": lambda state: visits(state, "a") < 2}},
        "a b a b",
    ),
    (
        "G2: two edges between two nodes are one or the other",
        {"edges": "ab ab", "conditions": {"ab": lambda state: "a" in state.results}},
        "a b",
    ),
    (
        "G31: a batch may pass the limit, and none begins after it",
        {"edges": "sa sb sc ad bd cd", "limit": 2},
        "s abc",
    ),
    ("G31: what is done within the limit has not failed", {"edges": "ab", "limit": 2}, "a b"),
    ("G31: a cycle ends at the limit", {"edges": "ab ba", "limit": 5}, "a b a b a"),
]


@pytest.mark.parametrize(("rule", "described", "expected"), SHAPES, ids=[rule for rule, _, _ in SHAPES])
def test_batches(rule, described, expected):
    """The same nodes run in the same batches, told of the same sources, and end with the same results."""
    told = alike(lambda: plot(**{**described, "conditions": dict(described.get("conditions", {}))}))

    assert names(told) == expected
    assert told.status == ("failed" if "G31" in rule and "within" not in rule else "completed")


def test_a_join_of_unequal_depth_runs_twice():
    """G11: it starts again with the batch that its other source is in. Here the first start is told only
    of what was done before its batch; in Strands a sibling that is quick enough may be in it, too.
    """
    theirs, ours = (side[0] for side in play(lambda: plot("ad ab bd"), "task"))

    assert names(ours) == names(theirs) == "a bd d"
    assert ours.results == theirs.results
    first, second = ours.requests["d"]
    assert (sections(first), sections(second)) == (["a"], ["a", "b"])
    assert second == theirs.requests["d"][1]
    assert set(sections(theirs.requests["d"][0])) in ({"a"}, {"a", "b"})


def test_conditions_may_ask_for_the_state_of_the_call():
    """G3: a condition with a parameter `invocation_state` is given it."""

    def wanted(state, invocation_state):
        return invocation_state.get("never") is None

    (told,) = same(lambda: plot("ab", conditions={"ab": wanted}))

    assert names(told) == "a b"


def test_conditions_see_what_strands_shows_them():
    """G3: nodes by `node_id`, results by name with their text, and how many there are."""

    def looks(state):
        done = {node.node_id for node in state.completed_nodes}
        first = [node.node_id for node in state.entry_points]
        text = str(state.results["b"].result)
        return (done, first, text, state.total_nodes) == ({"a", "b"}, ["a"], "b1\n", 3)

    (told,) = same(lambda: plot("ab bc", conditions={"bc": looks}))

    assert names(told) == "a b c"


def test_a_condition_that_raises_fails_the_graph():
    """G3: Strands raises it from the call; here the run has failed and says which edge."""
    theirs, ours = (
        side[0] for side in play(lambda: plot("ab bc", conditions={"bc": lambda state: 1 / 0}), "task")
    )

    assert theirs.error.startswith("ZeroDivisionError")
    assert (ours.error, ours.status) == ("", "failed")
    assert names(ours) == names(theirs) == "a b"


# -- what nodes are told ---------------------------------------------------------------------------------


def test_the_task_alone():
    """G16: without inputs a node gets the task, as text or as the blocks it is made of."""
    blocks = [{"text": "one"}, {"text": "two"}]
    for task in ("task", blocks):
        (told,) = same(lambda: plot("a"), task)
        assert told.requests["a"][0]["content"] == (blocks if task == blocks else [{"text": "task"}])


def test_the_form_of_inputs():
    """G17: original task, then a section per source; a task in blocks keeps its blocks."""
    (told,) = same(lambda: plot("ac bc", entries="ab"))
    assert told.requests["c"][0]["content"] == [
        {"text": "Original Task: task"},
        {"text": "\nInputs from previous nodes:"},
        {"text": "\nFrom a:"},
        {"text": "  - Agent: a1\n"},
        {"text": "\nFrom b:"},
        {"text": "  - Agent: b1\n"},
    ]

    (told,) = same(lambda: plot("ab"), [{"text": "one"}])
    assert told.requests["b"][0]["content"][:2] == [{"text": "Original Task:"}, {"text": "one"}]


def test_inputs_of_all_completed_sources():
    """G15: also of earlier batches, where the edge's condition is true now."""
    (told,) = same(lambda: plot("ab ad bc cd"))
    assert names(told) == "a bd c d"
    assert sections(told.requests["d"][1]) == ["a", "c"]

    def early(state):
        return "c" not in state.results

    (told,) = same(lambda: plot("ab ad bc cd", conditions={"ad": early}))
    assert sections(told.requests["d"][1]) == ["c"]


def test_inputs_of_a_graph_inside():
    """G17: a section of a graph has a line for each of its agents."""
    inner = {"edges": "xy", "entries": "x"}
    (told,) = same(lambda: plot("sg gc", nodes={"g": plot(**inner)}))

    assert told.requests["c"][0]["content"][-3:] == [
        {"text": "\nFrom g:"},
        {"text": "  - Agent: x1\n"},
        {"text": "  - Agent: y1\n"},
    ]


@pytest.mark.parametrize("reset", [False, True])
def test_memory_of_a_node_that_runs_again(reset):
    """G32, G33: an agent remembers its earlier visits, unless `reset_on_revisit` says else."""

    def make():
        # Without memory the script begins anew at each visit.
        return plot("ab ba", reset=reset, conditions={"ba": lambda state: visits(state, "b") < 2})

    (told,) = same(make)

    assert told.results == ({"a": "a1\n", "b": "b1\n"} if reset else {"a": "a2\n", "b": "b2\n"})


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


def test_an_agent_that_asks_holds_its_batch():
    """G14, G35, G38, G45, G46: the rest of the batch completes, and nothing follows until the answer."""
    nodes = {"x": [use("ask", "t1"), "x done"]}
    first, last = same(lambda: plot("sx sy yz xz", nodes=nodes, tools=[ask]), "task", {"go": "yes"})

    assert (first.status, names(first), first.interrupts) == ("interrupted", "s xy", [("go", "because")])
    assert "After x" not in first.fired
    assert (last.status, names(last)) == ("completed", "x z")
    assert sections(last.requests["z"][0]) == ["x", "y"]


def test_two_agents_that_ask_are_answered_together():
    """G45: their batch ends when both are answered."""
    nodes = {"x": [use("ask_one", "t1"), "x done"], "y": [use("ask_two", "t2"), "y done"]}
    first, last = same(
        lambda: plot("xz yz", entries="xy", nodes=nodes, tools=[asks("one"), asks("two")]),
        "task",
        {"one": 1, "two": False},
    )

    assert first.interrupts == [("one", "one"), ("two", "two")]
    assert (names(first), names(last)) == ("xy", "xy z")


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
        assert (other.status, other.interrupts, other.results) == (one.status, one.interrupts, one.results)
    assert (names(theirs[1]), names(ours[1])) == ("xy", "x")
    assert names(ours[2]) == names(theirs[2]) == "y z"


def gate(*questions: str):
    """Make callbacks that ask before node "x", one question after another."""

    def callback(event):
        if event.node_id == "x":
            for name in questions:
                event.interrupt(name, reason=name)

    return [("BeforeNodeCallEvent", callback)]


def test_a_callback_that_asks_before_a_node():
    """G37, G46, G48: the node doesn't run; callbacks run again with the answer, and may ask more."""
    steps = same(lambda: plot("sx sy xz yz", hooks=gate("one", "two")), "task", {"one": 1}, {"two": 2})

    assert [told.status for told in steps] == ["interrupted", "interrupted", "completed"]
    assert [told.interrupts for told in steps] == [[("one", "one")], [("two", "two")], []]
    assert [told.fired.count("Before x") for told in steps] == [1, 1, 1]
    assert [told.fired.count("After x") for told in steps] == [0, 0, 1]
    assert names(steps[2]) == "x z"


def test_questions_of_a_callback_and_of_the_agent():
    """G48: first the callback's, then the agent's; the callback is not asked again."""
    nodes = {"x": [use("ask", "t1"), "x done"]}
    steps = same(
        lambda: plot("x xz", nodes=nodes, tools=[ask], hooks=gate("may")), "task", {"may": 1}, {"go": "yes"}
    )

    assert [told.interrupts for told in steps] == [[("may", "may")], [("go", "because")], []]


def test_a_question_in_a_graph_inside():
    """G38, G46: it is the outer graph's, and its answer reaches the graph inside. Strands starts the
    outer node again for it; here only what asked starts again.
    """
    inner = plot("xy", nodes={"x": [use("ask", "t1"), "x done"]})
    theirs, ours = play(lambda: plot("sg sy gz", nodes={"g": inner}, tools=[ask]), "task", {"go": "yes"})
    first, last = ours

    assert asdict(first) == asdict(theirs[0])
    assert sorted([*last.fired, "Before g"]) == theirs[1].fired
    assert {**asdict(last), "fired": []} == {**asdict(theirs[1]), "fired": []}
    assert (first.status, names(first), names(last)) == ("interrupted", "s gy", "g z")


def test_a_question_in_a_cycle():
    """B2's shape: a node that waits may lie on a cycle, at any visit. While it waits, Strands still shows
    the result of its visit before; here a node shows its latest visit.
    """
    nodes = {"b": [use("ask", "t1"), "b1", use("ask", "t2"), "b2"]}
    steps = list(
        zip(
            *play(
                lambda: plot(
                    "ab ba", nodes=nodes, tools=[ask], conditions={"ba": lambda state: visits(state, "b") < 2}
                ),
                "task",
                {"go": "one"},
                {"go": "two"},
            ),
            strict=True,
        )
    )

    for theirs, ours in steps:
        assert (ours.status, ours.batches, ours.requests) == (theirs.status, theirs.batches, theirs.requests)
    assert [names(ours) for _, ours in steps] == ["a b", "b a b", "b"]
    assert [sorted(told.results) for told in steps[1]] == [["a", "b"], ["a"]]
    assert steps[-1][1].results == steps[-1][0].results


# -- callbacks, failures ---------------------------------------------------------------------------------


def test_callbacks_of_nodes_run_in_order_and_reverse():
    """1.10: Before in the order of adding, After in reverse."""
    said: dict[int, list[str]] = {}

    def make():
        told = said.setdefault(len(said), [])
        return plot(
            "ab",
            hooks=[
                (event, lambda event, word=f"{event[:5]} {number}": told.append(f"{word} {event.node_id}"))
                for event in ("BeforeNodeCallEvent", "AfterNodeCallEvent")
                for number in (1, 2)
            ],
        )

    same(make)

    theirs, ours = said.values()
    assert ours == theirs
    assert ours[:4] == ["Befor 1 a", "Befor 2 a", "After 2 a", "After 1 a"]


def test_a_cancelled_node_fails_the_graph():
    """G25: Strands raises from the call; here the result has failed. Both tell the text, run nothing more."""

    def refuse(event):
        event.cancel_node = "not today" if event.node_id == "b" else False

    theirs, ours = (
        side[0] for side in play(lambda: plot("ab bc", hooks=[("BeforeNodeCallEvent", refuse)]), "task")
    )

    assert theirs.error == "RuntimeError: not today"
    assert (ours.error, ours.status) == ("", "failed")
    assert names(ours) == names(theirs) == "a b"
    assert ours.fired == theirs.fired


def test_a_question_beats_a_cancel():
    """G37: when one callback asks and another cancels, the question is asked."""

    def refuse(event):
        event.cancel_node = event.node_id == "x"

    (told,) = same(lambda: plot("x", hooks=[("BeforeNodeCallEvent", refuse), *gate("may")]))

    assert (told.status, told.interrupts) == ("interrupted", [("may", "may")])


def test_a_failure_beside_a_question_wedges_nothing():
    """B1: in Strands the graph can't be used any more; here the question is withdrawn and the run is over."""

    def refuse(event):
        event.cancel_node = event.node_id == "y"

    def make():
        nodes = {"x": [use("ask", "t1"), "x done"]}
        return plot("x y", entries="xy", nodes=nodes, tools=[ask], hooks=[("BeforeNodeCallEvent", refuse)])

    _, ours = both(make)
    first = ours.play("task")

    assert (first.status, first.interrupts) == ("failed", [])
    assert ours.play("again").status == "failed"


# -- any graph -------------------------------------------------------------------------------------------

MARKS = ("always", "always", "never", "odd", "twice")


def condition(mark: str, source: str):
    """Make a condition that looks at how often its source has run."""
    return {
        "always": None,
        "never": lambda state: False,
        "odd": lambda state: visits(state, source) % 2 == 1,
        "twice": lambda state: visits(state, source) < 3,
    }[mark]


@st.composite
def graphs(draw) -> tuple[str, Mapping[str, str], str, int]:
    """Draw edges with marks, entry points and a limit."""
    pool = "abcde"[: draw(st.integers(1, 5))]
    pairs = draw(st.lists(st.tuples(*[st.sampled_from(pool)] * 2), max_size=8, unique=True))
    marks = {"".join(pair): draw(st.sampled_from(MARKS)) for pair in pairs}
    entries = "".join(draw(st.lists(st.sampled_from(pool), min_size=1, max_size=2, unique=True)))
    return " ".join([*pool, *marks]), marks, entries, draw(st.integers(3, 12))


@hypothesis.given(graphs())
@hypothesis.settings(
    max_examples=max(10, hypothesis.settings.default.max_examples // 10),
    suppress_health_check=list(hypothesis.HealthCheck),
    deadline=None,
)
def test_any_graph(drawn):
    """Random graphs run the same batches to the same end, and tell each node the same of earlier batches."""
    edges, marks, entries, limit = drawn

    def make():
        conditions = {pair: condition(mark, pair[0]) for pair, mark in marks.items() if mark != "always"}
        return plot(edges, conditions=conditions, entries=entries, limit=limit)

    alike(make)
