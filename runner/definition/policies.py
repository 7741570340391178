"""Retry policies.

A retry is a timer in the store, not a countdown of the broker, so it survives the broker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from runner.errors import DataMismatch, DefinitionError, PayloadTooLarge
from runner.immutable import immutable
from runner.records.failures import ErrorRecord
from runner.records.validation import is_number


@immutable
class RetryPolicy:
    """Rule for running a failed node again: how often, when and for which errors.

    `max_attempts` includes the first attempt. The n-th retry waits `backoff * 2**(n-1)` seconds, at
    most `max_backoff`, of which the share `jitter` (0 to 1) is random. `retry_on` lists exception
    classes; an error of another type fails the node at once. So does data that doesn't fit a
    function's types or is too large to store, unless DataMismatch or PayloadTooLarge itself is
    listed.
    """

    max_attempts: int = 3
    backoff: float = 1.0
    jitter: float = 0.5
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    max_backoff: float = 300.0

    def __post_init__(self) -> None:
        """Refuse invalid values when the policy is created."""
        retry_on: object = self.retry_on
        classes = tuple(retry_on) if isinstance(retry_on, Iterable) else (retry_on,)
        if not (
            self._counts()
            and all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes)
        ):
            raise DefinitionError(
                "RetryPolicy needs max_attempts >= 1, backoff and max_backoff >= 0 seconds, 0 <= jitter <= 1 "
                "and exception classes in retry_on."
            )
        object.__setattr__(self, "retry_on", classes)

    def _counts(self) -> bool:
        numbers = (self.max_attempts, self.backoff, self.jitter, self.max_backoff)
        return (
            isinstance(self.max_attempts, int)
            and all(map(is_number, numbers))
            and self.max_attempts >= 1
            and 0 <= self.backoff < math.inf
            and 0 <= self.max_backoff < math.inf
            and 0 <= self.jitter <= 1
        )

    def delay(self, attempt: int, error: ErrorRecord, random: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None without one.

        `attempt` is the failed attempt, from 1; `random` is a number from 0 to 1.
        """
        if attempt >= self.max_attempts or not self.covers(error):
            return None
        full: float = min(self.max_backoff, self.backoff * 2.0 ** min(attempt - 1, 32))
        return full * (1 - self.jitter) + full * self.jitter * random

    @property
    def longest(self) -> float:
        """The most seconds that all retries wait together."""
        return (self.max_attempts - 1) * self.max_backoff

    def covers(self, error: ErrorRecord) -> bool:
        """Return whether to retry an error, by type name, as its class may not be imported here."""
        names = {_name(cls) for cls in self.retry_on}
        lineage = [error.type, *error.bases]
        for final in map(_name, (DataMismatch, PayloadTooLarge)):
            if final in lineage:
                # The next attempt would fail too, so a wide class such as Exception isn't enough.
                lineage = lineage[: lineage.index(final) + 1]
        return not names.isdisjoint(lineage)


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
