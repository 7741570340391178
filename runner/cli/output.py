"""The output of commands: data to stdout, everything else to stderr.

A terminal gets tables and colours, a pipe gets tab-separated lines, and `--json` gives JSON to both.
Text from users and agents is written with its control characters escaped, so that it can't move the
cursor or imitate output of this program.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from runner.records.json_form import document, pretty
from runner.records.shown_text import shown
from runner.records.validation import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 120
"""Width, in columns, of a drawing that doesn't go to a terminal."""

LEAST_LAST = 24
"""Least width of a table's last column; with less room, its cells stand below the row."""

NARROW = 60
"""Width of a terminal, in columns, below which a table has a line for each cell."""


COMMAND = re.compile(r"(`|: |&& )runner (dev|init|keeper)?(worker\b)?")
"""The beginning of a command in advice. The named ones need no store, or aren't commands of an app."""

MODULE = "python -m runner.cli"


class Output:
    """Stdout and stderr of one command."""

    def __init__(self, *, as_json: bool = False, program: str = "runner") -> None:
        """`as_json` writes data as JSON, also on a terminal; `program` begins the commands of advice."""
        self.as_json = as_json
        self._program = program

    def advice(self, text: str) -> str:
        """Return text with its commands as they must be called here, or they would act on another store."""
        app = f"{self._program} ".rpartition(" runner ")[0]
        plain = MODULE if self._program.startswith(MODULE) else "runner"

        def called(begin: re.Match[str]) -> str:
            # Celery has the command worker itself.
            program = plain if begin[2] else app if app and begin[3] else self._program
            return f"{begin[1]}{program} {begin[2] or begin[3] or ''}"

        return COMMAND.sub(called, text)

    @property
    def is_terminal(self) -> bool:
        """True if stdout is a terminal. FORCE_COLOR asks for colours, not for another format."""
        return sys.stdout.isatty()

    @property
    def shows_progress(self) -> bool:
        """True if stderr is a terminal that can update a live drawing."""
        return sys.stderr.isatty() and not self.errors.is_dumb_terminal

    @functools.cached_property
    def console(self) -> Console:
        """Stdout with colours."""
        from rich.console import Console

        return Console(highlight=False, width=None if self.is_terminal else PIPE_WIDTH)

    @functools.cached_property
    def errors(self) -> Console:
        """Stderr with colours."""
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def write(self, record: Any, rows: Iterable[Sequence[object]] | None = None) -> None:
        """Write a record as JSON, or these rows as tab-separated lines, on a terminal too.

        Without rows, write the values of the record as one row.
        """
        if self.as_json:
            self.data(record)
        else:
            self.lines([astuple(record)] if rows is None else rows)

    def present(
        self, record: Any, draw: Callable[[], None], rows: Iterable[Sequence[object]]
    ) -> None:
        """Write a record as JSON, let `draw` show it on a terminal, or write these rows."""
        if self.is_terminal and not self.as_json:
            draw()
        else:
            self.write(record, rows)

    def data(self, record: Any) -> None:
        """Write a record as JSON; ASCII, so that no terminal or encoding can misread it."""
        print(json.dumps(document(record), indent=2), flush=True)  # noqa: T201 - the output is data for stdout

    def event(self, record: Any) -> None:
        """Write a record as one line of JSON and flush it, for a reader that follows the running command."""
        print(json.dumps(document(record)), flush=True)  # noqa: T201 - as above

    def line(self, *cells: object) -> None:
        """Write one tab-separated line and flush it."""
        self.lines([cells])

    def lines(self, rows: Iterable[Sequence[object]]) -> None:
        """Write tab-separated lines; a narrow terminal gets the cells of a long row wrapped at words."""
        wraps = self.is_terminal and self.console.width < NARROW
        for row in rows:
            cells = [one_line(cell) for cell in row]
            if wraps and len("  ".join(cells)) > self.console.width and len(cells) > 1:
                from rich.padding import Padding
                from rich.text import Text

                # A row of one cell, such as a command to copy, stays in one piece.
                head, *tail = cells
                self.show(Text(head, overflow="fold"))
                self.show(
                    Padding(Text("  ".join(filter(None, tail)), overflow="fold"), (0, 0, 0, 2))
                )
            else:
                print("\t".join(cells))  # noqa: T201 - as above
        sys.stdout.flush()

    def show(self, *drawings: RenderableType) -> None:
        """Write drawings for a person to stdout."""
        for drawing in drawings:
            self.console.print(drawing)

    def note(self, *cells: object) -> None:
        """Write one line of progress or advice to stderr."""
        line = self.advice("\t".join(one_line(cell) for cell in cells))
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - as above

    def next_page(self, cursor: str | None) -> None:
        """Print on stderr the cursor of a list that has more items; JSON has it already."""
        if cursor is not None and not self.as_json:
            self.note(f"More follow: --cursor {cursor}")

    def listing(
        self,
        record: Mapping[str, Any],
        headings: Sequence[str],
        rows: Sequence[Sequence[object]],
        nothing: str = "",
        *,
        lines: Iterable[Sequence[object]] | None = None,
    ) -> None:
        """Write a page as JSON, or these rows as `table` does, and the cursor of the next page.

        A program gets `lines`, if given, instead of the rows.
        """
        draw = functools.partial(self.table, headings, rows, nothing)
        self.present(record, draw, rows if lines is None else lines)
        self.next_page(record.get("next"))

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[object]], nothing: str
    ) -> None:
        """Write rows: a table for a person, lines for a program; `nothing` is the note for no rows."""
        if not self.is_terminal:
            self.lines(rows)
            return
        if not rows:
            self.note(nothing)
            return
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        cells = [
            [Text(one_line(cell), style=style(cell), overflow="fold") for cell in row]
            for row in rows
        ]
        if self.console.width < NARROW:
            for row in cells:
                for heading, cell in zip(headings, row, strict=True):
                    if cell:
                        self.show(Text.assemble((f"{heading}  ".lstrip(), "bold"), cell))
                self.show("")
            return
        titled = zip([Text(heading) for heading in headings], *cells, strict=False)
        widths = [max(cell.cell_len for cell in column) for column in titled]
        count = len(widths)
        room = self.console.width - 2 * len(widths[1:])
        # Last columns that have no room, such as the fixes of `doctor`, stand below their row.
        while (
            count > 2
            and room - sum(widths[: count - 1]) < min(widths[count - 1], LEAST_LAST)
            and (count == len(widths) or widths[count - 1] > LEAST_LAST)
        ):
            count = count - 1
            room = room + 2
        # The last column is broken first, then the widest; never ids, which people copy.
        narrowed = [at for at in range(1, count) if headings[at] != "RUN"]
        breaks_last = count == len(widths)
        while sum(widths[:count]) + 2 * (count - 1) > self.console.width:
            at = max(narrowed, key=lambda number: widths[number], default=0)
            at = count - 1 if breaks_last and widths[count - 1] > 8 else at
            if widths[at] <= 8:
                break
            widths[at] -= 1
        for number, row in enumerate(cells):
            table = Table(box=None, pad_edge=False, header_style="bold", show_header=not number)
            for heading, width in zip(headings[:count], widths, strict=False):
                table.add_column(heading, overflow="fold", width=width)
            table.add_row(*row[:count])
            self.show(table)
            for heading, cell in zip(headings[count:], row[count:], strict=True):
                if cell:
                    self.show(
                        Padding(
                            Text.assemble((f"{heading.lower()} ", "dim"), cell), (0, 0, 0, 4)
                        )
                    )


