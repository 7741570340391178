"""Boxes, arrows and their labels: the contents of a drawing in every format."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import field
from typing import Any

from runner.authoring import sources
from runner.definition import cycles
from runner.definition.model import (
    BEFORE_GRAPH,
    BRACKETS,
    HIDDEN,
    SWARM,
    Definition,
    EdgeKind,
    NodeSpec,
    Topology,
)
from runner.definition.registry import inner
from runner.immutable import immutable
from runner.records.run import PATH

OPENING = re.compile(r"^((tell|say|check|decide|return)s? )?(whether|true (if|when)|if) ")
"""First words of conditions' docstrings; a label has "if" instead."""

OUTPUT = re.compile(r"\bstate\.results\['([^']+)'\]\.(?:output|result)\b")
"""A node's output in the code of a condition; a label has the node's id instead."""

LONGEST = 60  # characters of a condition's label

SIGNS = {
    "completed": "✓",
    "failed": "✗",
    "waiting": "?",
    "running": "▸",
    "retrying": "↻",
    "skipped": "-",
    "cancelled": "-",
    "held": "!",
}
"""A sign for each state, so that no state is shown only by colour; its word is shown too."""


@immutable
class Progress:
    """Progress of a node of a run: its visit, and how many of a map's items have completed.

    `taken` says by target whether each edge was taken, once that is decided.
    """

    visit: int = 0
    done: int = 0
    total: int = 0
    taken: Mapping[str, bool] = field(default_factory=dict)


@immutable
class Box:
    """One node: `words` are its kind and when it starts, `state` is "" if no run is drawn.

    A box that `holds` others has them in `inner` if it is open.
    """

    id: str
    words: str
    kind: str
    state: str = ""
    inner: Diagram | None = None
    holds: bool = False
    progress: Progress = Progress()

    @property
    def lines(self) -> list[str]:
        """Id, words, and the state with its sign if a run is drawn."""
        if not self.state:
            return [self.id, self.words]
        progress = self.progress
        visit = f", visit {progress.visit}" if progress.visit > 1 else ""
        items = f", {progress.done} of {progress.total}" if progress.total else ""
        return [self.id, self.words, f"{SIGNS.get(self.state, '○')} {self.state}{visit}{items}"]


@immutable
class Arrow:
    """One edge; `label` is its condition, `back` is true if it repeats a loop.

    `taken` says whether the run took it, None if that isn't decided or no run is drawn.
    """

    source: str
    target: str
    label: str = ""
    back: bool = False
    taken: bool | None = None

    @property
    def words(self) -> str:
        """The text for when the edge is taken, as "again if the draft is bad"; "" for always."""
        return " ".join(("again",) * self.back + (f"if {self.label}",) * bool(self.label))


@immutable
class Diagram:
    """A graph to draw, with boxes and arrows in the builder's order."""

    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def forward(self) -> list[tuple[str, str]]:
        """The pairs of boxes that arrows join, each once, without back edges."""
        return list(
            dict.fromkeys(
                (arrow.source, arrow.target) for arrow in self.arrows if not arrow.back
            )
        )


@immutable
class RunShown:
    """State of a run for a drawing, by the path of each node: "review/approve".

    `opened` are the nodes whose inner graph is drawn; None means all.
    """

    states: Mapping[str, str]
    progress: Mapping[str, Progress] = field(default_factory=dict)
    opened: Container[str] | None = None


def diagram(definition: Definition, run: RunShown | None = None, path: str = "") -> Diagram:
    """Collect a graph and the graphs inside it, without the hidden nodes of graph events."""
    names = [name for name in definition.nodes if not name.startswith(HIDDEN)]
    edges = [
        edge for edge in definition.edges if not {edge.source[0], edge.target[0]} & {HIDDEN}
    ]
    swarm = definition.nodes.get(SWARM)
    starts = [swarm.executor.entry] if swarm else entries(definition)
    back = cycles.back_edges(names, starts, edges)
    incoming = dict.fromkeys(names, 0)
    for index, edge in enumerate(edges):
        incoming[edge.target] += index not in back
    boxes = [
        _box(spec, _start(spec, incoming[spec.id], is_entry=spec.id in starts), run, path)
        for spec in (definition.nodes[name] for name in names)
    ]
    arrows = [
        Arrow(
            edge.source,
            edge.target,
            "its question expires" if edge.on_expire else _label(edge.condition),
            index in back,
            _taken(run, path + edge.source, edge.target),
        )
        for index, edge in enumerate(edges)
    ]
    return Diagram(definition.id, tuple(boxes), tuple(arrows))


