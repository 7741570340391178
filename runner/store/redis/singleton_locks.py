"""Singleton locks for work that one worker does for all of them, such as a sweep.

Each worker asks when it would do the work itself; the first one does it, and for a while no other does.
So a large fleet does no more of this work than a small one, and a single worker does it as often as it asks.
"""

from __future__ import annotations

from runner.store.addresses import NAMESPACE
from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import Keys


class SingletonLocks:
    """The singleton locks of one namespace in a database."""

    def __init__(self, database: str | RedisConnection, namespace: str = NAMESPACE) -> None:
        """Take a database's redis-py URL or connection; nothing is connected yet."""
        self._redis = connected(database)
        self._keys = Keys(namespace)

    def acquire(self, name: str, seconds: float) -> bool:
        """Return whether this program got the lock, which no other program then gets for `seconds`.

        Raises:
            StoreError: the store could not be reached.
        """
        key = self._keys.singleton_lock(name)
        ms = round(seconds * 1000)
        if self._redis.call("SET", key, 1, "NX", "PX", ms) is not None:
            return True
        if (
            self._redis.call("PTTL", key) > ms
        ):  # the server's clock was set back, or others ask for longer
            self._redis.call("PEXPIRE", key, ms)
        return False
