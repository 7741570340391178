"""A sweep at a given time: for nodes that a retry or a rate delays by less than the sweep interval.

One thread per process waits for the next time and ends when there is none, so that after a fork each
process has its own. A time that is lost with its process only delays: the next sweep of any worker
finds what is due.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

from runner.errors import RunnerError

log = logging.getLogger(__name__)


class SweepTimer:
    """Calls `sweep` at times to come, on a thread of its own."""

    def __init__(self, sweep: Callable[[], object]) -> None:
        """`sweep` is called on the timer's thread; its errors are logged."""
        self._sweep = sweep
        self._forget()
        if hasattr(os, "register_at_fork"):
            forget = weakref.WeakMethod(self._forget)
            os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def _forget(self) -> None:
        self._times: list[float] = []
        self._changed = threading.Condition()
        self._serving = False

    def sweep_in(self, seconds: float) -> None:
        """Sweep after so many seconds."""
        with self._changed:
            heapq.heappush(self._times, time.monotonic() + seconds)
            if not self._serving:
                self._serving = True
                threading.Thread(target=self._serve, name="runner-sweep-timer", daemon=True).start()
            self._changed.notify()

    def _serve(self) -> None:
        while self._wait():
            try:
                self._sweep()
            except RunnerError as error:
                log.info("sweep.missed: %s The next sweep finds what is due.", error)
            except Exception:
                log.exception("sweep.failed: the next sweep finds what is due; please report this.")

    def _wait(self) -> bool:
        """Wait for the next time and remove all that have passed; False when there are none left."""
        with self._changed:
            while self._times and self._times[0] > time.monotonic():
                self._changed.wait(self._times[0] - time.monotonic())
            self._serving = bool(self._times)
            while self._times and self._times[0] <= time.monotonic():
                heapq.heappop(self._times)
            return self._serving
