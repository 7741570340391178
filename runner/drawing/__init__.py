"""Pictures of graphs as Mermaid, SVG or plain text, also with the states of a run.

Pure: a definition in, a text out. Layers and places are worked out here, without another program.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.drawing import mermaid, svg, text
from runner.drawing.picture import picture
from runner.errors import UsageError
from runner.graph import Definition

FORMATS = {"text": text.draw, "svg": svg.draw, "mermaid": mermaid.draw}


def draw(definition: Definition, form: str = "text", states: Mapping[str, str] | None = None) -> str:
    """Draw a graph; `states` are words by node path, such as "waiting" for "review/approve".

    Raises:
        UsageError: there is no such format.
    """
    if form not in FORMATS:
        raise UsageError(f"a graph is drawn as {', '.join(FORMATS)}, not as {form!r}.")
    return FORMATS[form](picture(definition, states))
