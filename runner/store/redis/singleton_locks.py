"""Singleton locks: work that one worker does for all of them, such as a sweep.

Each worker asks when it would do the work for itself; the first one does it, and for a while no other does.
So the work of a large fleet is that of a small one, and a single worker does it as often as it asks.
"""

from __future__ import annotations

from runner.store.addresses import NAMESPACE
from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import Keys


class SingletonLocks:
    """The singleton locks of one namespace in a database."""

    def __init__(self, database: str | RedisConnection, namespace: str = NAMESPACE) -> None:
        """Take a database, by its redis-py URL or as it is connected; nothing is connected yet."""
        self._redis, self._keys = connected(database), Keys(namespace)

    def acquire(self, name: str, seconds: float) -> bool:
        """Return whether this program has the lock; then no other gets it for so many seconds.

        Raises:
            StoreError: the store could not be reached.
        """
        key = self._keys.singleton_lock(name)
        return self._redis.call("SET", key, 1, "NX", "PX", round(seconds * 1000)) is not None
