"""A table of figures, as text for a terminal and as Markdown for a page."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Grid:
    """Rows of cells below a title; `note` stands below it on the page."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def show(self, console: Console) -> None:
        """Print it."""
        table = Table(title=self.title, title_justify="left")
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self) -> str:
        """Write it as Markdown."""
        align = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in ([self.columns, align, *self.rows])]
        return "\n".join(
            [f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])]
        )


def number(value: float) -> str:
    """Write a number with two or three digits that count."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
