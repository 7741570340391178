from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from runner import Agent, GraphBuilder
from runner.authoring.drawing import draw_run
from runner.authoring.drawing.diagram import Progress, RunShown
from runner.authoring.drawing.svg import SMALL, Links
from runner.errors import UsageError
from runner.hooks import BeforeGraphEvent
from runner.testing import ScriptedModel
from tests.graphs import ident, wired


def approved(state):
    """The manager approved.

    More words that no picture shows.
    """
    return state.results["approve"].output


def is_small(state):
    return True


class Small:
    def __call__(self, state):
        return True


def review():
    again = ("read draft", lambda state: state.visit < 3)
    return (
        wired({"draft": ident, "read": ident}, "draft read", again)
        .set_entry_point("draft")
        .build()
    )


def shop():
    nodes = {
        "look_up": ident,
        "stock": ident,
        "approve": ident,
        "send": ident,
        "review": review(),
    }
    return wired(
        nodes,
        "look_up stock",
        "look_up approve",
        "stock send",
        ("approve send", approved),
        ("approve review", is_small),
    ).build()


def test_a_graph_is_drawn_as_text():
    """Nodes stand in lines below what leads to them; conditions and loops are said in words."""
    assert shop().draw().splitlines() == [
        "default_graph",
        "",
        "●    look_up  function, starts here",
        "│",
        "├▸●  stock  function",
        "│ │",
        "● │  approve  function",
        "│ │    → send if the manager approved",
        "├▸┤    → review if small",
        "│ ●  send  function, waits for all 2",
        "●    review  graph",
        "       ┊ ●  draft  function, starts here",
        "       ┊ │",
        "       ┊ ●  read  function",
        "       ┊      ↺ again from draft if state.visit < 3",
    ]


def test_a_line_that_is_crossed_stays_whole():
    """Where a line passes another one without meeting it, the other one is drawn through."""
    nodes = dict.fromkeys("abcde", ident)

    lines = wired(nodes, "a b", "a c", "a d", "b e", "c e", "d e").build().draw().splitlines()

    assert lines[2:] == [
        "●      a  function, starts here",
        "│",
        "├▸●    b  function",
        "│ │",
        "├─│▸●  c  function",
        "│ ├◂┘",
        "● │    d  function",
        "└▸┤",
        "  ●    e  function, waits for all 3",
    ]


def test_states_are_words_and_signs():
    """In the drawing of a run, each node says its state; one not begun is pending."""
    states = {"look_up": "completed", "approve": "waiting", "review/draft": "failed"}
    drawn = draw_run(shop().definition, RunShown(states), LINKS)

    for word in ("✓ completed", "? waiting", "✗ failed", "○ pending"):
        assert word in drawn


def test_joins_and_kinds_are_said():
    """An agent is told from a function, and a join of the first from a join of all."""
    nodes = {"a": ident, "b": Agent("b", ScriptedModel(["x"])), "c": ident}

    drawn = wired(nodes, "a c", "b c", c={"join": "any"}).build().draw()

    assert "b  agent, starts here" in drawn
    assert "c  function, first of 2" in drawn


def documented(text):
    def condition(state):
        return True

    condition.__doc__ = text
    return condition


def verdict(word):
    return lambda state: state.results["a"].output == word


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (documented("Tell whether it is small."), "if it is small"),
        (documented("True if it is small"), "if it is small"),
        (documented("PO box"), "if PO box"),
        (is_small, "if small"),
        (lambda state: state.task == 1, "if state.task == 1"),
        (Small(), "if small"),
        (verdict("good"), "if a == 'good'"),
    ],
)
def test_conditions_are_said_in_their_own_words(condition, words):
    """A condition is named by its docstring, else its name, and a lambda by its code and the values in it."""
    drawn = wired({"a": ident, "b": ident}, ("a b", condition)).build().draw()

    assert f"→ b {words}\n" in drawn


