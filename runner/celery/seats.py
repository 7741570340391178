"""Seats: of a fleet's workers a few read a stream at a time; the others now and then look for a free seat.

For every message a server goes through all clients that wait for one. If every worker read, an answer would
cost it ten milliseconds in a fleet of 4,000.
"""

from __future__ import annotations

import random
import threading
import time

from runner.store.redis.connection import RedisConnection
from runner.store.redis.singleton_locks import SingletonLocks

SEATS = 8
"""Workers that read at the same time."""

SEAT = 10.0
"""Seconds for which a seat is taken at most."""

SWEEPS = 2
"""Sweep intervals for which it is taken at most."""

AGAIN = 0.5
"""Seconds after which a worker without a seat asks again; twice as many each time, up to half a seat."""


class Seats:
    """A worker's place among those that read."""

    def __init__(
        self,
        redis: RedisConnection,
        namespace: str,
        name: str,
        sweep_interval: float,
        stopping: threading.Event,
    ) -> None:
        """`name` is that of the readers; `stopping` ends a rest."""
        self._locks, self._name, self._stopping = SingletonLocks(redis, namespace), name, stopping
        self._seconds, self._number, self._rest = min(SEAT, SWEEPS * sweep_interval), 0, AGAIN

    def take(self) -> float:
        """Take a seat and return when it is over, in monotonic time; without a free one rest and return 0.

        Raises:
            StoreError: the store could not be reached.
        """
        ends = time.monotonic() + self._seconds
        # Another one each time: that which it had may not have lapsed yet.
        self._number = (self._number + random.randrange(1, SEATS)) % SEATS  # noqa: S311 - no secret
        if self._locks.acquire(f"{self._name}:{self._number}", self._seconds):
            self._rest = AGAIN
            return ends
        self._stopping.wait(self._rest * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
        self._rest = min(self._rest * 2, max(AGAIN, self._seconds / 2))
        return 0.0
