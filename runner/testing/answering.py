"""Answers as graphs, agents and `run.respond` take them, written in one word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from runner.errors import UsageError
from runner.interrupts import Interrupt


class Asks(Protocol):
    """A result, or a run in a test, with open questions."""

    @property
    def interrupts(self) -> Sequence[Interrupt]:
        """The open questions."""


def answer(asked: Interrupt | Asks, response: object, name: str | None = None) -> list[dict[str, Any]]:
    """Write an answer to a question, or to the only open one of a result; `name` chooses among several.

    Answers are lists: `answer(a, True) + answer(b, False)` is a set, which is applied whole or not at all.

    Raises:
        UsageError: no question fits, or more than one.
    """
    found = asked if isinstance(asked, Interrupt) else _only(asked.interrupts, name)
    return [{"interruptResponse": {"interruptId": found.id, "response": response}}]


def _only(questions: Sequence[Interrupt], name: str | None) -> Interrupt:
    fitting = [each for each in questions if name in (None, each.name)]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(repr(each.name) for each in questions) or "none"
    wanted = "one question" if name is None else f"one question named {name!r}"
    raise UsageError(
        f"{wanted} should be open, but {len(fitting)} are (open: {known}), so nothing was answered. "
        "Name one, or give the Interrupt itself."
    )