def _taken(run: RunShown | None, source: str, target: str) -> bool | None:
    """Return whether an edge was taken; False if its source was skipped, cancelled or failed."""
    if run is None:
        return None
    if run.states.get(source) in {"skipped", "cancelled", "failed"}:
        return False
    return run.progress.get(source, Progress()).taken.get(target)


def shape(topology: Topology, run: RunShown | None = None) -> Diagram:
    """Collect a graph from its stored shape, which has neither conditions nor inner graphs."""
    names = [
        name
        for name in topology.nodes
        if not (name.startswith(HIDDEN) or name.endswith(BRACKETS))
    ]
    boxes = tuple(
        Box(
            name,
            topology.nodes[name].kind or "node",
            topology.nodes[name].kind,
            "" if run is None else run.states.get(name, "pending"),
            progress=Progress() if run is None else run.progress.get(name, Progress()),
        )
        for name in names
    )
    arrows = tuple(
        Arrow(
            name,
            edge.target,
            "its question expires" if edge.on_expire else "",
            edge.kind is EdgeKind.BACK,
            _taken(run, name, edge.target),
        )
        for name in names
        for edge in topology.outgoing.get(name, ())
        if not edge.target.startswith(HIDDEN)
    )
    return Diagram(topology.graph_id, boxes, arrows)


def entries(definition: Definition) -> list[str]:
    """Return the nodes that a run starts with, without the hidden nodes of graph events."""
    first_nodes = [edge.target for edge in definition.edges if edge.source == BEFORE_GRAPH]
    return first_nodes or [name for name in definition.entries if not name.startswith(HIDDEN)]


def _start(spec: NodeSpec, incoming: int, *, is_entry: bool) -> str:
    waits = (
        ""
        if incoming < 2
        else f"first of {incoming}"
        if spec.join == "any"
        else f"waits for all {incoming}"
    )
    return ", ".join(note for note in ("starts here" if is_entry else "", waits) if note)


def _box(spec: NodeSpec, start: str, run: RunShown | None, path: str) -> Box:
    name = path + spec.id
    # The items of a map of graphs are separate runs, so a run's map is one box.
    child = inner(spec) if run is None or spec.map is None else None
    is_open = child is not None and (run is None or run.opened is None or name in run.opened)
    bound = (
        f"{spec.map.concurrency} at once"
        if spec.map is not None and spec.map.concurrency
        else ""
    )
    return Box(
        spec.id,
        ", ".join(note for note in (spec.kind, bound, start) if note),
        spec.kind,
        "" if run is None else run.states.get(name, "pending"),
        diagram(child, run, f"{name}{PATH}") if child is not None and is_open else None,
        child is not None,
        Progress() if run is None else run.progress.get(name, Progress()),
    )


def _label(condition: Callable[..., Any] | None) -> str:
    """Describe a condition by its docstring, its name, or the code of a lambda."""
    if condition is None:
        return ""
    plain = sources.bare(condition)
    name = getattr(plain, "__name__", "")
    label = (getattr(plain, "__doc__", None) or "").strip().partition("\n")[0]
    if not label:
        label = (
            type(condition).__name__
            if name == "__call__"
            else name.replace("_", " ").strip().removeprefix("is ")
        )
    if name == "<lambda>":
        code = sources.tree(condition)
        label = _code(code, plain) if isinstance(code, ast.Lambda) else "its condition holds"
    elif label[1:2].islower():
        label = label[0].lower() + label[1:]
    label = OPENING.sub("", label).rstrip(".")
    label = "".join(character if character.isprintable() else " " for character in label)
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def _code(code: ast.Lambda, function: Any) -> str:
    """Return a lambda's body as text, with values for closure names and ids for node outputs."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    body = deepcopy(code.body)
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and node.id in cells:
            with suppress(ValueError):  # not assigned yet
                value = cells[node.id].cell_contents
                node.id = repr(value) if isinstance(value, str | int | float) else node.id
    return OUTPUT.sub(r"\1", ast.unparse(body))
