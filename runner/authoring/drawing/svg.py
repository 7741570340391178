"""A graph as SVG: boxes in layers from left to right, lines around them, loops along the bottom."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from runner.authoring.drawing.diagram import Arrow, Box, Diagram
from runner.authoring.drawing.layout import centres, layers, with_bends
from runner.immutable import immutable
from runner.records.run import PATH

CHARACTER = 7.6  # width of a character
SMALL = 6.9  # and of one in small text
LINE = 17.0  # height of a line of text
PAD = 12.0  # between a box and its text

BETWEEN = 34.0  # space between two layers

MARGIN = 16.0

LANE = 26.0  # spacing of the lines along the bottom
ASIDE = 18.0  # their distance beside the first and last box

LABEL, LABELS = 24, 3  # the most characters of a label's line, and the most lines


class LabelWrapper(textwrap.TextWrapper):
    """Breaks a condition's label, which may be code, between names and never within a name."""

    wordsep_re = re.compile(r"(\s+)|(?=[.\[(]\D)")


WRAPPER = LabelWrapper(LABEL, max_lines=LABELS, placeholder=" …", break_long_words=False)

ALIKE = 280.0  # boxes of a layer up to this width are made equally wide

TOGGLE = 24.0

BAR = 10.0

COLOURS = {
    "completed": ("#dff3e4", "#2e7d4f"),
    "failed": ("#fbe3e3", "#b3261e"),
    "waiting": ("#fff3d1", "#9a6b00"),
    "held": ("#fff3d1", "#9a6b00"),
    "running": ("#ddeefb", "#1f6fb2"),
    "retrying": ("#f1e4f8", "#7b3fa0"),
    "pending": ("#ffffff", "#999999"),
    "ready": ("#ffffff", "#999999"),
    "skipped": ("#f2f2f2", "#999999"),
    "cancelled": ("#f2f2f2", "#999999"),
}

PLAIN = ("#f7f9fc", "#44546a")

HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" role="{role}" width="{size[0]}" height="{size[1]}" '
    'viewBox="0 0 {w:.0f} {h:.0f}" font-family="ui-monospace, DejaVu Sans Mono, monospace" font-size="12.5">'
    '<title>{name}</title><defs><marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" '
    'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#44546a"/>'
    '</marker></defs><rect class="ground" width="100%" height="100%" fill="#ffffff"/>'
)

EDGES = {
    None: ("edge", "", ""),
    True: ("edge taken", ' stroke-width="2"', ", taken"),
    False: ("edge dead", ' stroke-dasharray="2 4"', ", not taken"),
}
"""Class, stroke and title suffix of an edge, by whether it was taken."""


@immutable
class Links:
    """The addresses of the links on a node and on the sign that opens it, by the node's path.

    `marked` is the path of the selected node.
    """

    node: Callable[[str], str]
    toggle: Callable[[str], str]
    marked: str = ""


@immutable
class Drawing:
    """SVG elements with their total size, so that a graph can be placed inside a box."""

    parts: list[str]
    width: float
    height: float


@immutable
class Frame:
    """Position of a box: `x` is its left, `y` its middle, `column` its layer's left and right."""

    x: float
    y: float
    width: float
    height: float
    column: tuple[float, float]


def fragment(path: str) -> str:
    """Return the URL fragment of a node in a drawing with links."""
    return f"at-{path}"


def draw(diagram: Diagram, links: Links | None = None) -> str:
    """Draw a graph as SVG; with `links` its nodes link to their details."""
    drawing = _drawing(diagram, "", links)
    width = drawing.width + 2 * MARGIN
    height = drawing.height + 2 * MARGIN
    # On a page the drawing scales with the reader's text size.
    size = [f"{length / 16:.2f}rem" if links else f"{length:.0f}" for length in (width, height)]
    role = "group" if links else "img"
    head = HEAD.format(w=width, h=height, size=size, name=_xml(diagram.name), role=role)
    body = "\n".join(drawing.parts)
    return (
        f'{head}\n<g transform="translate({MARGIN:.0f} {MARGIN:.0f})">\n{body}\n</g>\n</svg>\n'
    )


