"""Waiting for a condition, never for a time: a slow machine makes a test slower, not wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], what: str, *, seconds: float = 60) -> None:
    """Return as soon as `holds()` is true; fail with `what` was awaited after that many seconds."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain until {what}")
        pause.wait(0.01)
