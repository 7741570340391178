"""The sweep: every worker applies the timers that are due, so that nothing needs a leader."""

from __future__ import annotations

import random
import time
from typing import Any

from runner.celery.background import Background
from runner.celery.engines import pushes
from runner.store.redis.streams import SweepRequests

BATCH = 50
"""Timers of one sweep: it blocks the store, for a few milliseconds."""

SLICE = 1.0
"""Seconds of one rest, and so the longest that a stopping worker waits for this thread."""


class Sweeper(Background):
    """Sweeps every RUNNER_SWEEP_INTERVAL seconds; at once again while there is more than one batch.

    Where programs can't ring the queue (the broker is not the store), they request a sweep instead.
    """

    label = "sweeper"

    def prepare(self, worker: Any) -> None:
        """Listen for requests, where others can't ring."""
        url, namespace = self.settings.redis_url, self.settings.namespace
        self._requests = None if pushes(worker.app, self.settings) else SweepRequests(url, namespace)

    def turn(self) -> None:
        """Apply what is due, then rest; the rest is random, so that workers don't sweep all at once."""
        while self.engine.sweep(BATCH) >= BATCH and not self.stopping.is_set():
            continue
        rest = self.settings.sweep_interval * random.uniform(0.8, 1.2)  # noqa: S311 - jitter is no secret
        if self._requests is None:
            self.stopping.wait(rest)
        else:
            self._rest(self._requests, time.monotonic() + rest)

    def _rest(self, requests: SweepRequests, ends: float) -> None:
        while not self.stopping.is_set() and (left := ends - time.monotonic()) > 0:
            if requests.wait(min(left, SLICE)):
                return
