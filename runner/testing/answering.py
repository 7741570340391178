"""Answers as graphs, agents and `run.respond` take them, written in one word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from runner.errors import UsageError
from runner.records.interrupts import Interrupt


class Asks(Protocol):
    """A result, or a run in a test, with open questions."""

    @property
    def interrupts(self) -> Sequence[Interrupt]:
        """The open questions."""


def answer(question: Interrupt | Asks, response: object, name: str | None = None) -> list[dict[str, Any]]:
    """Write an answer to a question, or to the only open one of a result; `name` chooses among several.

    Answers are lists: `answer(a, True) + answer(b, False)` is a set, which is applied whole or not at all.

    Raises:
        UsageError: no question fits, or more than one.
    """
    interrupt = question if isinstance(question, Interrupt) else _only(question.interrupts, name)
    return [{"interruptResponse": {"interruptId": interrupt.id, "response": response}}]


def _only(questions: Sequence[Interrupt], name: str | None) -> Interrupt:
    fitting = [question for question in questions if name in (None, question.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(repr(question.name) for question in questions) or "none"
    expected = "one question" if name is None else f"one question named {name!r}"
    raise UsageError(
        f"{expected} should be open, but {len(fitting)} are (open: {names}), so nothing was answered. "
        "Name one, or pass the Interrupt itself."
    )
