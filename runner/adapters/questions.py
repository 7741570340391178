"""A framework's own questions under our ids: which were asked, which answers it has been given.

Every adapter needs this. The framework's ids stay in the node's document; run, node and visit are
in ours, so two nodes whose framework numbers its calls alike never share a question. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner import codec
from runner.asking import answered, asks_anew, current
from runner.errors import CorruptDocument
from runner.interrupts import Address, Interrupt, resolved

JSON = Any

OPTIONS = ("response_schema", "assignees", "expires_in", "on_expire", "remind_every", "remind_after")
"""What a question that is asked anew keeps of the one before."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question: the framework's id and ours, and whether its answer was handed to the framework."""

    inner: str
    id: str
    number: int
    handed: bool = False


class Questions:
    """The questions of one visit.

    Args:
        kind: the adapter's kind; it begins the scope of every question.
        address: the visit's.
        answers: the visit's.
        stored: what `document()` gave at the end of the last execution of this visit.

    Raises:
        CorruptDocument: `stored` is not what `document()` gives.
    """

    def __init__(
        self, kind: str, address: Address, answers: Mapping[str, Interrupt], stored: Sequence[JSON] = ()
    ) -> None:
        self._kind, self._address, self._answers = kind, address, answers
        try:
            asked = [_Asked(**entry) for entry in stored]
        except TypeError as error:
            raise CorruptDocument(
                f"the stored questions of node {address.node_id!r} can't be read."
            ) from error
        self._asked = {each.inner: each for each in asked}

    def ask(self, inner: str, name: str, reason: object = None, **options: Any) -> Interrupt:
        """Turn the framework's question `inner` into ours; `options` are those of `Address.ask`.

        Asked again after its answer was handed over, it is a new question: some frameworks number
        their calls anew in every turn.

        Raises:
            UsageError: the question can't be asked as it is.
        """
        known = self._asked.get(inner)
        number = 1 if known is None else known.number + known.handed
        question = current(
            self._answers,
            lambda reasked: self._address.ask(
                name, reason, scope=f"{self._kind}:{inner}", number=number, reasked=reasked, **options
            ),
        )
        self._asked[inner] = _Asked(inner, question.id, number)
        return question

    def hand_over(self) -> dict[str, Any]:
        """Return the answers that the framework has not been given yet, by its own ids.

        Raises:
            InterruptExpired: nobody answered a question in time. InterruptWithdrawn: one was taken back.
        """
        found = {}
        for inner, asked in list(self._asked.items()):
            answer = self._answers.get(asked.id)
            if not asked.handed and answer is not None and answered(answer) and not asks_anew(answer):
                found[inner] = resolved(answer)
                self._asked[inner] = _Asked(inner, asked.id, asked.number, handed=True)
        return found

    def anew(self) -> list[Interrupt]:
        """Ask once more what was withdrawn to be asked anew."""
        found = []
        for inner, asked in list(self._asked.items()):
            known = self._answers.get(asked.id)
            if not asked.handed and known is not None and asks_anew(known):
                options = {name: getattr(known, name) for name in OPTIONS}
                found.append(self.ask(inner, known.name, codec.unpack(known.reason), **options))
        return found

    def document(self) -> list[JSON]:
        """Return what must be stored to go on in another process."""
        return [asdict(asked) for asked in self._asked.values()]