def _drawing(diagram: Diagram, path: str, links: Links | None) -> Drawing:
    # The nodes of a group are nodes of the same graph.
    inside = {
        box.id: _drawing(
            box.inner, path if box.kind == "group" else f"{path}{box.id}{PATH}", links
        )
        for box in diagram.boxes
        if box.inner is not None
    }
    sizes = {box.id: _size(box, inside.get(box.id), links) for box in diagram.boxes}
    pairs = diagram.forward
    rows, paths = with_bends(layers([box.id for box in diagram.boxes], pairs), pairs)
    labels = {
        arrow: WRAPPER.wrap(arrow.words)
        for arrow in diagram.arrows
        if arrow.label or arrow.back
    }
    frames = _frames(rows, sizes, paths.values(), labels)
    rooms = (frame.y + _room(name, frame.height, labels) / 2 for name, frame in frames.items())
    height = max(rooms, default=0.0)
    has_back = any(arrow.back for arrow in diagram.arrows)
    width = (
        max((frame.x + frame.width for frame in frames.values()), default=0.0)
        + ASIDE * has_back
    )
    elements: list[str] = []
    into: dict[tuple[str, bool], int] = {}
    for arrow in diagram.arrows:
        lines = labels.get(arrow, [])
        if arrow.back:
            height += LANE
            elements += _back(arrow, frames, height, lines)
            height += (len(lines) - 1) * LINE if lines else 0
        else:
            course = [frames[point] for point in paths[arrow.source, arrow.target]]
            elements.append(_line(arrow, course))
            # The label goes on the side the line comes from, to show which line it belongs to.
            end = course[-1]
            is_below = course[-2].y > course[-1].y + LINE
            arrow_count = into.get((arrow.target, is_below), 0)
            into[arrow.target, is_below] = arrow_count + len(lines)
            y = (
                end.y + 17 + LINE * (arrow_count + len(lines) - 1)
                if is_below
                else end.y - 7 - LINE * arrow_count
            )
            elements += _words(end.x - 12, y, lines, arrow.words, "end")
    for box in diagram.boxes:
        elements += _box(box, frames[box.id], inside.get(box.id), path, links)
    return Drawing(elements, width, height + PAD * has_back)


def _lines(box: Box, links: Links | None) -> list[tuple[str, str]]:
    """Return a box's lines and their attributes; a page leaves out the common kind "function"."""
    name, words, *states = box.lines
    if links is not None:
        words = words.removeprefix("function").removeprefix(", ")
    lines = [(name, ' font-weight="bold"'), (words, ' fill="#444444" font-size="11.5"')]
    lines += [(state, ' font-size="11.5" class="word"') for state in states]
    return [line for line in lines if line[0]]


def _size(box: Box, inside: Drawing | None, links: Links | None) -> tuple[float, float]:
    lines = _lines(box, links)
    width = max(len(box.id) * CHARACTER, *(len(line) * SMALL for line, _ in lines)) + 2 * PAD
    height = len(lines) * LINE + 2 * PAD - 6 + (BAR if box.progress.total else 0)
    if box.holds:
        width += TOGGLE
    if inside is not None:
        return max(width, inside.width + 2 * PAD), height + inside.height + PAD
    return width, height


def _frames(
    rows: list[list[str]],
    sizes: Mapping[str, tuple[float, float]],
    paths: Iterable[list[str]],
    labels: Mapping[Arrow, Sequence[str]],
) -> dict[str, Frame]:
    heights = {name: sizes[name][1] if name in sizes else 0.0 for row in rows for name in row}
    steps = [step for path in paths for step in itertools.pairwise(path)]
    middles = centres(
        rows, {name: _room(name, heights[name], labels) for name in heights}, steps
    )
    frames: dict[str, Frame] = {}
    x = ASIDE * any(arrow.back for arrow in labels)
    for number, row in enumerate(rows):
        x += _gap(row, labels) if number else 0
        widths, widest = _widths(row, sizes)
        for name in row:
            frames[name] = Frame(x, middles[name], widths[name], heights[name], (x, x + widest))
        x += widest
    return frames


