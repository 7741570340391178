"""A worker's measurements: how long nodes waited and ran, with one log line for each execution."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

from runner.definition.model import map_of
from runner.errors import StoreError
from runner.execution import telemetry
from runner.execution.context import ClaimedVisit
from runner.records.budgets import MICROS, USAGE
from runner.records.metrics import NODE, QUEUE_WAIT
from runner.records.outcomes import Outcome
from runner.store.interface import Store
from runner.store.redis.measurements import (
    Collector,
    Increments,
    increments,
    spending,
)
from runner.store.redis.partitions import SharedStore

log = logging.getLogger(__name__)

log_nodes = logging.getLogger("runner.nodes")
"""Logs one line at INFO for each execution of a node."""

SAMPLE_EVERY = 0.1
"""Seconds between two measurements of a wait, because each reads from the store."""

_sampled_at = 0.0


def measure_nodes() -> None:
    """Measure every execution of a node in this process from now on."""
    telemetry.attach(_observe)


def waiting_since(store: Store, run_id: str, node: str) -> float | None:
    """Return the seconds that a node has been ready; None if it isn't ready, or isn't measured this time."""
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


def _observe(
    running: telemetry.RunningNode, visit: ClaimedVisit
) -> AbstractContextManager[Callable[[Outcome], object]]:
    began, usage_before = time.monotonic(), _usage(visit)

    def end(outcome: Outcome) -> None:
        ending = telemetry.OUTCOMES[type(outcome)]
        seconds = time.monotonic() - began
        if log_nodes.isEnabledFor(logging.INFO):
            visit_name = f"{running.run_id}.{running.node}.{running.visit}.{running.attempt}"
            arguments = (ending, f"{running.graph}/{running.node}[{visit_name}]", seconds)
            result = {"outcome": ending, "seconds": round(seconds, 3)}
            # `info` would search the stack for the caller, and so take twice the calls.
            line = log_nodes.name, logging.INFO, __file__, 0, "node.%s: %s in %.3f s", arguments
            log_nodes.handle(log_nodes.makeRecord(*line, None, "end", result))
        if isinstance(visit.store, SharedStore):
            _collector(visit.store).add(
                increments(
                    NODE,
                    seconds,
                    graph=running.graph,
                    node=map_of(running.node) or running.node,
                    outcome=ending,
                )
            )
            for counter, amount in spent(outcome, usage_before).items():
                _collector(visit.store).add(spending(counter, amount, running.graph))

    return nullcontext(end)


def _usage(visit: ClaimedVisit) -> Mapping[str, int]:
    """Return an agent's usage in this visit before this execution."""
    document = visit.document or {}
    usage = document.get("usage") if document.get("visit") == visit.address.visit else None
    return usage if isinstance(usage, dict) else {}


def spent(outcome: Outcome, usage_before: Mapping[str, int]) -> dict[str, float]:
    """Return the spending of this execution, if its agent counts it."""
    usage = getattr(outcome, "usage", {})
    if USAGE["model_calls"] not in usage:
        return {}
    return {
        counter: amount / (MICROS if counter == "cost" else 1)
        for counter, name in USAGE.items()
        if (amount := usage.get(name, 0) - usage_before.get(name, 0)) > 0
    }


@lru_cache(maxsize=8)
def _collector(store: SharedStore) -> Collector:
    def write(batch: Increments) -> None:
        try:
            store.measure(batch)
        except StoreError as error:
            log.info(
                "metrics.lost: %s Some measured times are missing in `runner metrics`.", error
            )

    return Collector(write)