def test_maps_and_loops_of_one_node_are_drawn():
    """A map says over what kind of node and how many items run at once; a node may repeat itself."""
    builder = GraphBuilder()
    builder.add_node(ident, "a")
    builder.add_edge("a", "a", is_small)
    several = GraphBuilder()
    several.add_map(ident, "each", concurrency=3)

    assert "↺ again from a if small" in builder.set_entry_point("a").build().draw()
    assert "each  map of function, 3 at once, starts here" in several.build().draw()


class Provider:
    def register_hooks(self, registry, **kwargs):
        registry.add_callback(BeforeGraphEvent, lambda event: None)


def test_the_graphs_own_events_are_not_drawn():
    """The hidden node of a graph's event shows nowhere; what it leads to starts there."""
    graph = wired({"a": ident}).set_hook_providers([Provider()]).build()

    assert graph.draw().splitlines()[2:] == ["●  a  function, starts here"]


NASTY = "a<b>&'#;--%% `end` }}"


@pytest.mark.parametrize("form", ["text", "svg", "mermaid"])
def test_ids_and_words_cannot_break_a_drawing(form):
    """Whatever an id or a condition's words hold is shown and never read as part of the format."""

    def odd(state):
        return True

    odd.__doc__ = '<script> ]]> "quoted" \x1b[31m | end'
    nodes = {NASTY: ident, "end": ident, "subgraph": ident}
    builder = GraphBuilder()
    for name in nodes:
        builder.add_node(ident, name)
    builder.add_edge("end", "subgraph", odd)
    drawn = builder.set_entry_point("end").set_entry_point(NASTY).build().draw(form)

    assert "\x1b" not in drawn
    if form == "svg":
        root = ET.fromstring(drawn)  # noqa: S314 - our own text
        words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert NASTY in words
    if form == "mermaid":
        assert "<script" not in drawn
        assert "`" not in drawn
        assert '"quoted"' not in drawn


def test_a_format_that_is_not_there_is_refused():
    """An unknown format is a usage error that names the known ones."""
    with pytest.raises(UsageError, match="drawn as text, svg, mermaid, not as 'png'"):
        shop().draw("png")


LINKS = Links(lambda name: f"?node={name}", lambda name: f"?open={name}")

SVG = "{http://www.w3.org/2000/svg}"


def test_a_run_shows_the_way_that_it_took():
    """Edges are taken, not taken or not decided; a node says its visit, and what it leads to is a link."""
    states = {"look_up": "completed", "approve": "completed", "stock": "running"}
    progress = {"approve": Progress(2, taken={"send": True, "review": False})}

    drawn = draw_run(shop().definition, RunShown(states, progress, ()), LINKS)
    paths = ET.fromstring(drawn).iter(f"{SVG}path")  # noqa: S314 - our own text
    edges = {edge.findtext(f"{SVG}title"): edge.get("class") for edge in paths}

    assert edges["approve to send, taken"] == "edge taken"
    assert edges["approve to review, not taken"] == "edge dead"
    assert edges["stock to send"] == "edge"
    assert "✓ completed, visit 2" in drawn
    assert '<a id="at-approve" href="?node=approve">' in drawn
    marked = draw_run(shop().definition, RunShown({}), replace(LINKS, marked="approve"))
    assert '<g class="node marked" data-node="approve"' in marked


def test_a_graph_inside_is_opened_in_place():
    """Closed it is one box with a link that opens it, open it has its nodes and a link that closes it."""
    closed = draw_run(shop().definition, RunShown({}, {}, ()), LINKS)
    opened = draw_run(shop().definition, RunShown({}, {}, ("review",)), LINKS)

    assert 'href="?open=review" aria-label="Open review"' in closed
    assert "review/draft" not in closed
    assert 'aria-label="Close review"' in opened
    assert 'data-node="review/draft"' in opened


def test_a_map_is_one_box_with_a_bar():
    """Its items are counted."""
    builder = GraphBuilder()
    builder.add_map(ident, "each", concurrency=3)
    shown = RunShown({"each": "running"}, {"each": Progress(1, done=2, total=8)})

    drawn = draw_run(builder.build().definition, shown, LINKS)
    rects = ET.fromstring(drawn).iter(f"{SVG}rect")  # noqa: S314 - our own text
    bars = {
        rect.get("class"): float(rect.get("width")) for rect in rects if rect.get("rx") == "3"
    }

    assert "▸ running, 2 of 8" in drawn
    assert bars["done"] == pytest.approx(bars["track"] / 4, abs=0.1)


