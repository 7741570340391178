"""A graph as lines of text: a line a node, and beside it the rails that lead from node to node.

A rail is either all ways out of one node or all ways into one node, so that many lines share few
columns. A rail that a line crosses without touching it stays a plain `│`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runner.drawing.layout import layers
from runner.drawing.picture import SIGNS, Arrow, Box, Picture

UP_RIGHT, UP_LEFT, DOWN_RIGHT, DOWN_LEFT = "└", "┘", "┌", "┐"
UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
LINES = {
    UP | DOWN: "│",
    LEFT | RIGHT: "─",
    UP | RIGHT: UP_RIGHT,
    UP | LEFT: UP_LEFT,
    DOWN | RIGHT: DOWN_RIGHT,
    DOWN | LEFT: DOWN_LEFT,
    UP | DOWN | RIGHT: "├",
    UP | DOWN | LEFT: "┤",
    UP | LEFT | RIGHT: "┴",
    DOWN | LEFT | RIGHT: "┬",
    UP | DOWN | LEFT | RIGHT: "┼",
}


@dataclass(slots=True)
class Rail:
    """A column that leads from one node, or to one; `ends` are the nodes that it leads to, still to come."""

    ends: set[str]


@dataclass(slots=True)
class Sheet:
    """The drawing so far: its lines as (rails, words), and what each column carries down."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    columns: list[Rail | None] = field(default_factory=list)

    def free(self, near: int) -> int:
        """Find a column that carries nothing, `near` itself if it can be, else the first one."""
        if near < len(self.columns) and self.columns[near] is None:
            return near
        for index, rail in enumerate(self.columns):
            if rail is None:
                return index
        self.columns.append(None)
        return len(self.columns) - 1

    def rails(
        self, at: int = -1, sign: str = "", links: Iterable[int] = (), before: Sequence[int] = ()
    ) -> str:
        """Draw one line of rails: `links` are joined to the column `at`, `before` came from above."""
        joined = {at, *links}
        first, last = min(joined), max(joined)
        drawn = ""
        for index, rail in enumerate(self.columns):
            down = DOWN if rail is not None else 0
            up = UP if index in before else 0
            if index in joined and first < last:
                side = (LEFT if index > first else 0) | (RIGHT if index < last else 0)
                cell = LINES.get(up | down | side, " ")
            else:
                cell = "│" if up or down else "─" if first < index < last else " "
            drawn += (sign if sign and index == at else cell) + ("─" if first <= index < last else " ")
        return drawn.rstrip()


def draw(picture: Picture) -> str:
    """Draw a graph as text."""
    return "\n".join([picture.name, "", *_lines(picture), ""])


def _lines(picture: Picture) -> list[str]:
    pairs = picture.forward
    order = [name for row in layers([box.id for box in picture.boxes], pairs) for name in row]
    outward, inward = _rails(pairs)
    boxes = {box.id: box for box in picture.boxes}
    out: dict[str, list[Arrow]] = {name: [] for name in boxes}
    for arrow in picture.arrows:
        out[arrow.source].append(arrow)
    into: dict[str, list[Rail]] = {name: [inward[name]] if name in inward else [] for name in boxes}
    after: dict[str, list[Rail]] = {name: [outward[name]] if name in outward else [] for name in boxes}
    for source, target in pairs:
        if source in outward and target in outward[source].ends:
            into[target].append(outward[source])
        else:
            after[source].append(inward[target])
    sheet = Sheet()
    for name in order:
        _node(sheet, boxes[name], into[name], after[name], _words(boxes[name], out[name]))
    width = max((len(rails) for rails, _ in sheet.lines), default=0) + 2
    return [f"{rails:<{width}}{words}".rstrip() for rails, words in sheet.lines]


def _rails(pairs: Sequence[tuple[str, str]]) -> tuple[dict[str, Rail], dict[str, Rail]]:
    """Give each line to the rail out of its source or into its target, whichever has more lines."""
    leaving: dict[str, int] = {}
    entering: dict[str, int] = {}
    for source, target in pairs:
        leaving[source] = leaving.get(source, 0) + 1
        entering[target] = entering.get(target, 0) + 1
    outward: dict[str, Rail] = {}
    inward: dict[str, Rail] = {}
    for source, target in pairs:
        if leaving[source] > entering[target]:
            outward.setdefault(source, Rail(set())).ends.add(target)
        else:
            inward.setdefault(target, Rail({target}))
    return outward, inward


def _node(sheet: Sheet, box: Box, into: Sequence[Rail], after: Sequence[Rail], words: list[str]) -> None:
    """Draw a node's line, the line that joins it to what follows, and a line for each word that is left."""
    before = [index for index, rail in enumerate(sheet.columns) if rail is not None]
    arrived = [index for index, rail in enumerate(sheet.columns) if rail is not None and rail in into]
    for index in arrived:
        rail = sheet.columns[index]
        assert rail is not None  # noqa: S101 - chosen so above
        rail.ends.discard(box.id)
        if not rail.ends:
            sheet.columns[index] = None
    ended = [index for index in arrived if sheet.columns[index] is None]
    at = ended[0] if ended else sheet.free(len(sheet.columns))
    sheet.lines.append((sheet.rails(at, _sign(box), arrived, before), words[0]))
    rest = words[1:]
    if after:
        before = [index for index, rail in enumerate(sheet.columns) if rail is not None]
        links = [_lay(sheet, rail, at) for rail in after]
        rest = rest or [""]
        sheet.lines.append((sheet.rails(at, "", links, [*before, at]), rest.pop(0)))
    sheet.lines += [(sheet.rails(), line) for line in rest]


def _lay(sheet: Sheet, rail: Rail, at: int) -> int:
    """Return the column of a rail, which begins here if nothing has led to it yet."""
    known = next((index for index, other in enumerate(sheet.columns) if other is rail), None)
    if known is None:
        known = sheet.free(at)
        sheet.columns[known] = rail
    return known


def _sign(box: Box) -> str:
    return SIGNS.get(box.state, "○") if box.state else "●"


def _words(box: Box, arrows: Sequence[Arrow]) -> list[str]:
    lines = [f"{box.id}  {box.state + '  ' if box.state else ''}{box.words}"]
    for arrow in arrows:
        if arrow.back or arrow.label:
            condition = f" if {arrow.label}" if arrow.label else ""
            lines.append(f"  {'↺ again from' if arrow.back else '→'} {arrow.target}{condition}")
    if box.inner is not None:
        lines += [f"  ┊ {line}".rstrip() for line in _lines(box.inner)]
    return lines
