"""Layered layout: boxes by their longest path from the start, in layers ordered to cross few lines.

Neighbouring layers of a large graph become one box, a group, which opens in place.

Plain text uses the layers as the order of its lines; SVG also uses the positions.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from runner.authoring.drawing.diagram import Arrow, Box, Diagram, Progress
from runner.records import listings

Pair = tuple[str, str]

SWEEPS = 6

GAP = 24.0  # between two boxes of a layer

LONGEST = 8_000  # layers that all lines together may pass; beyond this they are drawn straight


def layers(names: Sequence[str], pairs: Sequence[Pair]) -> list[list[str]]:
    """Put every box one layer below the lowest box that leads to it; the pairs must have no cycle."""
    waiting = dict.fromkeys(names, 0)
    successors: dict[str, list[str]] = {name: [] for name in names}
    for source, target in pairs:
        waiting[target] += 1
        successors[source].append(target)
    depth = {name: 0 for name in names if not waiting[name]}
    todo = list(depth)
    for name in todo:
        for target in successors[name]:
            depth[target] = max(depth.get(target, 0), depth[name] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                todo.append(target)
    rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for name in names:
        rows[depth[name]].append(name)
    _order(rows, pairs)
    return rows


def _order(rows: list[list[str]], pairs: Sequence[Pair]) -> None:
    """Move each box to the middle of its neighbours, downwards and upwards in turn."""
    above, below = _neighbours(pairs)
    for sweep in range(SWEEPS):
        near = below if sweep % 2 else above
        positions = {name: position for row in rows for position, name in enumerate(row)}
        for row in reversed(rows) if sweep % 2 else rows:
            row.sort(key=lambda name: _middle(near.get(name, ()), positions, positions[name]))
            positions.update({name: position for position, name in enumerate(row)})


def _neighbours(pairs: Sequence[Pair]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    above: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for source, target in pairs:
        below.setdefault(source, []).append(target)
        above.setdefault(target, []).append(source)
    return above, below


def _middle(names: Sequence[str], positions: Mapping[str, float], otherwise: float) -> float:
    return sum(positions[name] for name in names) / len(names) if names else otherwise


def with_bends(
    rows: list[list[str]], pairs: Sequence[Pair]
) -> tuple[list[list[str]], dict[Pair, list[str]]]:
    """Add a point to every layer that a line passes, so that lines go around boxes.

    Returns the layers with these points, and each line's boxes and points from source to target.
    """
    level = {name: number for number, row in enumerate(rows) for name in row}
    if sum(level[target] - level[source] for source, target in pairs) > LONGEST:
        return rows, {pair: list(pair) for pair in pairs}
    bent_rows = [list(row) for row in rows]
    paths: dict[Pair, list[str]] = {}
    for source, target in pairs:
        # Ids contain no line ends, so these names are unused.
        points = [
            f"{source}\n{target}\n{number}"
            for number in range(level[source] + 1, level[target])
        ]
        for number, point in enumerate(points, level[source] + 1):
            bent_rows[number].append(point)
        paths[source, target] = [source, *points, target]
    _order(bent_rows, [step for path in paths.values() for step in itertools.pairwise(path)])
    return bent_rows, paths


def centres(
    rows: list[list[str]], widths: Mapping[str, float], pairs: Sequence[Pair]
) -> dict[str, float]:
    """Return the middle of each box across its layer, so that no two boxes overlap."""
    above, below = _neighbours(pairs)
    middles: dict[str, float] = {}
    for row in rows:
        _spread(row, dict.fromkeys(row, 0.0), widths, middles)
    for sweep in range(SWEEPS * 2):
        near, far = (below, above) if sweep % 2 else (above, below)
        for row in reversed(rows) if sweep % 2 else rows:
            beside = {name: near.get(name, ()) or far.get(name, ()) for name in row}
            targets = {name: _middle(beside[name], middles, middles[name]) for name in row}
            _spread(row, targets, widths, middles)
    left_edge = min((middles[name] - widths[name] / 2 for name in middles), default=0.0)
    return {name: middle - left_edge for name, middle in middles.items()}


def _spread(
    row: Sequence[str],
    targets: Mapping[str, float],
    widths: Mapping[str, float],
    middles: dict[str, float],
) -> None:
    """Put a layer's boxes as near to their target positions as their widths allow.

    Each goes halfway between its positions when packed from the left and from the right.
    """
    from_left: list[float] = []
    for index, name in enumerate(row):
        least = from_left[-1] + _apart(row[index - 1], name, widths) if index else targets[name]
        from_left.append(max(targets[name], least))
    from_right: list[float] = []
    for index in range(len(row) - 1, -1, -1):
        most = (
            from_right[-1] - _apart(row[index], row[index + 1], widths)
            if from_right
            else targets[row[index]]
        )
        from_right.append(min(targets[row[index]], most))
    for name, low, high in zip(row, from_left, reversed(from_right), strict=True):
        middles[name] = (low + high) / 2


def _apart(left_box: str, right_box: str, widths: Mapping[str, float]) -> float:
    return (widths[left_box] + widths[right_box]) / 2 + GAP


# Large graphs in groups.

MOST = 400
"""The most boxes that are drawn one by one; more are drawn in groups."""

EACH = 60
"""The most boxes of a group, unless one layer has more."""

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
"""States in order of urgency; a group has the most urgent state of its nodes."""


def grouped(diagram: Diagram, open_groups: Container[str] | None) -> Diagram:
    """Return the diagram, or a large one's groups; groups whose id is in `open_groups` are open."""
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
    arrows_inside = (
        arrow for arrow in diagram.arrows if group_of[arrow.source] == group_of[arrow.target]
    )
    inside = listings.grouped(arrows_inside, lambda arrow: group_of[arrow.source])
    groups = [
        _group(
            f"#{number}",
            band,
            inside.get(f"#{number}", []),
            f"#{number}" in (open_groups or ()),
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
