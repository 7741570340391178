"""Dying at a named point, when a test wants it so."""

from __future__ import annotations

import os
import signal

from tests.celery.graphs import store


def arm(site, point: str, name: str, how: str = "self") -> None:
    """Let the next process that reaches the point die: "self" that process, "group" the whole worker."""
    site.redis.set(f"kill:{point}:{name}", how)


def died_at(site, point: str, name: str) -> int:
    """Say when a process died at that point, in milliseconds of the store; 0 while none has."""
    return int(site.redis.get(f"killed:{point}:{name}") or 0)


def reach(point: str, name: str) -> None:
    """Die here if a test wants it so, and leave word when."""
    with store() as client:
        how = client.getdel(f"kill:{point}:{name}")
        if how is None:
            return
        seconds, micros = client.time()
        client.set(f"killed:{point}:{name}", seconds * 1000 + micros // 1000)
    if how == b"group":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