# -- text --------------------------------------------------------------------------------------------

STYLES = {
    status: colour
    for colour, statuses in {
        "green": "completed accepted alive PASS",
        "yellow": "WARN stopping waiting interrupted held",
        "bold red": "FAIL",
        "red": "gone hangs failed rejected forbidden",
        "cyan": "running executing",
        "magenta": "retrying",
        "dim": "ready pending skipped cancelled",
    }.items()
    for status in statuses.split()
}


def style(status: object) -> str:
    """Return the colour of a status; the word itself is always written as well."""
    return STYLES.get(str(status), "")


def visible(text: str) -> str:
    """Escape control, direction and zero-width characters; line ends stay."""
    return shown(text).replace("\t", "\\t")


def compact(value: Any) -> str:
    """Return a JSON value in one line: text without quotes, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def short(value: Any, width: int = 60) -> str:
    """Return the beginning of a JSON value in one line."""
    text = one_line(compact(value)) if value is not None else ""
    return text if len(text) <= width else text[: width - 1] + "…"


def block(value: Any) -> str:
    """Return a JSON value as indented lines: text as it is, anything else as indented JSON."""
    return "\n".join(f"  {line}" for line in visible(pretty(value)).split("\n"))


def times(number: int) -> str:
    """Return "once" or "3 times"."""
    return "once" if number == 1 else f"{number} times"


def short_time(milliseconds: int) -> str:
    """Return a time of the store for a person, in local time; only the date if not of this year."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()
    of_this_year = moment.year == datetime.now().astimezone().year
    return moment.strftime("%m-%d %H:%M" if of_this_year else "%Y-%m-%d")


def clock_time(milliseconds: int) -> str:
    """Return a time of the store for a person, in local time, to the second."""
    return (
        datetime.fromtimestamp(milliseconds / 1000, UTC)
        .astimezone()
        .strftime("%Y-%m-%d %H:%M:%S")
    )
