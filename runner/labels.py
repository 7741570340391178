"""Short texts that programs give: names, people, keys, reasons. Some name keys in a store. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from runner.errors import UsageError

MAX_TEXT = 1000
"""Characters of a name or a key."""

MAX_REASON = 10_000
"""Characters of what people say of what they do."""

MAX_PEOPLE = 1000


def fault(given: object, most: int = MAX_TEXT) -> str:
    """Say why this is no short text, "" where it is one."""
    if not isinstance(given, str):
        return f"must be a text, not {given!r:.80}"
    if len(given) > most:
        return f"has {len(given):,} characters, more than the {most:,} that it may have"
    try:
        given.encode()
    except UnicodeEncodeError:
        return "holds a lone surrogate, which is not valid text"
    return ""


def checked(given: str, what: str, most: int = MAX_TEXT) -> str:
    """Give a short text back; `what` names it in the error.

    Raises:
        UsageError: it is none.
    """
    wrong = fault(given, most)
    if wrong:
        raise UsageError(f"{what} {wrong}.")
    return given


def reason(given: str) -> str:
    """Give back what somebody says of what they do.

    Raises:
        UsageError: it is no text, or long.
    """
    return checked(given, "the reason", MAX_REASON)


def people(given: Iterable[str] | None, what: str) -> list[str]:
    """List people.

    Raises:
        UsageError: it is one text, or one of them is none.
    """
    found = [] if given is None else [given] if isinstance(given, str) else list(given)
    if isinstance(given, str) or len(found) > MAX_PEOPLE:
        raise UsageError(f"{what} must be a list of at most {MAX_PEOPLE:,} people.")
    return [checked(each, what) for each in found]
