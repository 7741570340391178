"""What a drawing shows of a graph in every format: boxes, arrows and the words on them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.authoring import sources
from runner.definition import cycles
from runner.definition.model import (
    BEFORE_GRAPH,
    BRACKETS,
    HIDDEN,
    Definition,
    EdgeKind,
    NodeSpec,
    Topology,
)
from runner.definition.registry import PATH, inner

OPENING = re.compile(r"^((tell|say|check|decide|return)s? )?(whether|true (if|when)|if) ")
"""How docstrings of conditions begin; the label puts "if" before what follows."""

LONGEST = 60  # characters of a condition's words

SIGNS = {
    "completed": "✓",
    "failed": "✗",
    "waiting": "?",
    "running": "▸",
    "retrying": "↻",
    "skipped": "-",
    "cancelled": "-",
}
"""A sign for each state, so that none is shown by colour alone; the word is shown, too."""


@dataclass(frozen=True, slots=True)
class Box:
    """One node: `words` are its kind and when it starts, `state` is "" where no run is drawn."""

    id: str
    words: str
    kind: str
    state: str = ""
    inner: Diagram | None = None

    @property
    def sign(self) -> str:
        """The sign of the state; a dot where no run is drawn."""
        return SIGNS.get(self.state, "○") if self.state else "●"

    @property
    def lines(self) -> list[str]:
        """Id, words, and the state with its sign where a run is drawn."""
        return [self.id, self.words, *([f"{self.sign} {self.state}"] if self.state else [])]


@dataclass(frozen=True, slots=True)
class Arrow:
    """One edge; `label` is its condition, `back` is true where it repeats a loop."""

    source: str
    target: str
    label: str = ""
    back: bool = False

    @property
    def words(self) -> str:
        """When the edge is taken, as "again if the draft is bad"; "" where it always is."""
        return " ".join(("again",) * self.back + (f"if {self.label}",) * bool(self.label))


@dataclass(frozen=True, slots=True)
class Diagram:
    """A graph to be drawn, boxes and arrows in the order of the builder."""

    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]

    @property
    def forward(self) -> list[tuple[str, str]]:
        """The pairs of boxes that arrows join, each once and without back edges."""
        return list(dict.fromkeys((arrow.source, arrow.target) for arrow in self.arrows if not arrow.back))


def diagram(definition: Definition, states: Mapping[str, str] | None = None) -> Diagram:
    """Collect a graph and the graphs inside it; the hidden nodes for the graph's own events are left out."""
    names = [name for name in definition.nodes if not name.startswith(HIDDEN)]
    edges = [edge for edge in definition.edges if not {edge.source[0], edge.target[0]} & {HIDDEN}]
    starts = entries(definition)
    back = cycles.back_edges(names, starts, edges)
    incoming = dict.fromkeys(names, 0)
    for index, edge in enumerate(edges):
        incoming[edge.target] += index not in back
    boxes = [
        _box(spec, _start(spec, incoming[spec.id], is_entry=spec.id in starts), states)
        for spec in (definition.nodes[name] for name in names)
    ]
    arrows = [
        Arrow(
            edge.source,
            edge.target,
            "its question expires" if edge.on_expire else _label(edge.condition),
            index in back,
        )
        for index, edge in enumerate(edges)
    ]
    return Diagram(definition.id, tuple(boxes), tuple(arrows))


def shape(topology: Topology, states: Mapping[str, str]) -> Diagram:
    """Collect what the stored shape of a graph shows: no conditions, and nothing of the graphs inside it."""
    names = [name for name in topology.nodes if not (name.startswith(HIDDEN) or name.endswith(BRACKETS))]
    boxes = tuple(
        Box(name, topology.nodes[name].kind or "node", topology.nodes[name].kind, states.get(name, "pending"))
        for name in names
    )
    arrows = tuple(
        Arrow(name, edge.target, "its question expires" if edge.on_expire else "", edge.kind is EdgeKind.BACK)
        for name in names
        for edge in topology.outgoing.get(name, ())
        if not edge.target.startswith(HIDDEN)
    )
    return Diagram(topology.graph_id, boxes, arrows)


def entries(definition: Definition) -> list[str]:
    """Name the nodes that a run starts with, without those of the graph's own events."""
    first = [edge.target for edge in definition.edges if edge.source == BEFORE_GRAPH]
    return first or [name for name in definition.entries if not name.startswith(HIDDEN)]


def _start(spec: NodeSpec, incoming: int, *, is_entry: bool) -> str:
    waits = (
        "" if incoming < 2 else f"first of {incoming}" if spec.join == "any" else f"waits for all {incoming}"
    )
    return ", ".join(part for part in ("starts here" if is_entry else "", waits) if part)


def _box(spec: NodeSpec, start: str, states: Mapping[str, str] | None) -> Box:
    state = "" if states is None else states.get(spec.id, "pending")
    child = inner(spec)
    within = None
    if child is not None:
        prefix = f"{spec.id}{PATH}"
        states_inside = {
            key.removeprefix(prefix): word for key, word in (states or {}).items() if key.startswith(prefix)
        }
        within = diagram(child, None if states is None else states_inside)
    bound = f"{spec.map.concurrency} at once" if spec.map is not None and spec.map.concurrency else ""
    words = ", ".join(part for part in (spec.kind, bound, start) if part)
    return Box(spec.id, words, spec.kind, state, within)


def _label(condition: Callable[..., Any] | None) -> str:
    """Describe a condition by its docstring, its name, or the code of a lambda."""
    if condition is None:
        return ""
    plain = sources.bare(condition)
    name = getattr(plain, "__name__", "")
    words = (getattr(plain, "__doc__", None) or "").strip().partition("\n")[0]
    if not words:
        words = (
            type(condition).__name__
            if name == "__call__"
            else name.replace("_", " ").strip().removeprefix("is ")
        )
    if name == "<lambda>":
        code = sources.tree(condition)
        words = ast.unparse(code.body) if isinstance(code, ast.Lambda) else "its condition holds"
    elif words[1:2].islower():
        words = words[0].lower() + words[1:]
    words = OPENING.sub("", words).rstrip(".")
    words = "".join(character if character.isprintable() else " " for character in words)
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
