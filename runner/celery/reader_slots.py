"""Reader slots: a few workers of a fleet read a stream at a time; the others ask now and then.

For every message a server goes through all clients that wait for one. If every worker read, an
answer would cost the server ten milliseconds in a fleet of 4,000.
"""

from __future__ import annotations

import random
import threading
import time

from runner.celery.engines import connection_of
from runner.celery.threads import jittered
from runner.execution.engine import Engine
from runner.settings import Settings
from runner.store.redis.singleton_locks import SingletonLocks

SLOTS = 8
"""Workers that read at the same time."""

HOLD = 10.0
"""Seconds for which a slot is held at most."""

SWEEPS = 2
"""Sweep intervals for which a slot is held at most."""

RETRY_AFTER = 0.5
"""Seconds until a worker without a slot asks again; doubled each time, up to half of a hold."""


class ReaderSlots:
    """The slots for readers of one name, as one worker takes them."""

    def __init__(
        self, engine: Engine, settings: Settings, name: str, stopping: threading.Event
    ) -> None:
        """Name the readers' slots with `name`; `stopping` ends a pause."""
        self._locks = SingletonLocks(connection_of(engine), settings.namespace)
        self._name, self._stopping = name, stopping
        self._hold = min(HOLD, SWEEPS * settings.sweep_interval)
        self._number, self._pause = 0, RETRY_AFTER

    def acquire(self) -> float:
        """Take a slot and return its end in monotonic time; if none is free, pause and return 0.

        Raises:
            StoreError: the store could not be reached.
        """
        lapses = time.monotonic() + self._hold
        # A different one each time: the previous slot may not have lapsed yet.
        self._number = (self._number + random.randrange(1, SLOTS)) % SLOTS  # noqa: S311 - no secret
        if self._locks.acquire(f"{self._name}:{self._number}", self._hold):
            self._pause = RETRY_AFTER
            return lapses
        self._stopping.wait(jittered(self._pause))
        self._pause = min(self._pause * 2, max(RETRY_AFTER, self._hold / 2))
        return 0.0
