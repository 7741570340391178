"""Being woken: programs that can't ring the task queue ask a worker that sweeps to do it."""

from __future__ import annotations

from runner.store.keys import PARTITION, Keys
from runner.store.link import Link

LONGEST = 4.0
"""Seconds of one wait; a command that takes longer counts as failed."""


class Wake:
    """One sleeper on a partition's list of wishes; any number may sleep, one wish wakes one."""

    def __init__(self, url: str, partition: str = PARTITION) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._link, self._key = Link(url), Keys(partition).wake

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds (at most 4); True when a sweep was asked for.

        Raises:
            StoreError: the store could not be reached.
        """
        return self._link.call("BRPOP", self._key, f"{min(seconds, LONGEST):.3f}") is not None
