"""Where a command's words go: data to stdout, everything else to stderr.

On a terminal people get tables and colours; in a pipe other programs get tab-separated lines; with
`--json` both get JSON. Text from users and agents is shown with its control characters visible, so
that it can't move the cursor or pose as ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 120
"""Columns of a picture that no terminal shows."""

ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


class Output:
    """One command's two streams."""

    def __init__(self, *, as_json: bool = False) -> None:
        """`as_json` turns data into JSON, on a terminal, too."""
        self.as_json = as_json

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads stdout. FORCE_COLOR asks for colours, not for another format."""
        return sys.stdout.isatty()

    @property
    def shows_progress(self) -> bool:
        """Whether a live picture can be drawn on stderr."""
        return sys.stderr.isatty() and not self.errors.is_dumb_terminal

    @cached_property
    def console(self) -> Console:
        """Stdout with colours."""
        from rich.console import Console

        return Console(highlight=False, width=None if self.is_terminal else PIPE_WIDTH)

    @cached_property
    def errors(self) -> Console:
        """Stderr with colours."""
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def data(self, document: Any) -> None:
        """Write a document as JSON; ASCII, so that no terminal or encoding can misread it."""
        print(json.dumps(document, indent=2))  # noqa: T201 - this is what printing is for

    def record(self, document: Any) -> None:
        """Write a document as one line of JSON, at once: others read on while we look on."""
        print(json.dumps(document), flush=True)  # noqa: T201 - as above

    def line(self, *cells: object) -> None:
        """Write one tab-separated line at once."""
        print("\t".join(one_line(cell) for cell in cells), flush=True)  # noqa: T201 - as above

    def lines(self, rows: Sequence[Sequence[object]]) -> None:
        """Write tab-separated lines."""
        for row in rows:
            print("\t".join(one_line(cell) for cell in row))  # noqa: T201 - as above

    def show(self, picture: RenderableType) -> None:
        """Draw something for a person on stdout."""
        self.console.print(picture)

    def note(self, *cells: object) -> None:
        """Write one line of progress or advice to stderr."""
        print("\t".join(one_line(cell) for cell in cells), file=sys.stderr, flush=True)  # noqa: T201 - as above

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> None:
        """Write rows: a table for a person, lines for a program."""
        if not self.is_terminal:
            self.lines(rows)
            return
        if not rows:
            self.note(nothing)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for index, heading in enumerate(headings):
            # Ids are copied by hand: they must be whole, so they are folded and never cut.
            table.add_column(heading, overflow="fold", no_wrap=False, min_width=8 if index else 12)
        for row in rows:
            table.add_row(*(Text(one_line(cell), style=style(cell)) for cell in row))
        self.show(table)


STYLES = {
    "completed": "green",
    "accepted": "green",
    "alive": "green",
    "PASS": "green",
    "WARN": "yellow",
    "FAIL": "bold red",
    "gone": "red",
    "hangs": "red",
    "stopping": "yellow",
    "failed": "red",
    "rejected": "red",
    "forbidden": "red",
    "waiting": "yellow",
    "interrupted": "yellow",
    "needs_migration": "yellow",
    "running": "cyan",
    "executing": "cyan",
    "retrying": "magenta",
    "ready": "dim",
    "pending": "dim",
    "skipped": "dim",
    "cancelled": "dim",
}


def style(word: object) -> str:
    """Give the colour of a status; the word is always shown as well."""
    return STYLES.get(str(word), "")


def visible(text: str) -> str:
    """Show control, direction and zero-width characters as escapes; line ends stay."""
    return "".join(each if each.isprintable() or each == "\n" else _escape(each) for each in text)


def one_line(value: object) -> str:
    """Show a value in one line of text."""
    text = value if isinstance(value, str) else str(value)
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    return ESCAPES.get(character) or character.encode("unicode_escape").decode("ascii")


def compact(value: Any) -> str:
    """Show a JSON value in one line: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def short(value: Any, width: int = 60) -> str:
    """Show the beginning of a JSON value in one line."""
    text = one_line(compact(value)) if value is not None else ""
    return text if len(text) <= width else text[: width - 1] + "…"


def stamp(milliseconds: int) -> str | None:
    """Write a time of the store as RFC 3339 in UTC; None when it has not come."""
    if not milliseconds:
        return None
    return (
        datetime.fromtimestamp(milliseconds / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def clock_time(milliseconds: int) -> str:
    """Write a time of the store for a person, in local time."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def span(milliseconds: float) -> str:
    """Write a length of time for a person."""
    seconds = max(0.0, milliseconds / 1000)
    if seconds < 1:
        return f"{round(milliseconds)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"
