"""A graph as a Mermaid flowchart, which GitHub and many wikis render."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.authoring.drawing.diagram import Arrow, Box, Diagram

UNSAFE = re.compile(r"[^\w .,:()\-=/]")


def draw(diagram: Diagram) -> str:
    """Draw a graph as Mermaid."""
    return "\n".join(["flowchart TD", *_lines(diagram, "n", "  "), ""])


def _lines(diagram: Diagram, prefix: str, indent: str) -> Iterator[str]:
    """Yield a diagram's lines; ids are numbered, as a user's id could be a Mermaid keyword."""
    ids = {box.id: f"{prefix}{number}" for number, box in enumerate(diagram.boxes)}
    for box in diagram.boxes:
        yield from _box(box, ids[box.id], indent)
    for arrow in diagram.arrows:
        yield f"{indent}{ids[arrow.source]} {_arrow(arrow)} {ids[arrow.target]}"


def _box(box: Box, name: str, indent: str) -> Iterator[str]:
    # The title of a subgraph has one line; more would cover the nodes inside.
    between = "<br/>" if box.inner is None else ", "
    label = f'"{escaped(box.id)}{between}{escaped(box.words)}"'
    if box.inner is None:
        opening, closing = ("([", "])") if box.kind == "agent" else ("[", "]")
        yield f"{indent}{name}{opening}{label}{closing}"
    else:
        yield f"{indent}subgraph {name} [{label}]"
        yield f"{indent}  direction TB"
        yield from _lines(box.inner, f"{name}_", f"{indent}  ")
        yield f"{indent}end"


def _arrow(arrow: Arrow) -> str:
    line = "-.->" if arrow.back else "-->"
    return f'{line}|"{escaped(arrow.words)}"|' if arrow.words else line


def escaped(text: str) -> str:
    """Escape all but plain characters as Mermaid entities, so that no text is read as syntax."""
    return UNSAFE.sub(lambda match: f"#{ord(match.group())};", text)
