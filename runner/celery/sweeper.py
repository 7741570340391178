"""The sweep: every worker applies the timers that are due, so that nothing needs a leader."""

from __future__ import annotations

import random
from typing import Any

from runner.celery.background import Background
from runner.celery.engines import connection_of, pushes
from runner.celery.sealer import Sealer
from runner.celery.webhook_threads import WebhookThreads
from runner.store.redis.partitions import wake_keys
from runner.store.redis.singleton_locks import SingletonLocks
from runner.store.redis.streams import SweepRequests

BATCH = 50
"""Timers of one sweep: it blocks the store, for a few milliseconds."""

APART = 0.25
"""Seconds between two sweeps of a fleet, however many workers it has."""


class Sweeper(Background):
    """Sweeps every RUNNER_SWEEP_INTERVAL seconds; at once again while there is more than one batch.

    A worker whose turn comes directly after another one's sweep leaves it at that. Where programs can't ring
    the queue (the broker is not the store), they request a sweep.
    """

    label = "sweeper"

    def prepare(self, worker: Any) -> None:
        """Listen for requests, where others can't ring."""
        redis, namespace = connection_of(self.engine), self.settings.namespace
        self._locks = SingletonLocks(redis, namespace)
        keys = wake_keys(self.settings)
        self._requests = None if pushes(worker.app, self.settings) else SweepRequests(redis, keys)
        self._is_requested = False
        self._sealer = Sealer(self.engine, self.settings)
        self._webhooks = WebhookThreads(self.engine, self.settings, self.stopping.is_set)
        self.engine.fire = {**self.engine.fire, "webhook": self._webhooks.begin}

    def leave(self) -> None:
        """Wait for the threads of webhooks."""
        self._webhooks.join()

    def turn(self) -> None:
        """Apply what is due, then rest; the rest is random, so that workers don't sweep all at once."""
        if self._is_requested or self._locks.acquire("sweep", APART):
            while self.engine.sweep(BATCH) >= BATCH and not self.stopping.is_set():
                continue
        self._sealer.seal(self.stopping.is_set)
        rest = self.settings.sweep_interval * random.uniform(0.8, 1.2)  # noqa: S311 - jitter is no secret
        if self._requests is None:
            self.stopping.wait(rest)
        else:
            self._is_requested = self._requests.wait(rest, self.stopping.is_set)
