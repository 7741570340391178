"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from runner.records.listings import Page

Command = TypeVar("Command", bound=Callable[..., Any])
Item = TypeVar("Item")

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
COMMENT = re.compile(r"^[ \t]*//.*(?:\n|\Z)", re.MULTILINE)

MAX_PAGES = 100
"""Pages that one command reads when few of many items match; then it prints a cursor to continue from."""


# -- JSON --------------------------------------------------------------------------------------------


def input_option(what: str, default: str) -> Callable[[Command], Command]:
    """Make the option --input, whose value `read_json` reads."""
    text = f"{what}: JSON, @file, or - for standard input (default: {default})."
    return click.option("--input", "input_text", metavar="JSON", help=text)


def read_json(text: str, option: str, *, commented: bool = False) -> Any:
    """Read JSON from the text itself, from `@file`, or from standard input for `-`.

    With `commented`, lines that begin with // are ignored.

    Raises:
        CommandError: the file can't be read, or its content is not JSON.
    """
    from runner.errors import CorruptDocument
    from runner.records import codec

    content = _content(text, option)
    try:
        return codec.load_json(without_comments(content) if commented else content)
    except CorruptDocument as error:
        unquoted = text[:1] not in {"@", "-", "{", "[", '"'} and "\n" not in text
        hint = f"Text needs its own quotes: {option} '\"{text}\"'." if unquoted else ""
        raise CommandError(Exit.USAGE, f"{option} is {error}.", hint) from error


def without_comments(text: str) -> str:
    """Remove the lines that begin with //, which no line of JSON does."""
    return COMMENT.sub("", text)


def _content(text: str, option: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(Exit.USAGE, f"{option}: the file {text[1:]} can't be read: {reason}.") from error


# -- tags and times ----------------------------------------------------------------------------------


def tag_option(text: str) -> Callable[[Command], Command]:
    """Make the option --tag, whose values `read_tags` reads."""
    return click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help=f"{text}; may be repeated.")


def read_tags(texts: tuple[str, ...]) -> dict[str, str]:
    """Read tags of the form `key=value`.

    Raises:
        CommandError: a tag has no "=".
    """
    pairs = [text.partition("=") for text in texts]
    invalid = [key for key, equals, _ in pairs if not key or not equals]
    if invalid:
        raise CommandError(Exit.USAGE, f"--tag {invalid[0]!r} has no value.", "Write --tag key=value.")
    return {key: value for key, _, value in pairs}


def to_ms(_: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Read a time as ms: a duration before now such as 90s, 30m, 2h or 7d, or RFC 3339.

    Raises:
        UsageError: it is neither.
    """
    if text is None:
        return None
    seconds = read_duration(text)
    if seconds is not None:
        return time.time_ns() // 1_000_000 - round(seconds * 1000)
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as error:
        advice = "use a duration before now (2h), a day (2026-01-31) or an RFC 3339 time"
        raise click.BadParameter(f"{text!r} is not a time; {advice}.", param=option) from error


def read_duration(text: str) -> float | None:
    """Read a duration such as 90s, 30m, 2h or 7d as seconds; None where it is not one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    return float(match[1]) * UNITS[match[2]] if match else None


# -- lists -------------------------------------------------------------------------------------------


def limit_option(command: Command) -> Command:
    """Add the option --limit."""
    return click.option(
        "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number."
    )(command)


def paged(command: Command) -> Command:
    """Add the options --limit and --cursor."""
    cursor = click.option(
        "--cursor",
        metavar="CURSOR",
        help="Continue from this cursor, printed by the previous page (default: from the beginning).",
    )
    return limit_option(cursor(command))


def read_pages(fetch: Callable[[int, str | None], Page[Item]], limit: int, cursor: str | None) -> Page[Item]:
    """Read pages until there are `limit` items, or no more."""
    from runner.records.listings import Page

    items: list[Item] = []
    for _ in range(MAX_PAGES):
        page = fetch(limit - len(items), cursor)
        items += page
        cursor = page.next
        if cursor is None or len(items) >= limit:
            break
    return Page(tuple(items), cursor)
