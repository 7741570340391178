"""Fairness between tenants as a model: keys with ready nodes, a window of doorbells, workers with slots.

`python -m tests.simulation.fairness` prints the figures of docs/decisions/0028-fairness.md. Times are in mean
executions of a node; every history follows from its seed.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner.limits.fairness import LEAST_WINDOW, Fairness, Share
from tests.simulation.stride_queue import StrideQueue

NOISY = "noisy"
TENANTS = tuple(f"t{number:03}" for number in range(999))
"""Those beside the noisy one."""

Arrival = tuple[float, str, int, int]
"""When nodes become ready, their key, their lane and how many they are.

A lane is a priority of a queue in a partition: those of the first priority come first.
"""

Bell = tuple[int, str, float]
"""A doorbell: the lane and the key of its node, and when that became ready."""


class Forgetful(StrideQueue[float]):
    """A faulty rule: a key that becomes empty begins again at the queue's time, and not at its own pass."""

    def pop(self) -> tuple[str, float] | None:
        """Take the next node, and forget its key if that was the last one."""
        node = super().pop()
        if node and not self._nodes[node[0]]:
            del self._strides[node[0]]
            self._passes = [(key_pass, key) for key_pass, key in self._passes if key != node[0]]
            heapq.heapify(self._passes)
        return node


class Fifo:
    """The control: nodes go in the order in which they became ready."""

    def __init__(self) -> None:
        self._queue = deque[tuple[str, float]]()

    def add(self, share: Share, ready: float) -> None:
        """Add a node behind all others."""
        self._queue.append((share.key, ready))

    def pop(self) -> tuple[str, float] | None:
        """Take the first node."""
        return self._queue.popleft() if self._queue else None


@dataclass(frozen=True)
class Setting:
    """A fleet of workers: `window` and `prefetch` are per slot, times in mean executions.

    `trip` passes from a push or a free slot to a doorbell's claim. With `backlog` the workers also serve a
    queue without fairness that is never empty. The first worker dies at `dies_at`, with what it had fetched,
    and the window counts that until `lease` has passed. Keys of `chains` have nodes that each make the next
    one ready as they end.
    """

    fair: bool = True
    workers: int = 4
    slots: int = 8
    window: float = 1.0
    prefetch: int = 1
    trip: float = 0.0
    partitions: int = 1
    priorities: int = 1
    least: int = LEAST_WINDOW
    weights: Mapping[str, float] = field(default_factory=dict)
    durations: Mapping[str, float] = field(default_factory=dict)
    chains: frozenset[str] = frozenset()
    forgets: bool = False
    backlog: bool = False
    dies_at: float = math.inf
    lease: float = 30.0
    seed: int = 1


