"""Drawings of graphs as Mermaid, SVG or plain text; the SVG of a run has its states.

Pure functions from a definition to a text; they need no Graphviz or other program.
"""

from __future__ import annotations

from runner.authoring.drawing import mermaid, svg, text
from runner.authoring.drawing.diagram import RunShown, diagram, shape
from runner.authoring.drawing.layout import grouped
from runner.authoring.drawing.svg import Links
from runner.definition.model import Definition, Topology
from runner.errors import UsageError

FORMATS = {"text": text.draw, "svg": svg.draw, "mermaid": mermaid.draw}


def draw(definition: Definition, form: str = "text") -> str:
    """Draw a graph.

    Raises:
        UsageError: the format is unknown.
    """
    if form not in FORMATS:
        raise UsageError(f"a graph is drawn as {', '.join(FORMATS)}, not as {form!r}.")
    return FORMATS[form](diagram(definition))


def outline(graph: Definition | Topology) -> str:
    """Draw a graph as SVG, without conditions if only its topology is known."""
    return svg.draw(shape(graph) if isinstance(graph, Topology) else diagram(graph))


def draw_run(graph: Definition | Topology, run: RunShown, links: Links) -> str:
    """Draw a run as SVG whose nodes are links, a large graph in groups.

    If the code isn't available, the `Topology` is drawn.
    """
    whole = shape(graph, run) if isinstance(graph, Topology) else diagram(graph, run)
    return svg.draw(grouped(whole, run.opened), links)