def _room(name: str, height: float, labels: Mapping[Arrow, Sequence[str]]) -> float:
    """Return a box's height with the labels of lines to it, above and below its middle."""
    count = sum(
        len(lines) for arrow, lines in labels.items() if arrow.target == name and not arrow.back
    )
    return max(height, 2 * LINE * count + PAD)


def _gap(row: Iterable[str], labels: Mapping[Arrow, Sequence[str]]) -> float:
    """Return the space before a row: more if an edge that leads to it has a label."""
    lengths = [
        len(line)
        for arrow, lines in labels.items()
        if arrow.target in row and not arrow.back
        for line in lines
    ]
    return BETWEEN + (max(lengths) * SMALL + 1.5 * PAD if any(lengths) else 0)


def _widths(
    row: Iterable[str], sizes: Mapping[str, tuple[float, float]]
) -> tuple[dict[str, float], float]:
    """Return the widths of a row's boxes, similar ones made equal, and the widest."""
    widths = {name: sizes[name][0] for name in row if name in sizes}
    widest = max(widths.values(), default=0.0)
    alike = max((width for width in widths.values() if width <= ALIKE), default=0.0)
    return {
        name: max(widths[name], alike) if name in widths else widest for name in row
    }, widest


def _line(arrow: Arrow, course: Sequence[Frame]) -> str:
    start = course[0]
    path = f"M{start.x + start.width:.1f} {start.y:.1f}"
    for source, target in itertools.pairwise(course):
        # Straight to the end of the layer, past wider boxes; and straight again below the label.
        x = source.column[1]
        y = target.y
        there = min(x + BETWEEN, target.x)
        bend = (x + there) / 2
        path += f" H{x:.1f} C{bend:.1f} {source.y:.1f} {bend:.1f} {y:.1f} {there:.1f} {y:.1f} H{target.x:.1f}"
    return _edge(arrow, path)


def _edge(arrow: Arrow, path: str) -> str:
    kind, stroke, title = EDGES[arrow.taken]
    dash = ' stroke-dasharray="6 4"' if arrow.back and arrow.taken is not False else ""
    return (
        f'<path class="{kind}" d="{path}" fill="none" stroke="#44546a"{stroke}{dash} marker-end="url(#tip)">'
        f"<title>{_xml(arrow.source)} to {_xml(arrow.target)}{title}</title></path>"
    )


def _back(
    arrow: Arrow, frames: Mapping[str, Frame], lane: float, lines: Sequence[str]
) -> Iterator[str]:
    source = frames[arrow.source]
    target = frames[arrow.target]
    right = source.column[1] + ASIDE - 4
    left = target.x - ASIDE + 4
    low = source.y + source.height * 0.3
    high = target.y + target.height * 0.3
    path = (
        f"M{source.x + source.width:.1f} {low:.1f} H{right - 8:.1f} Q{right:.1f} {low:.1f} {right:.1f} "
        f"{low + 8:.1f} V{lane - 8:.1f} Q{right:.1f} {lane:.1f} {right - 8:.1f} {lane:.1f} H{left + 8:.1f} "
        f"Q{left:.1f} {lane:.1f} {left:.1f} {lane - 8:.1f} V{high + 8:.1f} "
        f"Q{left:.1f} {high:.1f} {left + 8:.1f} {high:.1f} H{target.x:.1f}"
    )
    yield _edge(arrow, path)
    below = lane + 4 + LINE * (len(lines) - 1)
    yield from _words((left + right) / 2, below, lines, arrow.words, "middle")


