"""The declaration of a limit of concurrency or rate, and what scheduling needs of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from runner.errors import DefinitionError

TAG = "tag:"

FASTEST = 1000.0
"""Executions per second: times are whole milliseconds."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `concurrency` executions at a time, or `rate` executions begun per `per` seconds, or both.

    Nodes with the same name of a limit share it: with `by="all"` all nodes that have it, with "graph" or
    "node" those of one graph or one node, with "tag:<name>" those of runs that have the same value of
    that tag (runs without it count as one). A run inside another one has the tags of the outermost.
    """

    name: str
    concurrency: int | None = None
    rate: float | None = None
    per: float = 1.0
    by: str = "all"

    def __post_init__(self) -> None:
        """Refuse invalid values where they are written."""
        if not (isinstance(self.name, str) and self.name.isprintable() and self.name.strip()):
            raise DefinitionError(
                f"a limit needs a name of printable characters, not {self.name!r}."
            )
        if ":" in self.name:
            raise DefinitionError(f"the name of a limit has no colon: {self.name!r}.")
        by = str(self.by)
        if by not in ("all", "graph", "node") and not (by.startswith(TAG) and by != TAG):
            raise DefinitionError(
                f"limit {self.name!r}: by is 'all', 'graph', 'node' or 'tag:<name>', not {self.by!r}."
            )
        if self.concurrency is None and self.rate is None:
            raise DefinitionError(
                f"limit {self.name!r} limits nothing: give it a concurrency or a rate."
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        count = self.concurrency
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or count < 1
        ):
            raise DefinitionError(
                f"limit {self.name!r}: concurrency is a whole number above 0, not {count!r}."
            )
        rate = FASTEST if self.rate is None else self.rate
        if not (_is_positive(rate) and _is_positive(self.per) and rate / self.per <= FASTEST):
            raise DefinitionError(
                f"limit {self.name!r}: rate and per are numbers above 0 that come to at most {FASTEST:g} "
                f"executions per second, not {self.rate!r} per {self.per!r} s."
            )

    def shape(self, graph_id: str, node: str) -> LimitShape:
        """Compute what scheduling needs of the limit of one node."""
        keys = {"all": "", "graph": f":graph:{graph_id}", "node": f":node:{graph_id}/{node}"}
        tag = self.by.removeprefix(TAG) if self.by.startswith(TAG) else ""
        interval = 0 if self.rate is None else math.ceil(self.per * 1000 / self.rate)
        return LimitShape(
            self.name + keys.get(self.by, f":{self.by}:"), tag, self.concurrency or 0, interval
        )


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


class Tags(Protocol):
    """The tags of a run."""

    def tag(self, name: str) -> str:
        """Return the value of a tag of the outermost run; "" where it has none."""


@dataclass(frozen=True, slots=True, order=True)
class LimitShape:
    """One limit of one node: `tag` names the tag whose value ends the key; 0 means no limit.

    `interval` is the time between two executions in ms, rounded up: the rate is never exceeded.
    """

    start: str
    tag: str
    concurrency: int
    interval: int

    def key(self, view: Tags) -> str:
        """Return the key under which the executions are counted."""
        return self.start + (view.tag(self.tag) if self.tag else "")


def check_limits(owner: str, limits: Iterable[object]) -> tuple[Limit, ...]:
    """Check the limits of a node or graph.

    Raises:
        DefinitionError: one is not a Limit, or two are the same.
    """
    declared = tuple(limits)
    valid = tuple(limit for limit in declared if isinstance(limit, Limit))
    if len(valid) < len(declared):
        raise DefinitionError(
            f"the limits of {owner} must be a list of Limit objects, not {declared!r}."
        )
    if len({(limit.name, limit.by) for limit in valid}) < len(valid):
        raise DefinitionError(f"{owner} has the same limit twice; give each limit another name.")
    return valid


def shapes(limits: Iterable[Limit], graph_id: str, node: str) -> tuple[LimitShape, ...]:
    """The limits of a node, in the order in which places are taken."""
    return tuple(sorted(limit.shape(graph_id, node) for limit in limits))