def large(count, *edges):
    return wired({f"n{number}": ident for number in range(count)}, *edges).build()


@pytest.mark.full
@pytest.mark.parametrize("form", ["text", "svg", "mermaid"])
@pytest.mark.parametrize(
    "graph",
    [
        large(
            300,
            *(f"n{i} n{i + 1}" for i in range(299)),
            *(f"n{i} n{i + 150}" for i in range(149)),
        ),
        large(
            300, *(f"n0 n{i}" for i in range(1, 299)), *(f"n{i} n299" for i in range(1, 299))
        ),
        large(300, *(f"n{i // 3} n{i}" for i in range(1, 300))),
    ],
    ids=["chain", "wide", "tree"],
)
def test_a_graph_of_300_nodes_is_drawn_at_once(graph, form):
    """A large graph takes less than half a million calls and returns; every node is in the drawing."""
    calls = itertools.count()
    sys.setprofile(lambda *_: next(calls))
    try:
        drawn = graph.draw(form)
    finally:
        sys.setprofile(None)

    assert next(calls) < 500_000
    assert all(f"n{number}" in drawn for number in range(300))


@pytest.mark.full
def test_a_very_large_graph_is_drawn_in_groups():
    """Neighbouring nodes are one box that counts them, opens in place, and has the most urgent state."""
    graph = large(1_000, *(f"n{i} n{i + 1}" for i in range(999)))
    states = {f"n{i}": "completed" for i in range(30)} | {"n30": "failed"}

    closed = draw_run(graph.definition, RunShown(states, {}, ()), LINKS)
    opened = draw_run(graph.definition, RunShown(states, {}, ("#1",)), LINKS)

    assert closed.count('class="node"') == 17
    assert "60 nodes, n0 to n59" in closed
    assert "✗ failed, 30 of 60" in closed
    assert opened.count('class="node"') == 77
    assert 'data-node="n30" data-state="failed"' in opened


def test_boxes_do_not_overlap():
    """No two boxes of an SVG share a place."""
    drawn = ET.fromstring(large(40, *(f"n{i // 3} n{i}" for i in range(1, 40))).draw("svg"))  # noqa: S314 - our own text
    rects = drawn.findall(".//{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}rect")
    places = [[float(rect.get(key)) for key in ("x", "y", "width", "height")] for rect in rects]

    assert len(places) == 40
    for index, (x, y, width, height) in enumerate(places):
        for other_x, other_y, *_ in places[index + 1 :]:
            assert not (x <= other_x < x + width and y <= other_y < y + height)


def test_labels_overlap_no_box_and_break_no_name():
    """Three conditions of code that leave one node, on a page: each has lines of its own, of whole names."""
    limit = 3
    edges = [
        ("a b", lambda state: state.results["a"].output["score_of_the_reviewer"] >= limit),
        ("a c", lambda state: state.invocation_state.get("is_an_emergency", False)),
        ("a d", lambda state: True),
    ]
    graph = wired(dict.fromkeys("abcd", ident), *edges).build()
    drawn = ET.fromstring(draw_run(graph.definition, RunShown({}), LINKS))  # noqa: S314 - our own text
    texts = [text for text in drawn.iter(f"{SVG}text") if text.get("class") == "words"]
    words = [list(text.itertext())[-1] for text in texts]
    areas = []
    for text, line in zip(texts, words, strict=True):
        right, bottom = float(text.get("x")), float(text.get("y"))
        areas.append((right - len(line) * SMALL, bottom - 11.5, right, bottom))
    for rect in drawn.findall(f".//{SVG}a/{SVG}rect"):
        x, y, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
        areas.append((x, y, x + width, y + height))

    assert {"['score_of_the_reviewer']", ">= 3"} <= set(words)
    assert any("'is_an_emergency'" in line for line in words)
    for index, (left, top, right, bottom) in enumerate(areas):
        for other in areas[index + 1 :]:
            assert (
                right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            )
