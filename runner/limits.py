"""Limits: how many executions go on at a time, and how many begin in a while.

An execution takes a place of each limit of its node while a worker has it; a node that waits for a
person, a child run or its next attempt has none. Who finds no place stands in a queue, by the time
at which it first asked; a place that becomes free is kept for the first in the queue, which is rung.
A rate gives each execution a time of its own, one after another.

Places are taken in the order of the limits' names, so that no two nodes wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.actions import Action, Leave, PassOn, Queue, Reserve, Take
from runner.errors import DefinitionError

TAG = "tag:"
FASTEST = 1000.0
"""Executions per second: times are whole milliseconds."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `concurrency` executions at a time, or `rate` executions begun per `per` seconds, or both.

    What shares the name shares the limit: with `by="all"` all nodes that have it, with "graph" or
    "node" those of one graph or one node, with "tag:<name>" those of runs that have the same value of
    that tag (runs without it count as one). A run inside another one has the tags of the outermost.
    """

    name: str
    concurrency: int | None = None
    rate: float | None = None
    per: float = 1.0
    by: str = "all"

    def __post_init__(self) -> None:
        """Refuse what could never work, where it is written."""
        if not (isinstance(self.name, str) and self.name.isprintable() and self.name.strip()):
            raise DefinitionError(f"a limit needs a name of printable characters, not {self.name!r}.")
        if ":" in self.name:
            raise DefinitionError(f"the name of a limit has no colon: {self.name!r}.")
        if self.by not in {"all", "graph", "node"} and not (self.by.startswith(TAG) and self.by[len(TAG) :]):
            raise DefinitionError(
                f"limit {self.name!r}: by is 'all', 'graph', 'node' or 'tag:<name>', not {self.by!r}."
            )
        if self.concurrency is None and self.rate is None:
            raise DefinitionError(f"limit {self.name!r} limits nothing: give it a concurrency or a rate.")
        self._check_numbers()

    def _check_numbers(self) -> None:
        count = self.concurrency
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
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
        """Work out what scheduling needs of the limit of one node."""
        keys = {"all": "", "graph": f":graph:{graph_id}", "node": f":node:{graph_id}/{node}"}
        tag = self.by.removeprefix(TAG) if self.by.startswith(TAG) else ""
        interval = 0 if self.rate is None else math.ceil(self.per * 1000 / self.rate)
        return LimitShape(self.name + keys.get(self.by, f":{self.by}:"), tag, self.concurrency or 0, interval)


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True, slots=True, order=True)
class LimitShape:
    """One limit of one node: `tag` names the tag whose value ends the key; 0 stands for no limit.

    `interval` is the time between two executions in ms, rounded up: the rate is never exceeded.
    """

    start: str
    tag: str
    concurrency: int
    interval: int

    def key(self, view: Standings) -> str:
        """Name the limit as the store has it."""
        return self.start + (view.tag(self.tag) if self.tag else "")


@dataclass(frozen=True, slots=True)
class Turn:
    """How a node stands at a limit: places that others have, others before it, whether it has one."""

    taken: int
    ahead: int
    mine: bool


class Standings(Protocol):
    """What judging a claim looks at."""

    def tag(self, name: str) -> str:
        """Return the value of a tag of the outermost run; "" where it has none."""

    def next_start(self, key: str) -> int:
        """Return when the next execution of a rate may begin, in ms; 0: at once."""

    def turn(self, key: str, node: str, since: int, now: int) -> Turn:
        """Return how a node of this run stands that asks since then."""


def check(owner: str, limits: Iterable[object]) -> tuple[Limit, ...]:
    """Check the limits of a node or graph.

    Raises:
        DefinitionError: one is no Limit, or two are the same.
    """
    found = tuple(limits)
    kept = tuple(each for each in found if isinstance(each, Limit))
    if len(kept) < len(found):
        raise DefinitionError(f"the limits of {owner} must be a list of Limit objects, not {found!r}.")
    if len({(each.name, each.by) for each in kept}) < len(kept):
        raise DefinitionError(f"{owner} has the same limit twice; give each limit another name.")
    return kept


def shapes(limits: Iterable[Limit], graph_id: str, node: str) -> tuple[LimitShape, ...]:
    """Work out the limits of a node, in the order in which places are taken."""
    return tuple(sorted(limit.shape(graph_id, node) for limit in limits))


def reserve(limits: Sequence[LimitShape], view: Standings, now: int) -> tuple[int, list[Action]]:
    """Give an execution its time by all rates: how many ms it must wait, and what to note."""
    start, actions = now, list[Action]()
    for limit in limits:
        if limit.interval:
            key = limit.key(view)
            at = max(now, view.next_start(key))
            actions.append(Reserve(key, at + limit.interval))
            start = max(start, at)
    return start - now, actions


def take(
    limits: Sequence[LimitShape], view: Standings, node: str, since: int, times: tuple[int, int]
) -> tuple[bool, list[Action]]:
    """Take a place of every limit, or stand in the queue of the first that has none.

    `times` are now and the time until which places are kept that it has already. Places of later
    limits are given back, so that nobody waits for a node that waits for him.
    """
    now, kept_until = times
    places = [(limit.key(view), limit.concurrency) for limit in limits if limit.concurrency]
    for position, (key, concurrency) in enumerate(places):
        turn = view.turn(key, node, since, now)
        if not turn.mine and turn.taken + turn.ahead >= concurrency:
            kept: list[Action] = [Take(earlier, node, kept_until) for earlier, _ in places[:position]]
            left = [Leave(later, node, number) for later, number in places[position + 1 :]]
            return False, [*kept, Queue(key, node, since), PassOn(key, concurrency), *left]
    return True, [Take(key, node, None) for key, _ in places]
