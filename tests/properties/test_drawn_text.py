"""A text drawing is read back, line by line as a person follows it, and must give the graph's own edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import GraphBuilder

UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)
WAYS = {
    "│": {UP, DOWN},
    "─": {LEFT, RIGHT},
    "└": {UP, RIGHT},
    "┘": {UP, LEFT},
    "┌": {DOWN, RIGHT},
    "┐": {DOWN, LEFT},
    "├": {UP, DOWN, RIGHT},
    "┤": {UP, DOWN, LEFT},
    "┴": {UP, LEFT, RIGHT},
    "┬": {DOWN, LEFT, RIGHT},
    "┼": {UP, DOWN, LEFT, RIGHT},
    "▸": {LEFT, RIGHT},
    "◂": {LEFT, RIGHT},
    "●": {UP, DOWN, LEFT, RIGHT},
}


def ident(ctx):
    return ctx.node_id


class Reader:
    """Follows the lines of a drawing from each node downwards, and sideways as the points of arrows say."""

    def __init__(self, drawn: str) -> None:
        self.lines = drawn.splitlines()[2:]
        places = [(row, line.index("●")) for row, line in enumerate(self.lines) if "●" in line]
        self.nodes = {
            place: next(word for word in self.lines[place[0]].split() if word.startswith("n"))
            for place in places
        }

    def at(self, row: int, column: int) -> str:
        line = self.lines[row] if 0 <= row < len(self.lines) else ""
        cell = line[column] if 0 <= column < len(line) else " "
        return cell if cell in WAYS and column < self.width() else " "

    def width(self) -> int:
        return min(line.index("n") for line in self.lines if "n" in line)

    def edges(self) -> set[tuple[str, str]]:
        return {
            (name, target)
            for (row, column), name in self.nodes.items()
            for target in self.follow(row + 1, column, DOWN)
        }

    def follow(self, row: int, column: int, way: tuple[int, int]) -> set[str]:
        """Collect the nodes that a line leads to, which comes into a cell going one way."""
        cell = self.at(row, column)
        back = (-way[0], -way[1])
        if cell == "●":
            # A line is at least one cell long: nodes right below each other are not joined.
            return (
                set()
                if self.at(row - way[0], column - way[1]) == "●"
                else {self.nodes[row, column]}
            )
        if cell == "│" and way in {LEFT, RIGHT}:
            return self.follow(row, column + way[1], way)  # a crossing
        if back not in WAYS.get(cell, set()):
            return set()
        places: set[str] = set()
        for onward in WAYS[cell] - {back, UP}:
            if onward == DOWN or self.leads(row, column, onward):
                places |= self.follow(row + onward[0], column + onward[1], onward)
        return places

    def leads(self, row: int, column: int, way: tuple[int, int]) -> bool:
        """A line to the side has one way: that of its point, or away from what comes from above."""
        begin = column
        while self.at(row, begin - 1) not in {" ", "●"}:
            begin -= 1
        end = column
        while self.at(row, end + 1) not in {" ", "●"}:
            end += 1
        drawn = "".join(self.at(row, number) for number in range(begin, end + 1))
        if "▸" in drawn or "◂" in drawn:
            return ("▸" if way == RIGHT else "◂") in drawn
        return True


@st.composite
def graphs(draw) -> list[tuple[int, int]]:
    size = draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, size - 2), st.integers(1, size - 1)).filter(
        lambda pair: pair[0] < pair[1]
    )
    return draw(st.lists(pairs, min_size=1, max_size=18, unique=True))


@pytest.mark.full
@given(graphs())
def test_a_drawing_can_be_read_back(edges):
    """Whoever follows the lines of a text drawing finds exactly the edges of the graph."""
    builder = GraphBuilder()
    for number in sorted({end for edge in edges for end in edge}):
        builder.add_node(ident, f"n{number}")
    for source, target in edges:
        builder.add_edge(f"n{source}", f"n{target}")

    read = Reader(builder.build().draw()).edges()

    assert read == {(f"n{source}", f"n{target}") for source, target in edges}
