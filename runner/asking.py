"""What stands behind every `interrupt()`: the known answer, or a recorded question.

Pure: it knows one place that asks (address, scope, number) and the answers given so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from runner.codec import plain, unpack
from runner.errors import InterruptRaised, UsageError
from runner.expiry import ends_node
from runner.interrupts import Address, Interrupt, InterruptStatus, resolved
from runner.schemas import mismatch


class Asker:
    """What stands behind `interrupt()`: gives the known answer, or records the question and leaves.

    What was asked or refused is remembered here, so that code which swallows the exception can't
    swallow the question. `repeat` allows one name several times (in a tool: the same question).
    """

    def __init__(
        self,
        address: Address,
        scope: str,
        number: int = 1,
        answers: Mapping[str, Interrupt] | None = None,
        *,
        repeat: bool = False,
    ) -> None:
        self.asked: list[Interrupt] = []
        self.refused: UsageError | None = None
        self._address, self._scope, self._number = address, scope, number
        self._answers = answers or {}
        self._repeat = repeat
        self._used: set[str] = set()

    def ask(self, name: str, reason: object = None, response: object = None, **options: Any) -> Any:
        """Return the answer; `options` are those of `Address.ask`.

        Raises:
            InterruptRaised: there is no answer yet.
            InterruptExpired: nobody answered in time. InterruptWithdrawn: the question was taken back.
            UsageError: the question can't be asked as it is.
        """
        try:
            question = self._question(name, reason, options)
        except UsageError as error:
            self.refused = error
            raise
        known = self._answers.get(question.id)
        if known is not None and answered(known):
            return resolved(known, options.get("response_schema"))
        if response is not None:
            return response
        if all(question.id != other.id for other in self.asked):
            self.asked.append(question)
        raise InterruptRaised(name)

    def _question(self, name: str, reason: object, options: dict[str, Any]) -> Interrupt:
        question = current(
            self._answers,
            lambda reasked: self._address.ask(
                name, reason, scope=self._scope, number=self._number, reasked=reasked, **options
            ),
        )
        if name in self._used and not self._repeat:
            raise UsageError(
                f"interrupt {name!r} was asked twice in one event; give each question a name of its own."
            )
        self._used.add(name)
        return question


def answered(question: Interrupt) -> bool:
    """Tell whether a question no longer waits: answered, its time is over, or somebody withdrew it."""
    decided = question.status is InterruptStatus.EXPIRED or question.withdrawal is not None
    return question.response is not None or decided


def asks_anew(known: Interrupt) -> bool:
    """Tell whether a question is over in a way after which the same code asks it once more.

    It was withdrawn for that; or its node failed with it, and somebody lets the node run again.
    """
    if known.withdrawal is not None:
        return bool(known.withdrawal["reask"])
    return known.status is InterruptStatus.EXPIRED and ends_node(known)


def current(answers: Mapping[str, Interrupt], ask: Callable[[int], Interrupt]) -> Interrupt:
    """Build a question with a number of its own for each time that it must be asked anew.

    That is when it is over in such a way, or when it has an answer that the code of today does not take:
    the code that asked had another schema.
    """
    reasked, replaces = 0, ""
    while known := answers.get((question := ask(reasked)).id):
        if not (asks_anew(known) or outdated(known, question)):
            break
        reasked, replaces = reasked + 1, "" if asks_anew(known) else known.id
    return replace(question, replaces=replaces) if replaces else question


def outdated(known: Interrupt, question: Interrupt) -> bool:
    """Tell whether an answer, given under another schema, does not fit the question as it is asked today."""
    if question.response_schema in (None, known.response_schema) or known.withdrawal is not None:
        return False
    given = known.response
    if known.status is InterruptStatus.EXPIRED:
        given = known.on_expire.get("response") if isinstance(known.on_expire, dict) else None
    return given is not None and bool(mismatch(question.response_schema or {}, plain(unpack(given))))
