"""A graph as lines of text: one line for each node, and beside them rails that lead from node to node.

A rail carries either all edges out of one node or all edges into one node, so that many edges share
few columns. A rail that a line only crosses stays a plain `│`; where a line joins a rail that others
use, an arrowhead shows its direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.authoring.drawing.diagram import Arrow, Box, Diagram
from runner.authoring.drawing.layout import layers

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


@dataclass(slots=True, eq=False)
class Rail:
    """A column that leads from one node, or to one; `ends` are its targets that are not yet drawn."""

    ends: set[str]


@dataclass(frozen=True, slots=True)
class Row:
    """One line: it joins the columns `links` to `column`; `above` are those that reach it from above.

    `heads` are arrowheads by the column to their left. They show in which direction a joint is read.
    """

    column: int = -1
    links: Sequence[int] = ()
    above: Sequence[int] = ()
    sign: str = ""
    heads: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Sheet:
    """The drawing so far: its lines as (rails, words), and the rail that each column carries down."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    columns: list[Rail | None] = field(default_factory=list)

    def free(self, near: int) -> int:
        """Return a free column: `near` if it is free, otherwise the first one, added if need be."""
        if near < len(self.columns) and self.columns[near] is None:
            return near
        for index, rail in enumerate(self.columns):
            if rail is None:
                return index
        self.columns.append(None)
        return len(self.columns) - 1

    def rails(self, row: Row) -> str:
        """Return the characters of one line, up to the last rail."""
        joined = {row.column, *row.links}
        first, last = min(joined), max(joined)
        drawn = ""
        for index, rail in enumerate(self.columns):
            sides = (UP if index in row.above else 0) | (DOWN if rail is not None else 0)
            if index in joined and first < last:
                sides |= (LEFT if index > first else 0) | (RIGHT if index < last else 0)
            elif not sides and first < index < last:
                sides = LEFT | RIGHT
            drawn += row.sign if row.sign and index == row.column else LINES.get(sides, " ")
            drawn += row.heads.get(index, "─") if first <= index < last else " "
        return drawn.rstrip()

    def add(self, row: Row, words: str) -> None:
        """Draw a line with the columns as they are now; its words are aligned when all lines are drawn."""
        self.lines.append((self.rails(row), words))

    def carried(self) -> list[int]:
        """Return the columns that carry a rail down to the next line."""
        return [index for index, rail in enumerate(self.columns) if rail is not None]


def draw(diagram: Diagram) -> str:
    """Draw a graph as text."""
    return "\n".join([diagram.name, "", *_lines(diagram), ""])


def _lines(diagram: Diagram) -> list[str]:
    pairs = diagram.forward
    order = [name for row in layers([box.id for box in diagram.boxes], pairs) for name in row]
    outward, inward = _rails(pairs)
    boxes = {box.id: box for box in diagram.boxes}
    out: dict[str, list[Arrow]] = {name: [] for name in boxes}
    for arrow in diagram.arrows:
        out[arrow.source].append(arrow)
    into: dict[str, list[Rail]] = {name: [inward[name]] if name in inward else [] for name in boxes}
    after: dict[str, list[Rail]] = {
        name: [outward[name]] if name in outward else [] for name in boxes
    }
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
    """Assign each edge to the rail out of its source or into its target, whichever has more edges."""
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


def _node(
    sheet: Sheet, box: Box, into: Sequence[Rail], after: Sequence[Rail], words: list[str]
) -> None:
    """Draw a node's line, the lines that join it to its targets, and lines for the words left over."""
    for rail in into:
        rail.ends.discard(box.id)
    arrived = _taps(sheet, [index for index in sheet.carried() if _rail(sheet, index) in into])
    above = sheet.carried()
    ended = _ended(sheet, arrived)
    for index in ended:
        sheet.columns[index] = None
    column = ended[0] if ended else sheet.free(len(sheet.columns))
    heads = {column - 1: "▸"} if min(arrived, default=column) < column else {}
    heads |= {column: "◂"} if max(arrived, default=column) > column else {}
    sheet.add(Row(column, arrived, above, box.sign, heads), words[0])
    rest = words[1:]
    for row in _leaving(sheet, after, column):
        sheet.add(row, rest.pop(0) if rest else "")
    for line in rest:
        sheet.add(Row(above=sheet.carried()), line)


def _ended(sheet: Sheet, arrived: Sequence[int]) -> list[int]:
    return [index for index in arrived if not _rail(sheet, index).ends]


def _rail(sheet: Sheet, index: int) -> Rail:
    rail = sheet.columns[index]
    assert rail is not None  # noqa: S101 - called only for columns that carry a rail
    return rail


def _taps(sheet: Sheet, arrived: list[int]) -> list[int]:
    """Branch rails that continue below a node off before its line, where others end at it.

    In one line, the joint would read as if those others continued as well.
    """
    ended = _ended(sheet, arrived)
    going_on = [index for index in arrived if index not in ended]
    if not going_on or len(arrived) == 1 or (len(going_on) == 1 and len(ended) == 1):
        return arrived
    for index in going_on:
        above = sheet.carried()
        tap = sheet.free(len(sheet.columns))
        sheet.columns[tap] = Rail(set())
        sheet.add(Row(index, [tap], above), "")
        ended.append(tap)
    return sorted(ended)


def _leaving(sheet: Sheet, after: Sequence[Rail], column: int) -> Iterator[Row]:
    """Yield a line for all rails that begin at this node, then one for each that began at another."""
    above = sheet.carried()
    joined = [index for index in above if _rail(sheet, index) in after]
    begun = [_rail(sheet, index) for index in joined]
    fresh = []
    for rail in [rail for rail in after if rail not in begun]:
        fresh.append(sheet.free(column))
        sheet.columns[fresh[-1]] = rail
    own = sheet.columns[column]
    stub = own or Rail(set())
    if fresh:
        sheet.columns[column] = stub if joined else own
        yield Row(column, fresh, [*above, column])
    for number, index in enumerate(joined, 1):
        sheet.columns[column] = own if number == len(joined) else stub
        head = {index: "◂"} if index < column else {index - 1: "▸"}
        yield Row(column, [index], [*above, *fresh, column], heads=head)


def _words(box: Box, arrows: Sequence[Arrow]) -> list[str]:
    lines = [f"{box.id}  {box.state + '  ' if box.state else ''}{box.words}"]
    for arrow in arrows:
        if arrow.back or arrow.label:
            condition = f" if {arrow.label}" if arrow.label else ""
            lines.append(f"  {'↺ again from' if arrow.back else '→'} {arrow.target}{condition}")
    if box.inner is not None:
        lines += [f"  ┊ {line}".rstrip() for line in _lines(box.inner)]
    return lines
