"""Large graphs in groups: neighbouring layers become one box, which opens in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from runner.authoring.drawing.diagram import Arrow, Box, Diagram, Progress
from runner.authoring.drawing.layout import layers

MOST = 400
"""Boxes that are drawn one by one; more are drawn in groups."""

EACH = 60
"""Boxes of a group, unless one layer has more."""

URGENT = (
    "failed",
    "held",
    "waiting",
    "retrying",
    "running",
    "ready",
    "pending",
    "completed",
    "cancelled",
)
"""The state of a group is the first of these that one of its nodes has."""


def grouped(diagram: Diagram, open_groups: Container[str] | None) -> Diagram:
    """Return the diagram, of a large one its groups; those whose number is in `open_groups` are open."""
    if len(diagram.boxes) <= MOST:
        return diagram
    boxes = {box.id: box for box in diagram.boxes}
    bands: list[list[Box]] = [[]]
    for layer in layers(list(boxes), diagram.forward):
        if bands[-1] and len(bands[-1]) + len(layer) > EACH:
            bands.append([])
        bands[-1] += [boxes[name] for name in layer]
    group_of = {box.id: f"#{number}" for number, band in enumerate(bands, 1) for box in band}
    arrows = dict.fromkeys(
        Arrow(source, target, back=arrow.back)
        for arrow in diagram.arrows
        if (source := group_of[arrow.source]) != (target := group_of[arrow.target])
    )
    inside: dict[str, list[Arrow]] = {}
    for arrow in diagram.arrows:
        if group_of[arrow.source] == group_of[arrow.target]:
            inside.setdefault(group_of[arrow.source], []).append(arrow)
    groups = [
        _group(
            f"#{number}", band, inside.get(f"#{number}", []), f"#{number}" in (open_groups or ())
        )
        for number, band in enumerate(bands, 1)
    ]
    return Diagram(diagram.name, tuple(groups), tuple(arrows))


def _group(name: str, band: Sequence[Box], arrows: Sequence[Arrow], is_open: bool) -> Box:  # noqa: FBT001 - a field
    counts = Counter(box.state for box in band if box.state)
    state = next(
        (state_name for state_name in URGENT if counts[state_name]), "skipped" if counts else ""
    )
    caption = f"{len(band)} nodes, {band[0].id} to {band[-1].id}"
    inner = Diagram(name, tuple(band), tuple(arrows)) if is_open else None
    progress = Progress(done=counts["completed"], total=len(band)) if counts else Progress()
    return Box(name, caption, "group", state, inner, holds=True, progress=progress)
