"""Drawings of graphs as Mermaid, SVG or plain text, with the states of a run if they are given.

Pure, and without Graphviz or another program: a definition in, a text out.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.authoring.drawing import mermaid, svg, text
from runner.authoring.drawing.diagram import RunShown, diagram, shape
from runner.authoring.drawing.layout import grouped
from runner.authoring.drawing.svg import Links
from runner.definition.model import Definition, Topology
from runner.errors import UsageError

FORMATS = {"text": text.draw, "svg": svg.draw, "mermaid": mermaid.draw}


def draw(
    definition: Definition, form: str = "text", states: Mapping[str, str] | None = None
) -> str:
    """Draw a graph; `states` maps node paths to states, such as "review/approve" to "waiting".

    Raises:
        UsageError: there is no such format.
    """
    if form not in FORMATS:
        raise UsageError(f"a graph is drawn as {', '.join(FORMATS)}, not as {form!r}.")
    return FORMATS[form](diagram(definition, None if states is None else RunShown(states)))


def outline(graph: Definition | Topology) -> str:
    """Draw a graph as SVG; where its code is not at hand, without its conditions."""
    return svg.draw(shape(graph) if isinstance(graph, Topology) else diagram(graph))


def draw_run(graph: Definition | Topology, run: RunShown, links: Links) -> str:
    """Draw a run as SVG whose nodes are links, a large graph in groups.

    Where the code is not at hand, it is drawn from its `Topology`.
    """
    whole = shape(graph, run) if isinstance(graph, Topology) else diagram(graph, run)
    return svg.draw(grouped(whole, run.opened), links)