class Fleet:
    """One history: nodes become ready, doorbells are pushed, fetched and claimed, nodes end."""

    def __init__(self, setting: Setting, arrivals: Iterable[Arrival]) -> None:
        self.setting, self.now, self.random = setting, 0.0, random.Random(setting.seed)  # noqa: S311 - no secret
        self.waits: dict[str, list[float]] = defaultdict(list)
        """Of each key, how long the nodes waited that began."""
        self.busy = 0.0
        whole = max(setting.least, math.ceil(setting.window * setting.workers * setting.slots))
        self.window = math.ceil(whole / setting.partitions) if setting.fair else math.inf
        rule = (Forgetful if setting.forgets else StrideQueue[float]) if setting.fair else Fifo
        self._fairness = Fairness("tag:tenant", setting.weights)
        self._nodes = [rule() for _ in range(setting.partitions * setting.priorities)]
        self._pushed = [0] * len(self._nodes)
        """Doorbells of each lane that no worker has claimed."""
        self._celery = [deque[Bell]() for _ in range(setting.priorities)]
        self._fetched = [deque[Bell]() for _ in range(setting.workers)]
        self._free = [setting.slots] * setting.workers
        self._room = [setting.slots * setting.prefetch] * setting.workers
        self._turns = [False] * setting.workers
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        for when, key, lane, count in arrivals:
            self._at(when, self._add, key, lane, count)
        self._at(setting.dies_at, self._die)

    def run(
        self, until: float = math.inf, enough: Callable[[Fleet], bool] | None = None
    ) -> Fleet:
        """Go on until a time, or until there is enough."""
        while self._events and self._events[0][0] <= until and not (enough and enough(self)):
            self.now, _, step, arguments = heapq.heappop(self._events)
            step(*arguments)
            if not self._events or self._events[0][0] > self.now:
                self._fetch()
        return self

    def _at(self, when: float, step: Callable[..., None], *arguments: Any) -> None:
        if when < math.inf:
            heapq.heappush(self._events, (when, next(self._numbers), step, arguments))

    def _add(self, key: str, lane: int, count: int) -> None:
        share = self._fairness.share(key)
        for _ in range(count):
            self._nodes[lane].add(share, self.now)
        self._refill(lane)

    def _refill(self, lane: int) -> None:
        while self._pushed[lane] < self.window and (node := self._nodes[lane].pop()):
            self._pushed[lane] += 1
            self._celery[lane // self.setting.partitions].append((lane, *node))

    def _fetch(self) -> None:
        """Let workers with room fetch: one with the most free slots first, as those wait on the queue."""
        while (bells := next(filter(None, self._celery), None)) or self.setting.backlog:
            worker = max(
                range(len(self._room)), key=lambda w: (self._room[w] > 0, self._free[w])
            )
            if self._room[worker] <= 0:
                return
            self._room[worker] -= 1
            self._turns[worker] = not self._turns[worker]
            is_fair = bells and not (self.setting.backlog and self._turns[worker])
            bell = bells.popleft() if is_fair else (-1, "", self.now)
            self._at(self.now + self.setting.trip, self._arrive, worker, bell)

    def _arrive(self, worker: int, bell: Bell) -> None:
        if worker == 0 and self.now >= self.setting.dies_at:
            self._lose(bell)
            return
        self._fetched[worker].append(bell)
        self._begin(worker)

    def _begin(self, worker: int) -> None:
        while self._free[worker] and self._fetched[worker]:
            self._free[worker] -= 1
            lane, key, ready = self._fetched[worker].popleft()
            duration = self.random.expovariate(1 / self.setting.durations.get(key, 1.0))
            self._at(self.now + duration, self._end, worker, lane, key, duration)
            if lane >= 0:
                self.waits[key].append(self.now - ready)
                self._pushed[lane] -= 1
                self._refill(lane)

    def _end(self, worker: int, lane: int, key: str, duration: float) -> None:
        if worker == 0 and self.now >= self.setting.dies_at:
            return
        self.busy += duration
        self._free[worker] += 1
        self._room[worker] += 1
        if key in self.setting.chains:
            self._add(key, lane, 1)
        self._begin(worker)

    def _die(self) -> None:
        self._free[0] = self._room[0] = 0
        for bell in self._fetched[0]:
            self._lose(bell)

    def _lose(self, bell: Bell) -> None:
        """The window counts a lost doorbell until its lease is over; then its node is ready again."""
        self._at(self.now + self.setting.lease, self._lapse, *bell)

    def _lapse(self, lane: int, key: str, ready: float) -> None:
        self._pushed[lane] -= 1
        self._nodes[lane].add(self._fairness.share(key), ready)
        self._refill(lane)


def p95(fleet: Fleet, expected: int = 0) -> float:
    """Return the wait below which 95% of the nodes of all keys but the noisy one began.

    Where fewer began than are `expected`, the others wait without end.
    """
    waits = sorted(wait for key in fleet.waits if key != NOISY for wait in fleet.waits[key])
    position = math.ceil(0.95 * max(expected, len(waits))) - 1
    return waits[position] if position < len(waits) else math.inf


def backlog(
    setting: Setting, noise: int = 100, each: int = 1, until: float = math.inf
) -> Fleet:
    """Let all tenants begin with `each` nodes, the noisy one with `noise` times those of all others."""
    total = each * len(TENANTS)
    noisy = [
        (0.0, NOISY, where, noise * total // setting.partitions) for where in _all(setting)
    ]
    others = [
        (0.0, key, (number + turn) % setting.partitions, 1)
        for number, key in enumerate(TENANTS)
        for turn in range(each)
    ]
    fleet = Fleet(setting, [*noisy, *others] if noise else others)
    return fleet.run(until, lambda now: _others(now) == total)


def _all(setting: Setting) -> range:
    return range(setting.partitions)


def _others(fleet: Fleet) -> int:
    return sum(map(len, fleet.waits.values())) - len(fleet.waits[NOISY])


def stream(
    setting: Setting, load: float, *, noise: bool, until: float = 150, tenants: int = 999
) -> Fleet:
    """Let nodes of tenants become ready at random, for a share of the slots; the noisy one has no end."""
    draw = random.Random(setting.seed)  # noqa: S311 - no secret
    now, arrivals = 0.0, list[Arrival]()
    while now < until:
        now += draw.expovariate(load * setting.workers * setting.slots)
        arrivals.append(
            (now, draw.choice(TENANTS[:tenants]), draw.randrange(setting.partitions), 1)
        )
    if noise:
        arrivals += [(0.0, NOISY, where, 6_000) for where in _all(setting)]
    return Fleet(setting, arrivals).run(until)


def shares(
    setting: Setting, keys: Mapping[str, Iterable[int]], until: float = 150
) -> dict[str, float]:
    """Return the share of starts of each key, all of which have nodes in these lanes without end."""
    arrivals = [
        (0.0, key, where, 1 if key in setting.chains else 6_000)
        for key, partitions in keys.items()
        for where in partitions
    ]
    fleet = Fleet(setting, arrivals).run(until)
    total = sum(map(len, fleet.waits.values()))
    return {key: len(fleet.waits[key]) / total for key in keys}


ENDLESS = [(0.0, NOISY, 0, 4_000)]


def use(setting: Setting, until: float = 60) -> float:
    """Return the share of the slots' time in which nodes of the noisy tenant run."""
    return Fleet(setting, ENDLESS).run(until).busy / until / setting.workers / setting.slots


RIVALS = tuple(f"rival{number}" for number in range(9))


def few_at_a_time(*, forgets: bool) -> float:
    """Return the share of a key of weight 0.1 whose three chains make its queue empty all the time."""
    setting = Setting(forgets=forgets, weights={"chain": 0.1}, chains=frozenset({"chain"}))
    return shares(setting, {"chain": [0, 0, 0], **{key: [0] for key in RIVALS}})["chain"]


def figures() -> Iterator[str]:
    """Compute the figures of the page, a line each."""
    setting = Setting()
    alone, fair = p95(backlog(setting, noise=0)), p95(backlog(setting))
    mixed = p95(backlog(replace(setting, fair=False)))
    yield f"all have a backlog: alone {alone:.1f}, with noise {fair:.1f}; without fairness {mixed:.0f}"
    for load in (0.5, 0.8, 0.95):
        waits = [p95(stream(setting, load, noise=False))]
        windows = [replace(setting, window=size) for size in (0.5, 1, 2, 4)]
        waits += [p95(stream(window, load, noise=True)) for window in windows]
        yield f"load {load}: alone, windows of 0.5, 1, 2, 4: {_line(waits)}"
    for slots in (1, 2, 4):
        small = replace(setting, workers=1, slots=slots, trip=0.02)
        waits = [p95(stream(small, 0.5, noise=False))]
        waits += [p95(stream(replace(small, least=n), 0.5, noise=True)) for n in (16, 4, 2)]
        yield f"{slots} slots: alone, least windows of 16, 4, 2: {_line(waits)}"
    for prefetch, trip in itertools.product((1, 4), (0.01, 0.2, 1)):
        fleet = replace(setting, prefetch=prefetch, trip=trip)
        used = [use(replace(fleet, window=size)) for size in (0.5, 1, 2, 4)]
        yield f"prefetch {prefetch}, trip {trip}: slots in use, windows of 0.5, 1, 2, 4: {_line(used)}"
    for backlog_beside in (False, True):
        wait = p95(stream(replace(setting, backlog=backlog_beside), 0.3, noise=True))
        yield f"another queue with a backlog, {backlog_beside}: {wait:.2f}"
    passes = [few_at_a_time(forgets=forgets) for forgets in (False, True)]
    yield f"weight 0.1 of 9.1, few at a time; the same where passes are forgotten: {_line(passes, 3)}"
    gold = replace(setting, weights={"gold": 5})
    one = shares(gold, {"gold": [0], "plain": [0]})["gold"]
    gold = replace(gold, partitions=4)
    spread = shares(gold, {"gold": range(4), "plain": range(4)})["gold"]
    apart = shares(gold, {"gold": [0], "plain": range(4)})["gold"]
    yield f"gold of 5:1: one partition, four, gold in one of four: {_line([one, spread, apart], 3)}"
    long = shares(replace(setting, durations={"long": 10}), {"long": [0], "short": [0]})["long"]
    yield f"nodes ten times as long: {long:.2f} of the starts"
    dying = replace(setting, prefetch=4, trip=0.1, dies_at=20.0)
    for size in (1, 2):
        fleet = Fleet(replace(dying, window=size), ENDLESS).run(20)
        before = fleet.busy
        used_by_others = (fleet.run(50).busy - before) / 30 / 3 / setting.slots
        yield f"a worker of four dies, prefetch 4, window {size}: {used_by_others:.2f} of the others in use"


def _line(numbers: Iterable[float], digits: int = 2) -> str:
    return " ".join(f"{number:.{digits}f}" for number in numbers)


if __name__ == "__main__":
    for figure in figures():
        sys.stdout.write(figure + "\n")
