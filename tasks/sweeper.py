"""The sweep: every worker looks now and then at what is due, so that nothing needs a leader."""

from __future__ import annotations

import random
import time
from typing import Any

from runner.store.wake import Wake
from tasks.background import Background
from tasks.engines import pushes

BATCH = 50
"""Timers of one sweep: so long all others wait for the store, which is a few milliseconds."""

SLICE = 1.0
"""Seconds of one rest, and so the longest that a worker which stops waits for this thread."""


class Sweeper(Background):
    """Sweeps every RUNNER_SWEEP_INTERVAL seconds; at once again while there is more than one batch.

    Where programs can't ring the queue (a broker that is not the store), they ask for a sweep instead.
    """

    label = "sweeper"

    def prepare(self, worker: Any) -> None:
        """See whether others can ring without us."""
        self._wake = None if pushes(worker.app, self.settings) else Wake(self.settings.redis_url)

    def turn(self) -> None:
        """Do what is due, then rest; the rest differs, so that workers don't sweep all at once."""
        while self.engine.sweep(BATCH) >= BATCH and not self.stopping.is_set():
            continue
        rest = self.settings.sweep_interval * random.uniform(0.8, 1.2)  # noqa: S311 - jitter is no secret
        if self._wake is None:
            self.stopping.wait(rest)
        else:
            self._until_woken(self._wake, time.monotonic() + rest)

    def _until_woken(self, wake: Wake, ends: float) -> None:
        while not self.stopping.is_set() and (left := ends - time.monotonic()) > 0:
            if wake.wait(min(left, SLICE)):
                return
