"""Checks of short texts from callers: names, people, keys, reasons. Some become keys of a store."""

from __future__ import annotations

from collections.abc import Iterable

from runner.errors import UsageError

MAX_TEXT = 1000
"""Characters of a name or a key."""

MAX_REASON = 10_000
"""Characters of the reason of an operation."""

MAX_PEOPLE = 1000


def escaped(character: str) -> str:
    """Return a character, or its escape if it is a control or direction character, or half of one."""
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def one_line(value: object) -> str:
    """Return a value as one line of text for a log or a terminal, on which nothing in it can act."""
    return "".join(map(escaped, str(value)))


def problem(value: object, limit: int = MAX_TEXT) -> str:
    """Describe why this is not a short text; "" where it is one."""
    if not isinstance(value, str):
        return f"must be a text, not {value!r:.80}"
    if len(value) > limit:
        return f"has {len(value):,} characters, more than the {limit:,} that it may have"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is not valid text"
    return ""


def checked(value: str, what: str, most: int = MAX_TEXT) -> str:
    """Return a short text; `what` names it in the error.

    Raises:
        UsageError: it is not a text, too long, or not valid Unicode.
    """
    fault = problem(value, most)
    if fault:
        raise UsageError(f"{what} {fault}.")
    return value


def reason(value: str) -> str:
    """Return the reason of an operation.

    Raises:
        UsageError: it is not a text, or too long.
    """
    return checked(value, "the reason", MAX_REASON)


def people(names: Iterable[str] | None, what: str) -> list[str]:
    """Return a list of people.

    Raises:
        UsageError: it is a single text, too long, or an item is not a text.
    """
    listed = [] if names is None else [names] if isinstance(names, str) else list(names)
    if isinstance(names, str) or len(listed) > MAX_PEOPLE:
        raise UsageError(f"{what} must be a list of at most {MAX_PEOPLE:,} people.")
    return [checked(name, what) for name in listed]
