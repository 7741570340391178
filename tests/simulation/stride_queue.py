"""The rule of turns, as the scripts of Redis have it: see docs/decisions/0028-fairness.md."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import Generic, TypeVar

from runner.limits.fairness import Share

UNKNOWN_WINDOW = 16
"""Number of doorbells in a queue at once while its slots are unknown."""

STAYS_MS = 330_000
"""Milliseconds for which a window counts an unclaimed doorbell; a timer rings again before that."""

Item = TypeVar("Item")


class StrideQueue(Generic[Item]):
    """The ready nodes of one queue, by key."""

    def __init__(self) -> None:
        self.time = 0.0
        self._strides: dict[str, float] = {}
        self._nodes: dict[str, deque[Item]] = defaultdict(deque)
        self._passes: list[tuple[float, str]] = []

    def add(self, share: Share, item: Item) -> None:
        """Add a node after its key's other nodes."""
        self._nodes[share.key].append(item)
        if share.key not in self._strides:
            heapq.heappush(self._passes, (self.time, share.key))
        self._strides[share.key] = share.stride

    def pop(self) -> tuple[str, Item] | None:
        """Take the next node, with its key."""
        while self._passes:
            least, key = heapq.heappop(self._passes)
            nodes = self._nodes[key]
            if not nodes:
                # Removed only now, so that a key that is often empty doesn't restart each time.
                del self._nodes[key], self._strides[key]
                continue
            self.time = least
            heapq.heappush(self._passes, (least + self._strides[key], key))
            return key, nodes.popleft()
        return None
