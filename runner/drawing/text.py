"""A graph as lines of text: a line a node, and beside it the rails that lead from node to node.

A rail is either all ways out of one node or all ways into one node, so that many lines share few
columns. A rail that a line crosses without touching it stays a plain `│`; where a line joins a rail
that others use, the point of an arrow says which way it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(slots=True, eq=False)
class Rail:
    """A column that leads from one node, or to one; `ends` are the nodes that it leads to, still to come."""

    ends: set[str]


@dataclass(frozen=True, slots=True)
class Row:
    """What is drawn in one line: `links` are joined to the column `at`, `above` carried something to it.

    `heads` are the points of arrows, by the column to their left. They say which way a joint is to be read.
    """

    at: int = -1
    links: Sequence[int] = ()
    above: Sequence[int] = ()
    sign: str = ""
    heads: Mapping[int, str] = field(default_factory=dict)


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

    def rails(self, row: Row) -> str:
        """Draw one line of rails."""
        joined = {row.at, *row.links}
        first, last = min(joined), max(joined)
        drawn = ""
        for index, rail in enumerate(self.columns):
            ways = (UP if index in row.above else 0) | (DOWN if rail is not None else 0)
            if index in joined and first < last:
                ways |= (LEFT if index > first else 0) | (RIGHT if index < last else 0)
            elif not ways and first < index < last:
                ways = LEFT | RIGHT
            drawn += row.sign if row.sign and index == row.at else LINES.get(ways, " ")
            drawn += row.heads.get(index, "─") if first <= index < last else " "
        return drawn.rstrip()

    def add(self, row: Row, words: str) -> None:
        """Add a line."""
        self.lines.append((self.rails(row), words))

    def carried(self) -> list[int]:
        """Name the columns that carry something down to the next line."""
        return [index for index, rail in enumerate(self.columns) if rail is not None]


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
    """Draw a node's line, the lines that join it to what follows, and a line for each word that is left."""
    for rail in into:
        rail.ends.discard(box.id)
    arrived = _taps(sheet, [index for index in sheet.carried() if _rail(sheet, index) in into])
    above = sheet.carried()
    ended = _ended(sheet, arrived)
    for index in ended:
        sheet.columns[index] = None
    at = ended[0] if ended else sheet.free(len(sheet.columns))
    heads = {at - 1: "▸"} if min(arrived, default=at) < at else {}
    heads |= {at: "◂"} if max(arrived, default=at) > at else {}
    sheet.add(Row(at, arrived, above, _sign(box), heads), words[0])
    rest = words[1:]
    for row in _leaving(sheet, after, at):
        sheet.add(row, rest.pop(0) if rest else "")
    for line in rest:
        sheet.add(Row(above=sheet.carried()), line)


def _ended(sheet: Sheet, arrived: Sequence[int]) -> list[int]:
    return [index for index in arrived if not _rail(sheet, index).ends]


def _rail(sheet: Sheet, index: int) -> Rail:
    found = sheet.columns[index]
    assert found is not None  # noqa: S101 - asked only of columns that carry something
    return found


def _taps(sheet: Sheet, arrived: list[int]) -> list[int]:
    """Let rails that go on beyond a node branch off before its line, where others arrive, too.

    In one line with others, such a joint would read as if those others went on with it.
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


def _leaving(sheet: Sheet, after: Sequence[Rail], at: int) -> Iterator[Row]:
    """Give a line for all rails that begin here, then one for each that others have begun."""
    above = sheet.carried()
    known = [index for index in above if _rail(sheet, index) in after]
    begun = [_rail(sheet, index) for index in known]
    fresh = []
    for rail in [rail for rail in after if rail not in begun]:
        fresh.append(sheet.free(at))
        sheet.columns[fresh[-1]] = rail
    own = sheet.columns[at]
    stub = own or Rail(set())
    if fresh:
        sheet.columns[at] = stub if known else own
        yield Row(at, fresh, [*above, at])
    for number, index in enumerate(known, 1):
        sheet.columns[at] = own if number == len(known) else stub
        yield Row(at, [index], [*above, *fresh, at], heads={index: "◂"} if index < at else {index - 1: "▸"})


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
