"""A worker that loses its connection to Redis leaves nothing of it behind.

Kombu's event loop keeps the timers and the callback of every connection that it ever had, and with them all
that the connection was: a tenth of a megabyte each time, and ever more to call.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from kombu.transport import redis

MARK = "_runner_registered"


def forget_old_connections() -> None:
    """Let each connection that an event loop gets replace the one before it; harmless twice."""
    register = redis.Transport.register_with_event_loop
    if getattr(register, MARK, False):
        return

    @wraps(register)
    def replacing(transport: Any, connection: Any, loop: Any) -> None:
        _forget(loop)
        before = set(loop.on_tick)
        register(transport, connection, loop)
        setattr(loop, MARK, (transport.cycle, loop.on_tick - before))

    setattr(replacing, MARK, True)
    redis.Transport.register_with_event_loop = replacing


def _forget(loop: Any) -> None:
    cycle, callbacks = getattr(loop, MARK, (None, ()))
    loop.on_tick.difference_update(callbacks)
    for name in dir(cycle):
        if name.endswith("_tref") and getattr(cycle, name) is not None:
            getattr(cycle, name).cancel()
