"""What stands behind every `interrupt()`: the known answer, or a recorded question.

Pure: it knows one place that asks (address, scope, number) and the answers given so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner import codec
from runner.errors import InterruptRaised, RunnerError, UsageError
from runner.interrupts import Address, Interrupt, typed_response


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
        self.refused: RunnerError | None = None
        self._address, self._scope, self._number = address, scope, number
        self._answers = answers or {}
        self._repeat = repeat
        self._used: set[str] = set()

    def ask(self, name: str, reason: object = None, response: object = None, **options: Any) -> Any:
        """Return the answer; `options` are those of `Address.ask`.

        Raises:
            InterruptRaised: there is no answer yet.
            UsageError: the question can't be asked as it is.
        """
        try:
            return self._answer(name, reason, response, options)
        except RunnerError as error:
            self.refused = error
            raise

    def _answer(self, name: str, reason: object, response: object, options: dict[str, Any]) -> Any:
        question = self._address.ask(name, reason, scope=self._scope, number=self._number, **options)
        if name in self._used and not self._repeat:
            raise UsageError(
                f"interrupt {name!r} was asked twice in one event; give each question a name of its own."
            )
        self._used.add(name)
        known = self._answers.get(question.id)
        if known is not None and known.response is not None:
            return typed_response(options.get("response_schema"), codec.unpack(known.response))
        if response is not None:
            return response
        if all(question.id != other.id for other in self.asked):
            self.asked.append(question)
        raise InterruptRaised(name)
