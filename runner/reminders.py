"""When people are reminded of a question that waits: `remind_every` or `remind_after`, in seconds. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.interrupts import Interrupt

MOST = 100
"""Reminders of one question at most: they are events of its run, which keeps some thousands."""


def checked(
    every: float | None, after: Sequence[float] | None, field: str
) -> tuple[float | None, list[float]]:
    """Check how often a question reminds; both in seconds.

    Raises:
        UsageError: both are given, a time is not positive, the times don't grow, or there are too many.
    """
    times = [] if after is None else list(after)
    if every is not None and times:
        raise UsageError(f"{field}: give remind_every or remind_after, not both.")
    for each in [*times, *([] if every is None else [every])]:
        if isinstance(each, bool) or not isinstance(each, (int, float)) or not 0 < each < math.inf:
            raise UsageError(f"{field}: reminders come after more than 0 seconds, not {each!r}.")
    if any(later <= one for one, later in pairwise(times)):
        raise UsageError(f"{field}: the times in remind_after must grow, they count from the question.")
    if len(times) > MOST:
        raise UsageError(f"{field}: remind_after has {len(times)} times; a question reminds {MOST} times.")
    return (None if every is None else float(every)), [float(each) for each in times]


def first(asked: Interrupt) -> int:
    """Return how long after the question the first reminder comes, in ms; 0 where none does."""
    return next(iter(_times(asked)), 0)


def following(asked: Interrupt, now: int) -> int:
    """Return when the next reminder is due after one was sent at `now`, in ms; 0 where it was the last.

    After an outage one reminder stands for all that were missed.
    """
    if asked.remind_every is not None:
        return now + _times(asked)[0] if asked.reminded + 1 < MOST else 0
    return next((at for at in (asked.asked_at + each for each in _times(asked)) if at > now), 0)


def written(asked: Interrupt) -> str:
    """Write it for the store's scripts: "every <ms>", "after <ms> <ms> …" or nothing."""
    kind = "after" if asked.remind_after else "every"
    times = _times(asked)
    return " ".join([kind, *map(str, times)]) if times else ""


def _times(asked: Interrupt) -> list[int]:
    given = asked.remind_after or ([] if asked.remind_every is None else [asked.remind_every])
    return [max(1, round(each * 1000)) for each in given]
