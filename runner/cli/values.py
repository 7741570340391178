"""Values that people give on the command line: JSON, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from runner.cli.exits import CommandError, Exit


def read_json(given: str, option: str) -> Any:
    """Read JSON from the text itself, from `@file`, or from standard input for `-`.

    Raises:
        CommandError: the file can't be read, or what was given is not JSON.
    """
    from runner import codec
    from runner.errors import CorruptDocument

    text = _text(given, option)
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
        raise CommandError(Exit.USAGE, f"{option}: {given[1:]} can't be read: {error}.") from error


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
