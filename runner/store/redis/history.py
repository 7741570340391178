"""The last hour and day of a store's metrics, as samples that one worker takes once a minute.

A sample has the numbers that Prometheus reads at that time, added up for a graph, and "" for all graphs.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from runner.records.metrics import ANSWER, NODE, QUEUE_WAIT, STARTED, Metric
from runner.records.run import outermost
from runner.store.redis.connection import RedisConnection

SPANS = {"hour": (60, 60), "day": (900, 96)}
"""By span: the seconds between two samples, and the number of these intervals."""

SLACK = 0.9
"""The fraction of an interval after which the next sample is due: workers don't ask to the second."""

KEPT = 86_400

FIGURES = {
    (STARTED, ""): "started",
    (f"{NODE}_count", "completed"): "completed",
    (f"{NODE}_count", "failed"): "failed",
    ("runner_ready_nodes", ""): "waiting",
    ("runner_fair_nodes_waiting", ""): "waiting",
    ("runner_questions_open", ""): "open",
    (f"{ANSWER}_count", ""): "decided",
    (f"{ANSWER}_sum", ""): "deciding",
    (f"{QUEUE_WAIT}_count", ""): "begun",
    (f"{QUEUE_WAIT}_sum", ""): "queued",
}
"""The figure of a sample to which a metric and outcome are added; `deciding` and `queued` are seconds."""

Sample = Mapping[str, float]
"""Figures, and `at`, the time in ms of the store."""


def figures(metrics: Iterable[Metric]) -> dict[str, Counter[str]]:
    """Add up the metrics of each graph, and of all graphs."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for metric in metrics:
        figure = FIGURES.get((metric.name, metric.labels.get("outcome", "")))
        if figure:
            for graph in {"", outermost(metric.labels.get("graph", ""))}:
                totals[graph][figure] += metric.value  # type: ignore[assignment]  # a float, too
    return totals


class History:
    """The samples in one database."""

    def __init__(self, redis: RedisConnection, key: str) -> None:
        """Take the beginning of the keys' names; nothing is connected yet."""
        self._redis, self._key = redis, key

    def read(self, span: str, graph: str = "", newest: int = 0) -> list[Sample]:
        """List the samples of a span, the oldest first; only so many of the newest, unless that is 0."""
        texts = self._redis.call("LRANGE", f"{self._key}:{span}:{graph}", 0, newest - 1)
        return [json.loads(text) for text in reversed(texts)]

    def is_due(self, span: str, now: int) -> bool:
        """Return whether a span's next sample is due."""
        newest = self.read(span, newest=1)
        return not newest or now - newest[0]["at"] >= SLACK * 1000 * SPANS[span][0]

    def add(self, span: str, samples: Mapping[str, Sample]) -> None:
        """Add a sample of each graph, and drop those that are too old."""
        for graph, sample in samples.items():
            key = f"{self._key}:{span}:{graph}"
            self._redis.call_all(
                ("LPUSH", key, json.dumps(sample, separators=(",", ":"))),
                ("LTRIM", key, 0, SPANS[span][1]),
                ("EXPIRE", key, KEPT),
            )
