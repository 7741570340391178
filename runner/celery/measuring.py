"""What a worker measures for `runner metrics`: how long nodes ran, and how long they waited before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from runner.errors import StoreError
from runner.execution import telemetry
from runner.execution.context import ClaimedVisit
from runner.records.outcomes import Outcome
from runner.store.interface import Store
from runner.store.redis.measurements import NODE, QUEUE_WAIT, Collector, Increments, increments
from runner.store.redis.partitions import SharedStore

log = logging.getLogger(__name__)

SAMPLE_EVERY = 0.1
"""Seconds between two measurements of a wait: each reads from the store."""

_sampled_at = 0.0


def measure_nodes() -> None:
    """Measure every execution of a node in this process from now on."""
    telemetry.attach(_observe)


def waiting_since(store: Store, run_id: str, node: str) -> float | None:
    """Return the seconds that a node has been ready; None where it isn't, or where none is measured now."""
    global _sampled_at  # noqa: PLW0603 - two threads that both measure do no harm
    if time.monotonic() - _sampled_at < SAMPLE_EVERY or not isinstance(store, SharedStore):
        return None
    _sampled_at = time.monotonic()
    try:
        return store.waited(run_id, node)
    except StoreError:
        return None  # the claim, which comes next, reports it


def measure_wait(store: Store, seconds: float, graph: str) -> None:
    """Record how long a node waited for this worker."""
    if isinstance(store, SharedStore):
        _collector(store).add(increments(QUEUE_WAIT, seconds, graph=graph))


@contextmanager
def _observe(place: telemetry.RunningNode, visit: ClaimedVisit) -> Iterator[Callable[[Outcome], object]]:
    began = time.monotonic()

    def end(outcome: Outcome) -> None:
        if isinstance(visit.store, SharedStore):
            word = telemetry.OUTCOMES[type(outcome)]
            elapsed = time.monotonic() - began
            _collector(visit.store).add(increments(NODE, elapsed, graph=place.graph, outcome=word))

    yield end


@lru_cache(maxsize=8)
def _collector(store: SharedStore) -> Collector:
    def write(more: Increments) -> None:
        try:
            store.measure(more)
        except StoreError as error:
            log.info("metrics.lost: %s Some measured times are missing in `runner metrics`.", error)

    return Collector(write)