def _words(x: float, y: float, lines: Sequence[str], whole: str, anchor: str) -> Iterator[str]:
    """Write a label's lines, the last at `y`, with a white outline for readability over lines."""
    for number, line in enumerate(reversed(lines)):
        title = f"<title>{_xml(whole)}</title>" if line.endswith("…") else ""
        yield (
            f'<text x="{x:.1f}" y="{y - LINE * number:.1f}" text-anchor="{anchor}" font-size="11.5" '
            f'fill="#333333" stroke="#ffffff" stroke-width="4" paint-order="stroke" class="words">'
            f"{title}{_xml(line)}</text>"
        )


def _box(
    box: Box, frame: Frame, inside: Drawing | None, path: str, links: Links | None
) -> Iterator[str]:
    """Draw a box; its group names the node and its state, for the styles and scripts of a page."""
    fill, stroke = COLOURS.get(box.state, PLAIN)
    top = frame.y - frame.height / 2
    corner = 14 if box.kind == "agent" else 4
    dash = ' stroke-dasharray="4 3"' if box.state in {"pending", "skipped", "cancelled"} else ""
    thick = 2.5 if box.state in {"failed", "waiting", "held"} else 1.2
    name = path + box.id
    is_marked = links is not None and links.marked == name
    kind = "node marked" if is_marked else "node"
    yield f'<g class="{kind}" data-node="{_attribute(name)}" data-state="{_attribute(box.state)}">'
    is_link = links is not None and box.kind != "group"
    if links is not None and is_link:
        current = ' aria-current="true"' if is_marked else ""
        target = _attribute(fragment(name))
        yield f'<a id="{target}" href="{_attribute(links.node(name))}"{current}>'
    yield (
        f'<rect x="{frame.x:.1f}" y="{top:.1f}" width="{frame.width:.1f}" height="{frame.height:.1f}" '
        f'rx="{corner}" fill="{fill}" stroke="{stroke}" stroke-width="{thick}"{dash}/>'
    )
    lines = _lines(box, links)
    for number, (line, look) in enumerate(lines):
        y = top + PAD + LINE * (number + 0.55)
        yield f'<text x="{frame.x + PAD:.1f}" y="{y:.1f}"{look}>{_xml(line)}</text>'
    if box.progress.total:
        y = top + PAD + LINE * len(lines) - 2
        whole = frame.width - 2 * PAD
        done_width = whole * min(1.0, box.progress.done / box.progress.total)
        for kind, width, colour in (
            ("track", whole, "#d9dcda"),
            ("done", done_width, "#2e7d4f"),
        ):
            yield (
                f'<rect class="{kind}" x="{frame.x + PAD:.1f}" y="{y:.1f}" width="{width:.1f}" height="6" '
                f'rx="3" fill="{colour}"/>'
            )
    if is_link:
        yield "</a>"
    if links is not None and box.holds:
        yield from _toggle(box, frame.x + frame.width - TOGGLE - 4, top + 4, links.toggle(name))
    if inside is not None:
        x = frame.x + (frame.width - inside.width) / 2
        y = top + frame.height - inside.height - PAD
        yield f'<g transform="translate({x:.1f} {y:.1f})">'
        yield from inside.parts
        yield "</g>"
    yield "</g>"


def _toggle(box: Box, x: float, y: float, address: str) -> Iterator[str]:
    verb, sign = ("Open", "+") if box.inner is None else ("Close", "-")
    yield (
        f'<a class="toggle" href="{_attribute(address)}" aria-label="{verb} {_attribute(box.id)}">'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{TOGGLE:.0f}" height="{TOGGLE:.0f}" rx="4" fill="#ffffff" '
        f'stroke="#44546a"/><text x="{x + TOGGLE / 2:.1f}" y="{y + 17:.1f}" text-anchor="middle" '
        f'font-size="15">{sign}</text></a>'
    )


def _xml(text: str) -> str:
    return escape("".join(character if character.isprintable() else "�" for character in text))


def _attribute(text: str) -> str:
    return _xml(text).replace('"', "&quot;")
