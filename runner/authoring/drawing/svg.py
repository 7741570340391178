"""A graph as SVG: boxes in layers from top to bottom, lines around them, loops along the side."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from runner.authoring.drawing.diagram import Arrow, Box, Diagram
from runner.authoring.drawing.layout import centres, layers, with_bends
from runner.definition.registry import PATH

CHARACTER, LINE, PAD = 7.6, 17.0, 12.0  # of the text: width, height, and space around it

BETWEEN = 64.0  # two layers

MARGIN = 20.0

SIDE = 26.0  # between two lines along the side

COLOURS = {
    "completed": ("#dff3e4", "#2e7d4f"),
    "failed": ("#fbe3e3", "#b3261e"),
    "waiting": ("#fff3d1", "#9a6b00"),
    "running": ("#ddeefb", "#1f6fb2"),
    "retrying": ("#f1e4f8", "#7b3fa0"),
    "pending": ("#ffffff", "#999999"),
    "ready": ("#ffffff", "#999999"),
    "skipped": ("#f2f2f2", "#999999"),
    "cancelled": ("#f2f2f2", "#999999"),
}

PLAIN = ("#f7f9fc", "#44546a")

HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{w:.0f}" height="{h:.0f}" '
    'viewBox="0 0 {w:.0f} {h:.0f}" font-family="ui-monospace, DejaVu Sans Mono, monospace" font-size="12.5">'
    '<title>{name}</title><defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" '
    'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#44546a"/></marker></defs>'
    '<rect class="ground" width="100%" height="100%" fill="#ffffff"/>'
)


@dataclass(frozen=True, slots=True)
class Drawing:
    """SVG elements with the size of what they draw, so that a graph can be placed inside a box."""

    parts: list[str]
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Frame:
    """The position of a box: `x` is its middle, `y` its top."""

    x: float
    y: float
    width: float
    height: float


def draw(diagram: Diagram) -> str:
    """Draw a graph as SVG."""
    drawing = _drawing(diagram, "")
    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    head = HEAD.format(w=width, h=height, name=_xml(diagram.name))
    body = "\n".join(drawing.parts)
    return f'{head}\n<g transform="translate({MARGIN:.0f} {MARGIN:.0f})">\n{body}\n</g>\n</svg>\n'


def _drawing(diagram: Diagram, path: str) -> Drawing:
    inside = {
        box.id: _drawing(box.inner, f"{path}{box.id}{PATH}") for box in diagram.boxes if box.inner is not None
    }
    sizes = {box.id: _size(box, inside.get(box.id)) for box in diagram.boxes}
    pairs = diagram.forward
    rows, paths = with_bends(layers([box.id for box in diagram.boxes], pairs), pairs)
    frames = _frames(rows, sizes, paths.values())
    width = max((frame.x + frame.width / 2 for frame in frames.values()), default=0.0)
    courses = {
        arrow: [frames[point] for point in paths[arrow.source, arrow.target]]
        for arrow in diagram.arrows
        if not arrow.back
    }
    parts = [_line(course) for course in courses.values()]
    labels = _labels(courses)
    parts += [_words(x, y, arrow.words) for arrow, (x, y) in labels.items()]
    side, words = width, 0.0
    for arrow in (arrow for arrow in diagram.arrows if arrow.back):
        side += SIDE
        parts += _back(arrow, frames, side)
        words = max(words, len(arrow.words) * CHARACTER)
    for box in diagram.boxes:
        parts += _box(box, frames[box.id], inside.get(box.id), path)
    height = max((frame.y + frame.height for frame in frames.values()), default=0.0)
    ends = [x + len(arrow.words) * CHARACTER for arrow, (x, _) in labels.items()]
    return Drawing(parts, max(side + words + (PAD if words else 0), *ends, 0.0), height)


def _size(box: Box, inside: Drawing | None) -> tuple[float, float]:
    lines = box.lines
    width, height = max(map(len, lines)) * CHARACTER + 2 * PAD, len(lines) * LINE + 2 * PAD - 6
    if inside is not None:
        return max(width, inside.width + 2 * PAD), height + inside.height + PAD
    return width, height


def _frames(
    rows: list[list[str]], sizes: Mapping[str, tuple[float, float]], paths: Iterable[list[str]]
) -> dict[str, Frame]:
    nothing = (0.0, 0.0)
    widths = {name: sizes.get(name, nothing)[0] for row in rows for name in row}
    steps = [step for path in paths for step in itertools.pairwise(path)]
    middles = centres(rows, widths, steps)
    frames: dict[str, Frame] = {}
    top = 0.0
    for row in rows:
        height = max(sizes.get(name, nothing)[1] for name in row)
        for name in row:
            width, own = sizes.get(name, (0.0, height))
            frames[name] = Frame(middles[name], top + (height - own) / 2, width, own)
        top += height + BETWEEN
    return frames


def _line(course: Sequence[Frame]) -> str:
    path = f"M{course[0].x:.1f} {course[0].y + course[0].height:.1f}"
    for above, below in itertools.pairwise(course):
        y, end = above.y + above.height, below.y
        bend = (end - y) / 2
        path += f" C{above.x:.1f} {y + bend:.1f} {below.x:.1f} {end - bend:.1f} {below.x:.1f} {end:.1f}"
        if below is not course[-1]:
            path += f" L{below.x:.1f} {end + below.height:.1f}"
    return f'<path class="edge" d="{path}" fill="none" stroke="#44546a" marker-end="url(#tip)"/>'


def _labels(courses: Mapping[Arrow, Sequence[Frame]]) -> dict[Arrow, tuple[float, float]]:
    """Place labels near the target, where lines out of one node have parted, at alternating heights."""
    positions: dict[Arrow, tuple[float, float]] = {}
    in_layer: dict[float, int] = {}
    for arrow, course in sorted(courses.items(), key=lambda item: item[1][-1].x):
        if arrow.label:
            above, end = course[-2:]
            number = in_layer.get(end.y, 0)
            in_layer[end.y] = number + 1
            positions[arrow] = end.x + (above.x - end.x) * 0.1 + 6, end.y - 14 - 15 * (number % 3)
    return positions


def _back(arrow: Arrow, frames: Mapping[str, Frame], side: float) -> Iterator[str]:
    source, target = frames[arrow.source], frames[arrow.target]
    low, high = source.y + source.height * 0.7, target.y + target.height * 0.3
    start, end = source.x + source.width / 2, target.x + target.width / 2
    path = (
        f"M{start:.1f} {low:.1f} H{side - 8:.1f} Q{side:.1f} {low:.1f} {side:.1f} {low - 8:.1f} "
        f"V{high + 8:.1f} Q{side:.1f} {high:.1f} {side - 8:.1f} {high:.1f} H{end:.1f}"
    )
    yield (
        f'<path class="edge" d="{path}" fill="none" stroke="#44546a" stroke-dasharray="5 4" '
        'marker-end="url(#tip)"/>'
    )
    yield _words(side + 6, (low + high) / 2, arrow.words)


def _words(x: float, y: float, text: str) -> str:
    """A white outline keeps the words readable where a line passes."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11.5" fill="#333333" stroke="#ffffff" stroke-width="4" '
        f'paint-order="stroke" class="words">{_xml(text)}</text>'
    )


