"""A queue and priority that several keys share: a window of doorbells is rung, others wait their turn.

In Redis, store/lua/parts/fairness.lua does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from runner.limits.fairness import STAYS_MS, Share, StrideQueue
from runner.store.interface import Doorbell


class FairQueue:
    """Ready nodes, and a window of doorbells that are rung but not claimed.

    A doorbell that is never claimed leaves the window when its time there is over.
    """

    def __init__(self, is_ready: Callable[[Doorbell], bool]) -> None:
        """Take `is_ready`, which tells whether a doorbell's visit still waits for a worker."""
        self._is_ready = is_ready
        self._ready: StrideQueue[Doorbell] = StrideQueue()
        self._waiting: set[Doorbell] = set()
        self._rung: dict[Doorbell, int] = {}

    def admit(self, share: Share, bell: Doorbell, now: int) -> list[Doorbell]:
        """Add a doorbell; return it to be rung again if it was already rung, since it may be lost."""
        bell = replace(bell, share=None)
        if bell in self._rung:
            self._rung[bell] = now + STAYS_MS
            return [bell]
        if bell not in self._waiting:
            self._waiting.add(bell)
            self._ready.add(share, bell)
        return []

    def claimed(self, bell: Doorbell) -> None:
        """Remove a doorbell that a worker has claimed, or found stale, from the window."""
        self._rung.pop(bell, None)

    def refill(self, window: int, now: int) -> list[Doorbell]:
        """Take the doorbells to ring now; `window` is the most that may be rung but not claimed."""
        self._rung = {bell: end for bell, end in self._rung.items() if end > now}
        while len(self._rung) >= window:
            oldest = min(self._rung, key=lambda bell: (self._rung[bell], bell.task_id))
            if self._is_ready(oldest):
                return []
            del self._rung[oldest]
        rung: list[Doorbell] = []
        while len(self._rung) < window and (popped := self._ready.pop(self._still_waits)):
            _, bell = popped
            self._rung[bell] = now + STAYS_MS
            rung.append(bell)
        return rung

    def _still_waits(self, bell: Doorbell) -> bool:
        self._waiting.discard(bell)
        return self._is_ready(bell)
