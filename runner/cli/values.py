"""Values that people give on the command line: JSON, a file, or standard input."""

from __future__ import annotations

import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from runner.cli.exits import CommandError, Exit

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def read_json(given: str, option: str, *, commented: bool = False) -> Any:
    """Read JSON from the text itself, from `@file`, or from standard input for `-`.

    With `commented`, lines that begin with // are left out.

    Raises:
        CommandError: the file can't be read, or what was given is not JSON.
    """
    from runner import codec
    from runner.cli.editing import without_comments
    from runner.errors import CorruptDocument

    text = _text(given, option)
    text = without_comments(text) if commented else text
    try:
        return codec.load_json(text)
    except CorruptDocument as error:
        plain = given[:1] not in {"@", "-", "{", "[", '"'} and "\n" not in given
        hint = f"Text needs its own quotes: {option} '\"{given}\"'." if plain else ""
        raise CommandError(Exit.USAGE, f"{option} is {error}.", hint) from error


def _text(given: str, option: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CommandError(Exit.USAGE, f"{option}: the file {given[1:]} can't be read: {why}.") from error


def to_ms(_: click.Context, option: click.Parameter, given: str | None) -> int | None:
    """Read a time as ms: a length of time before now such as 90s, 30m, 2h or 7d, or RFC 3339.

    Raises:
        UsageError: it is neither.
    """
    if given is None:
        return None
    length = read_length(given)
    if length is not None:
        return time.time_ns() // 1_000_000 - round(length * 1000)
    try:
        return round(datetime.fromisoformat(given).astimezone().timestamp() * 1000)
    except ValueError as error:
        advice = "write a length of time (2h), a day (2026-01-31) or a time in RFC 3339"
        raise click.BadParameter(f"{given!r} is no time; {advice}.", param=option) from error


def read_length(given: str) -> float | None:
    """Read a length of time such as 90s, 30m, 2h or 7d as seconds; None where it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", given)
    return float(found[1]) * UNITS[found[2]] if found else None


def read_tags(given: tuple[str, ...]) -> dict[str, str]:
    """Read tags of the form `key=value`.

    Raises:
        CommandError: one has no "=".
    """
    pairs = [tag.partition("=") for tag in given]
    bad = [key for key, equals, _ in pairs if not key or not equals]
    if bad:
        raise CommandError(Exit.USAGE, f"--tag {bad[0]!r} has no value.", "Write --tag key=value.")
    return {key: value for key, _, value in pairs}