def _box(box: Box, frame: Frame, inside: Drawing | None, path: str) -> Iterator[str]:
    """Draw a box; its group names the node and its state, for the styles and scripts of a page."""
    fill, stroke = COLOURS.get(box.state, PLAIN)
    left, corner = frame.x - frame.width / 2, 14 if box.kind == "agent" else 4
    dash = ' stroke-dasharray="4 3"' if box.state in {"pending", "skipped", "cancelled"} else ""
    thick = 2.5 if box.state in {"failed", "waiting"} else 1.2
    name = _attribute(path + box.id)
    yield f'<g class="node" data-node="{name}" data-state="{_attribute(box.state)}">'
    yield (
        f'<rect x="{left:.1f}" y="{frame.y:.1f}" width="{frame.width:.1f}" height="{frame.height:.1f}" '
        f'rx="{corner}" fill="{fill}" stroke="{stroke}" stroke-width="{thick}"{dash}/>'
    )
    for number, line in enumerate(box.lines):
        y = frame.y + PAD + LINE * (number + 0.55)
        weight = ' font-weight="bold"' if number == 0 else ' fill="#444444"'
        yield f'<text x="{frame.x:.1f}" y="{y:.1f}" text-anchor="middle"{weight}>{_xml(line)}</text>'
    if inside is not None:
        x, y = frame.x - inside.width / 2, frame.y + frame.height - inside.height - PAD
        yield f'<g transform="translate({x:.1f} {y:.1f})">'
        yield from inside.parts
        yield "</g>"
    yield "</g>"


def _xml(text: str) -> str:
    return escape("".join(character if character.isprintable() else "�" for character in text))


def _attribute(text: str) -> str:
    return _xml(text).replace('"', "&quot;")
