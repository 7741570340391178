"""A graph as lines of text: one line for each node, beside rails that lead from node to node.

A rail carries either all edges out of one node or all edges into one node, so that many edges share
few columns. A rail that a line only crosses stays a plain `│`; if a line joins a rail that others
use, an arrowhead shows its direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.authoring.drawing.diagram import Arrow, Box, Diagram
from runner.authoring.drawing.layout import layers
from runner.immutable import immutable

UP_RIGHT = "└"
UP_LEFT = "┘"
DOWN_RIGHT = "┌"
DOWN_LEFT = "┐"

UP = 1
DOWN = 2
LEFT = 4
RIGHT = 8

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
    """A column that leads from one node, or to one; `ends` are its targets not yet drawn."""

    ends: set[str]


@immutable
class Row:
    """One line: it joins the columns `links` to `column`; `above` are columns that come from above.

    `heads` are arrowheads by the column to their left. They show the direction of a joint.
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
        """Return a free column: `near` if it is free, otherwise the first one, added if needed."""
        if near < len(self.columns) and self.columns[near] is None:
            return near
        for index, rail in enumerate(self.columns):
            if rail is None:
                return index
        self.columns.append(None)
        return len(self.columns) - 1

    def rails(self, row: Row) -> str:
        """Return the characters of one line, up to the last rail."""
        linked = {row.column, *row.links}
        leftmost = min(linked)
        rightmost = max(linked)
        drawn = ""
        for index, rail in enumerate(self.columns):
            sides = (UP if index in row.above else 0) | (DOWN if rail is not None else 0)
            if index in linked and leftmost < rightmost:
                sides |= (LEFT if index > leftmost else 0) | (RIGHT if index < rightmost else 0)
            elif not sides and leftmost < index < rightmost:
                sides = LEFT | RIGHT
            drawn += row.sign if row.sign and index == row.column else LINES.get(sides, " ")
            drawn += row.heads.get(index, "─") if leftmost <= index < rightmost else " "
        return drawn.rstrip()

    def add(self, row: Row, label: str) -> None:
        """Draw a line with the present columns; its label is aligned when all lines are drawn."""
        self.lines.append((self.rails(row), label))

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
    into, rails_out = (
        {name: [rails[name]] if name in rails else [] for name in boxes}
        for rails in (inward, outward)
    )
    for source, target in pairs:
        if source in outward and target in outward[source].ends:
            into[target].append(outward[source])
        else:
            rails_out[source].append(inward[target])
    sheet = Sheet()
    for name in order:
        _node(sheet, boxes[name], into[name], rails_out[name], _words(boxes[name], out[name]))
    width = max((len(rails) for rails, _ in sheet.lines), default=0) + 2
    return [f"{rails:<{width}}{label}".rstrip() for rails, label in sheet.lines]


def _rails(pairs: Sequence[tuple[str, str]]) -> tuple[dict[str, Rail], dict[str, Rail]]:
    """Assign each edge to the rail out of its source or into its target, whichever has more edges."""
    leaving = Counter(source for source, _ in pairs)
    entering = Counter(target for _, target in pairs)
    outward: dict[str, Rail] = {}
    inward: dict[str, Rail] = {}
    for source, target in pairs:
        if leaving[source] > entering[target]:
            outward.setdefault(source, Rail(set())).ends.add(target)
        else:
            inward.setdefault(target, Rail({target}))
    return outward, inward


def _node(
    sheet: Sheet, box: Box, into: Sequence[Rail], outward: Sequence[Rail], words: list[str]
) -> None:
    """Draw a node's line, the lines that join it to its targets, and lines for other words."""
    for rail in into:
        rail.ends.discard(box.id)
    arrivals = _taps(sheet, [index for index in sheet.carried() if _rail(sheet, index) in into])
    above = sheet.carried()
    free_columns = _ended(sheet, arrivals)
    for index in free_columns:
        sheet.columns[index] = None
    column = free_columns[0] if free_columns else sheet.free(len(sheet.columns))
    heads = {column - 1: "▸"} if min(arrivals, default=column) < column else {}
    heads |= {column: "◂"} if max(arrivals, default=column) > column else {}
    sheet.add(Row(column, arrivals, above, "●", heads), words[0])
    labels = words[1:]
    for row in _leaving(sheet, outward, column):
        sheet.add(row, labels.pop(0) if labels else "")
    for line in labels:
        sheet.add(Row(above=sheet.carried()), line)


def _ended(sheet: Sheet, arrivals: Sequence[int]) -> list[int]:
    return [index for index in arrivals if not _rail(sheet, index).ends]


def _rail(sheet: Sheet, index: int) -> Rail:
    rail = sheet.columns[index]
    assert rail is not None  # noqa: S101 - called only for columns that carry a rail
    return rail


def _taps(sheet: Sheet, arrivals: list[int]) -> list[int]:
    """Branch off rails that continue below a node before its line, if other rails end at the node.

    In one line, the joint would look as if the ending rails continued as well.
    """
    free_columns = _ended(sheet, arrivals)
    going_on = [index for index in arrivals if index not in free_columns]
    if not going_on or len(arrivals) == 1 or (len(going_on) == 1 and len(free_columns) == 1):
        return arrivals
    for index in going_on:
        above = sheet.carried()
        tap = sheet.free(len(sheet.columns))
        sheet.columns[tap] = Rail(set())
        sheet.add(Row(index, [tap], above), "")
        free_columns.append(tap)
    return sorted(free_columns)


def _leaving(sheet: Sheet, outward: Sequence[Rail], column: int) -> Iterator[Row]:
    """Yield a line for all rails that begin at this node, then one for each older rail it joins."""
    above = sheet.carried()
    joint_columns = [index for index in above if _rail(sheet, index) in outward]
    begun = [_rail(sheet, index) for index in joint_columns]
    fresh = []
    for rail in [rail for rail in outward if rail not in begun]:
        fresh.append(sheet.free(column))
        sheet.columns[fresh[-1]] = rail
    column_rail = sheet.columns[column]
    stub = column_rail or Rail(set())
    if fresh:
        sheet.columns[column] = stub if joint_columns else column_rail
        yield Row(column, fresh, [*above, column])
    for number, index in enumerate(joint_columns, 1):
        sheet.columns[column] = column_rail if number == len(joint_columns) else stub
        head = {index: "◂"} if index < column else {index - 1: "▸"}
        yield Row(column, [index], [*above, *fresh, column], heads=head)


def _words(box: Box, arrows: Sequence[Arrow]) -> list[str]:
    lines = [f"{box.id}  {box.words}"]
    for arrow in arrows:
        if arrow.back or arrow.label:
            condition = f" if {arrow.label}" if arrow.label else ""
            lines.append(f"  {'↺ again from' if arrow.back else '→'} {arrow.target}{condition}")
    if box.inner is not None:
        lines += [f"  ┊ {line}".rstrip() for line in _lines(box.inner)]
    return lines
