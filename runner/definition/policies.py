"""Retry policies, and limits of concurrency and rate.

A retry is a timer in the store, never a countdown of the broker, so that it survives the broker. An execution
takes a place of each limit of its node while a worker has it; a node that waits for a person, a child run or
its next attempt has none. Without a free place a node joins the limit's queue, ordered by the time of its
first request; a free place is reserved for the next in the queue. A rate assigns each execution its own start
time. Places are taken in the order of the limits' names, so that no two nodes wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from runner.errors import DataMismatch, DefinitionError, PayloadTooLarge
from runner.records.failures import ErrorRecord


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Rule for running a failed node again: how often, when and for which errors.

    `max_attempts` counts the first one. The n-th retry waits `backoff * 2**(n-1)` seconds, at most
    `max_backoff`, of which the share `jitter` (0 to 1) is random. `retry_on` lists exception
    classes; an error of another type fails the node at once, and so does data that does not fit a
    function's types or is too large to store, unless DataMismatch or PayloadTooLarge itself is listed.
    """

    max_attempts: int = 3
    backoff: float = 1.0
    jitter: float = 0.5
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    max_backoff: float = 300.0

    def __post_init__(self) -> None:
        """Refuse invalid values where they are written."""
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
        numbers: tuple[object, ...] = (
            self.max_attempts,
            self.backoff,
            self.jitter,
            self.max_backoff,
        )
        return (
            isinstance(self.max_attempts, int)
            and all(
                isinstance(number, (int, float)) and not isinstance(number, bool)
                for number in numbers
            )
            and self.max_attempts >= 1
            and 0 <= self.backoff < math.inf
            and 0 <= self.max_backoff < math.inf
            and 0 <= self.jitter <= 1
        )

    def delay(self, attempt: int, error: ErrorRecord, random: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None when there is none.

        `attempt` is the one that failed, from 1; `random` is a number from 0 to 1.
        """
        if attempt >= self.max_attempts or not self.covers(error):
            return None
        full: float = min(self.max_backoff, self.backoff * 2.0 ** min(attempt - 1, 32))
        return full * (1 - self.jitter) + full * self.jitter * random

    @property
    def longest(self) -> float:
        """The seconds that all retries wait together at most."""
        return (self.max_attempts - 1) * self.max_backoff

    def covers(self, error: ErrorRecord) -> bool:
        """Return whether an error is of a type to retry; by names, as its class may not be imported here."""
        names = {_name(cls) for cls in self.retry_on}
        lineage = [error.type, *error.bases]
        for final in map(_name, (DataMismatch, PayloadTooLarge)):
            if final in lineage:
                # The next attempt fails in the same way, so a wide class such as Exception isn't enough.
                lineage = lineage[: lineage.index(final) + 1]
        return not names.isdisjoint(lineage)


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


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
        tag = (
            self.by.removeprefix(TAG)
            if isinstance(self.by, str) and self.by.startswith(TAG)
            else ""
        )
        if self.by not in ("all", "graph", "node") and not tag:
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


@dataclass(frozen=True, slots=True, order=True)
class LimitShape:
    """One limit of one node: `tag` names the tag whose value ends the key; 0 means no limit.

    `interval` is the time between two executions in ms, rounded up: the rate is never exceeded.
    """

    start: str
    tag: str
    concurrency: int
    interval: int

    def key(self, view: LimitUsage) -> str:
        return self.start + (view.tag(self.tag) if self.tag else "")


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A node at a limit: places `taken` by others, others `ahead` of it, and whether one is its own."""

    taken: int
    ahead: int
    mine: bool


class LimitUsage(Protocol):
    """The state of the limits that a claim reads."""

    def tag(self, name: str) -> str:
        """Return the value of a tag of the outermost run; "" where it has none."""

    def next_start(self, key: str, interval: int) -> int:
        """Return when the next execution of a rate may begin, in ms; 0: at once.

        The one after it may begin `interval` ms later.
        """

    def queue_position(self, key: str, node: str, since: int, now: int) -> QueuePosition:
        """Return the position of a node of this run that has requested a place since then (ms)."""


def check(owner: str, limits: Iterable[object]) -> tuple[Limit, ...]:
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
