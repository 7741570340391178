"""How a worker waits for a store that is away or full: its node's work is done and must not be lost.

A worker's requests may be repeated: each has a nonce or a fence. So they are, for as long as a lease
lasts, which is when the work is given to somebody else in any case.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from runner.errors import StoreError

Result = TypeVar("Result")

WORKERS_OWN = frozenset(
    {"claim", "save", "ask", "park", "settle", "advance", "retry", "expand", "hold", "hand", "sent"}
)
"""The requests that a worker makes for a node that it has or takes."""

FIRST, LONGEST = 0.05, 1.0
"""Seconds between two tries: at first, and in the end."""


class Patience:
    """Repeats requests of workers for so many seconds; 0 tells every failure at once."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is a lease in a worker."""
        self._seconds = seconds

    def call(self, verb: str, request: Callable[[], Result]) -> Result:
        """Make a request until the store takes it.

        Raises:
            StoreError: it did not, in all that time; or waiting can't help.
        """
        if not self._seconds or verb not in WORKERS_OWN:
            return request()
        ends, pause = time.monotonic() + self._seconds, FIRST
        while True:
            try:
                return request()
            except StoreError as error:
                if not error.passing or time.monotonic() + pause > ends:
                    raise
            # Many nodes wait for the same store: they must not all come back at one moment.
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter is no secret
            pause = min(LONGEST, 2 * pause)
