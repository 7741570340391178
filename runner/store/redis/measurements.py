"""Measured times, as histograms in Redis: processes add to them, and `runner metrics` reads them.

A process collects its measurements and adds them after a short while, so that a busy worker writes once in
some seconds. Measurements not written when it ends are lost: nothing but metrics depends on them.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from runner.records.metrics import (
    ANSWER,
    DROPPED,
    FORGOTTEN,
    NODE,
    QUEUE_WAIT,
    SPENT,
    STARTED,
    VOTES,
)

Increments = Mapping[str, float]
"""Fields of the hash, with the amount to add to each."""

BOUNDS: Mapping[str, tuple[float, ...]] = {
    NODE: (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800),
    QUEUE_WAIT: (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800),
    ANSWER: (10, 60, 300, 1800, 3600, 14_400, 86_400, 259_200, 604_800),
}
"""The upper bounds of each histogram's buckets, in seconds; the last bucket is unbounded."""

KEPT = 30 * 86_400
"""Seconds after which the measurements of a graph that measured nothing since are deleted."""

HELP = {
    NODE: "How long nodes ran, by graph, node and outcome; the items of a map as the map.",
    QUEUE_WAIT: "How long ready nodes waited for a worker, by graph; at most ten a second are measured.",
    ANSWER: "How long questions were open before they were answered.",
    FORGOTTEN: "Keys of limits with a rate that were forgotten: a limit had more than 100,000.",
    SPENT: "What agents with a budget or a price have spent, by graph and counter.",
    STARTED: "Runs that were started, by graph; counted once a minute.",
    VOTES: "Votes that were counted, by decision.",
    DROPPED: "Dead letters that were deleted, because there were too many, old or large ones.",
}


def spending(counter: str, amount: float, graph: str) -> dict[str, float]:
    """Return the increment for an agent's spending under a budget or a price."""
    return {_field(SPENT, {"graph": graph, "counter": counter}, "sum"): amount}


def started(graph: str, runs: int) -> dict[str, float]:
    """Return the increment for started runs."""
    return {_field(STARTED, {"graph": graph}, "sum"): runs}


def vote(decision: str) -> dict[str, float]:
    """Return the increment for a counted vote."""
    return {_field(VOTES, {"decision": decision}, "sum"): 1}


def dropped(letters: int) -> dict[str, float]:
    """Return the increment for deleted dead letters."""
    return {_field(DROPPED, {}, "sum"): letters}


def counters(fields: Mapping[bytes, float]) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Read the counters: name, value and labels, in order."""
    read = [(json.loads(key), value) for key, value in fields.items()]
    for (name, labels, _), value in sorted(read, key=lambda pair: json.dumps(pair[0])):
        if name in {SPENT, STARTED, VOTES, DROPPED}:
            yield name, value, labels


def increments(name: str, seconds: float, **labels: str) -> dict[str, float]:
    """Return the increments for one measurement: one for its bucket, and its seconds for the sum."""
    bounds = BOUNDS[name]
    index = bisect_left(bounds, seconds)
    bucket = f"{bounds[index]:g}" if index < len(bounds) else "+Inf"
    pairs = tuple(sorted(labels.items()))
    return {_text(name, pairs, bucket): 1, _text(name, pairs, "sum"): seconds}


def histograms(
    fields: Mapping[bytes, float],
) -> Iterator[tuple[str, str, float, dict[str, str]]]:
    """Read the hash as Prometheus samples: histogram, suffix, value and labels, in order."""
    series: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for key, value in fields.items():
        name, labels, part = json.loads(key)
        if name in BOUNDS:
            series[name, json.dumps(labels)][part] = value
    for (name, text), parts in sorted(series.items()):
        labels = json.loads(text)
        count = 0.0
        for bound in (*(f"{bound:g}" for bound in BOUNDS[name]), "+Inf"):
            count += parts.get(bound, 0)
            yield name, "_bucket", count, {**labels, "le": bound}
        yield name, "_sum", parts.get("sum", 0.0), labels
        yield name, "_count", count, labels


def _field(name: str, labels: Mapping[str, str], part: str) -> str:
    return _text(name, tuple(sorted(labels.items())), part)


@lru_cache(4096)
def _text(name: str, labels: tuple[tuple[str, str], ...], part: str) -> str:
    return json.dumps([name, dict(labels), part])


class Collector:
    """Collects measurements and writes them a short while after the first. Thread-safe."""

    def __init__(self, write: Callable[[Increments], object], delay: float = 2.0) -> None:
        """Take a delay in seconds; if `write` raises, the collected measurements are lost."""
        self._write, self._delay = write, delay
        self._pending: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, more: Increments) -> None:
        with self._lock:
            starts = not self._pending
            for field, number in more.items():
                self._pending[field] = self._pending.get(field, 0) + number
        if starts:
            timer = threading.Timer(self._delay, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        with self._lock:
            pending = self._pending
            self._pending = {}
        if pending:
            self._write(pending)
