"""Turns: what one worker does for all of them, such as a sweep.

Each worker asks when it would do it for itself; the first one does it, and for a while no other does. So
the work of a large fleet is that of a small one, and a single worker does it as often as it asks.
"""

from __future__ import annotations

from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import NAMESPACE, Keys


class Turns:
    """The turns of one namespace in a database."""

    def __init__(self, place: str | RedisConnection, namespace: str = NAMESPACE) -> None:
        """Take a database, by its redis-py URL or as it is connected; nothing is connected yet."""
        self._redis, self._keys = connected(place), Keys(namespace)

    def take(self, name: str, seconds: float) -> bool:
        """Return whether the turn is this program's; then it is no other program's for so many seconds.

        Raises:
            StoreError: the store could not be reached.
        """
        return (
            self._redis.call("SET", self._keys.turn(name), 1, "NX", "PX", round(seconds * 1000))
            is not None
        )
