"""Fairness between keys: whose ready node begins next, and how many doorbells are in the queue meanwhile.

The key with the least *pass* is next, and its pass grows by its stride, 1 / weight. A key that was
idle begins at the queue's time: the pass of the last node taken. Redis does the same in its
scripts, in store/lua/parts/fairness.lua.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Generic, TypeVar

from runner.errors import DefinitionError
from runner.immutable import immutable

TAG = "tag:"

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000
"""Bounds of a weight; beyond them passes could grow too large for a float to add to, stalling all keys."""

UNKNOWN_WINDOW, LEAST_WINDOW = 16, 4
"""Number of doorbells in a queue at once: while its slots are unknown, and the minimum."""


STAYS_MS = 330_000
"""Milliseconds for which a window counts an unclaimed doorbell; a timer rings again before that."""


@immutable
class FairKey:
    """A key of a queue with waiting nodes, "" for runs without a key: how many, and since when (ms)."""

    queue: str
    priority: int
    key: str
    nodes: int
    since: int


@immutable
class Share:
    """The key that a doorbell counts for, and the stride by which it moves the key's pass."""

    key: str
    stride: float


@immutable
class Fairness:
    """Fair sharing of a graph's queues between the values of a tag, whatever the backlog of each.

    `by` is "tag:<name>"; runs without the tag together have one key. A key of weight 5 begins five
    nodes for each node of a key of weight 1, the default. Only keys with ready nodes count.
    Priorities come first: a queue is shared only among nodes of the same priority.
    """

    by: str
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse invalid values at the declaration."""
        if not (isinstance(self.by, str) and self.by.startswith(TAG) and self.by != TAG):
            raise DefinitionError(f"fairness: by is 'tag:<name>', not {self.by!r}.")
        if not isinstance(self.weights, Mapping):
            raise DefinitionError(
                f"fairness: weights are a number for each key, not {self.weights!r:.40}."
            )
        for key, weight in self.weights.items():
            is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
            if not (
                isinstance(key, str) and is_number and LEAST_WEIGHT <= weight <= MOST_WEIGHT
            ):
                raise DefinitionError(
                    f"fairness: the weight of {key!r} is a number from {LEAST_WEIGHT} to {MOST_WEIGHT}, not "
                    f"{weight!r}. To stop the nodes of a key, use a limit or cancel its runs."
                )

    @property
    def tag(self) -> str:
        """Name of the tag."""
        return self.by.removeprefix(TAG)

    def share(self, key: str) -> Share:
        """Return the share for a node of a key."""
        return Share(key, 1 / self.weights.get(key, 1))


def window(slots: int, partitions: int = 1) -> int:
    """Return how many of a queue's doorbells a partition keeps rung and unclaimed at a time."""
    return math.ceil(max(slots, LEAST_WINDOW) / partitions)


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

    def pop(self, is_ready: Callable[[Item], bool] = lambda _: True) -> tuple[str, Item] | None:
        """Take the next node, with its key; nodes that are no longer ready take no turn."""
        while self._passes:
            least, key = heapq.heappop(self._passes)
            nodes = self._nodes[key]
            while nodes and not is_ready(nodes[0]):
                nodes.popleft()
            if not nodes:
                # Removed only now, so that a key that is often empty doesn't restart each time.
                del self._nodes[key], self._strides[key]
                continue
            self.time = least
            heapq.heappush(self._passes, (least + self._strides[key], key))
            return key, nodes.popleft()
        return None
