"""What happened to a question that many answered at once, and whether one order explains all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

REFUSED = {"answered": "duplicate", "expired": "expired"}
OVER = {"accepted", "duplicate", "expired"}


@dataclass(frozen=True, slots=True)
class Try:
    """One answer: who gave it, when it was sent and its receipt read (seconds of one clock), what it said."""

    question: str
    who: str
    sent: float
    read: float
    status: str
    detail: str = ""


def faults(tries: Iterable[Try], ended: str, winner: str | None) -> Iterator[str]:
    """Say what no order of these tries explains; `ended` is how the question stands, `winner` who answered.

    A question takes one answer, once. So a history is linearizable when at most one try was accepted, all
    others name it, none of them was told so before it was sent, and none that was sent after an end was
    told anything else.
    """
    attempts = list(tries)
    accepted = [attempt for attempt in attempts if attempt.status == "accepted"]
    yield from _ends(accepted, ended, winner)
    over = min(
        (attempt.read for attempt in attempts if attempt.status in OVER), default=float("inf")
    )
    for attempt in attempts:
        if attempt.status != "accepted":
            yield from _refusal(attempt, ended, accepted)
        elif over < attempt.sent:
            yield f"{attempt.who} was accepted although another one had been told before that it was over"


def _ends(accepted: list[Try], ended: str, winner: str | None) -> Iterator[str]:
    if len(accepted) > 1:
        yield f"{len(accepted)} answers were accepted: {sorted(attempt.who for attempt in accepted)}"
    if (ended == "answered") != (len(accepted) == 1):
        yield f"the question is {ended}, but {len(accepted)} answers were accepted"
    if accepted and winner != accepted[0].who:
        yield f"{accepted[0].who} was accepted, but {winner} is stored"


def _refusal(attempt: Try, ended: str, accepted: list[Try]) -> Iterator[str]:
    if attempt.status != REFUSED.get(ended):
        yield f"{attempt.who} was told {attempt.status}, although the question is {ended}"
    if attempt.status != "duplicate" or not accepted:
        return
    if attempt.detail != f"already answered by {accepted[0].who}":
        yield f"{attempt.who} was told {attempt.detail!r}, not who won"
    if attempt.read < accepted[0].sent:
        yield f"{attempt.who} was refused before the winner had sent anything"
