"""Fairness between keys: whose ready node begins next, and how many doorbells are in the queue meanwhile.

The key with the least *pass* is next, and its pass grows by its stride, 1 / weight. A key that was
idle begins at the queue's time: the pass of the last node taken. Redis does so in
store/lua/parts/fairness.lua.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from runner.errors import DefinitionError
from runner.immutable import immutable
from runner.records.validation import is_number

TAG = "tag:"

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000
"""Bounds of a weight; beyond them a pass could grow until adding a stride changes nothing: all keys stall."""

LEAST_WINDOW = 4
"""The fewest doorbells of a queue that are rung and unclaimed at a time, in all partitions together."""


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
            if not (
                isinstance(key, str)
                and is_number(weight)
                and LEAST_WEIGHT <= weight <= MOST_WEIGHT
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
