"""The connection to Redis: one per thread for scripts, a pool for everything else.

Scripts go over a raw connection, which costs half the processor time of the client's own call. A
connection that has broken is made anew and the command is sent once more: every script gives a
repeat its first reply. This is the only place that translates the client's errors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.exceptions import NoScriptError, RedisError
from redis.sentinel import Sentinel

from runner.addresses import Sentinels, cluster, sentinels
from runner.errors import StoreError, UsageError
from runner.store.cluster import MOVED, Servers, key_of
from runner.store.keys import Keys

Argument = bytes | str | int

HOME = Keys().prefix

TIMEOUT = 5.0
"""Seconds that one command, or a connect, may take."""

ASKED_WITHIN = 1.0
"""Seconds that a Sentinel has to say where the primary is, before another one is asked."""


_AGAIN = " Nothing was written; what was asked may be asked again, and work goes on by itself when there is "
PASSING = {
    "maxmemory": _AGAIN + "room. Give the server more memory, or let runs end sooner (RUNNER_RETENTION).",
    "MISCONF": _AGAIN + "room. See the server's log: most often its disk is full.",
    "NOREPLICAS": _AGAIN + "a replica. Start it, or lower min-replicas-to-write.",
    "READONLY": _AGAIN + "a primary. Check that RUNNER_REDIS_URL names it, or its Sentinels.",
}
"""What servers refuse for a time, by a word of their message, and what to do."""
ELSEWHERE = (
    _AGAIN + "a server for these keys, or a new map of the cluster, which is asked for. See CLUSTER NODES."
)


class Link:
    """One Redis database. Thread-safe, and usable after a fork."""

    def __init__(self, url: str, home: str = HOME) -> None:
        """Take a redis-py URL (redis://, rediss://, unix://), or one of Sentinels or of a cluster.

        Nothing is connected yet. In a cluster `client` is that of the server which has the key `home`.

        Raises:
            UsageError: it is no such URL.
        """
        spread = cluster(url)
        self._home, self._servers = home, Servers(spread, OPTIONS) if spread else None
        self._client: Any = None if spread else _client(url)
        self.place = _place(url)
        self._watched = sentinels(url) is not None
        self._own = threading.local()

    @property
    def client(self) -> Any:
        """The client for everything but scripts."""
        return self.client_of(self._home)

    def client_of(self, key: str) -> Any:
        """Give the client of the server that has a key."""
        if self._servers is None:
            return self._client
        return self._servers.client(self._servers.address(key))

    def apart(self, keys: Sequence[str]) -> list[list[str]]:
        """Split keys into those that one command may name together: in a cluster each is alone."""
        return [list(keys)] if self._servers is None else [[key] for key in keys]

    def call(self, *command: Argument, then: Callable[[Any], None] | None = None) -> Any:
        """Send one command on this thread's connection and return the raw reply.

        `then` is called with the connection when the reply is there; should it break meanwhile, both are
        done again.

        Raises:
            StoreError: the store could not be reached or refused.
        """
        with self.translated():
            try:
                return self._exchange(command, then)
            except (redis.ConnectionError, OSError):
                return self._exchange(command, then)

    def _exchange(self, command: tuple[Argument, ...], then: Callable[[Any], None] | None) -> Any:
        connection = self._connection(command)
        try:
            if self._watched:
                # Only so does redis-py ask the Sentinels; it returns at once when it is connected.
                connection.connect()
            connection.send_command(*command, check_health=False)
            said = connection.read_response()
            if then is not None:
                then(connection)
            return said
        except MOVED as error:
            self._forget_servers()
            raise redis.ConnectionError(str(error)) from error
        except (redis.ResponseError, StoreError):
            raise
        except BaseException:
            # An unread reply would be taken for the next command's.
            connection.disconnect()
            raise

    def _connection(self, command: tuple[Argument, ...]) -> Any:
        """A connection that came through a fork belongs to the parent, so the child makes its own."""
        held = self._own.__dict__
        if held.get("pid") != os.getpid():
            held["connections"] = {}
            held["pid"] = os.getpid()
        servers, at = self._servers, None
        if servers is not None:
            at = servers.address(key_of(command) or self._home)
        made = held["connections"].get(at)
        if made is None:
            client = self._client if servers is None or at is None else servers.client(at)
            made = held["connections"][at] = client.connection_pool.make_connection()
        return made

    def _forget_servers(self) -> None:
        if self._servers is not None:
            self._servers.forget()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the client's errors into StoreError, but for a script that the server has forgotten."""
        try:
            yield
        except NoScriptError:
            raise
        except redis.ResponseError as error:
            if isinstance(error, MOVED):
                self._forget_servers()
            raise self._refusal(error) from error
        except (RedisError, OSError) as error:
            self._forget_servers()
            raise StoreError(
                f"The store at {self.place} could not be reached ({error}). Nothing is lost: the request "
                "may be repeated, and work goes on by itself when the store is back. Check that Redis runs "
                "and that RUNNER_REDIS_URL names it."
            ) from error

    def _refusal(self, error: redis.ResponseError) -> StoreError:
        """Say what a server that answers would not do, and whether it will when somebody makes room."""
        said = str(error)
        fix = next((fix for word, fix in PASSING.items() if word in said), "")
        fix = ELSEWHERE if isinstance(error, MOVED) else fix
        refused = StoreError(f"The store at {self.place} refused a command: {said}{fix}")
        refused.passing = bool(fix)
        return refused

    def close(self) -> None:
        """Close this thread's connection and the pool's."""
        connections = self._own.__dict__.pop("connections", {})
        self._own.__dict__.clear()
        for connection in connections.values():
            connection.disconnect()
        opened: Any = self._servers or self._client
        opened.close()


OPTIONS: dict[str, Any] = {
    "socket_timeout": TIMEOUT,
    "socket_connect_timeout": TIMEOUT,
    "health_check_interval": 30,
    "protocol": 2,
    # The pool counts a connection for every thread that ever was, and gives up at 100 by default.
    "max_connections": 2**31,
}


def _client(url: str) -> Any:
    """Any: its annotations allow for text, but without decode_responses every reply is bytes."""
    found = sentinels(url)
    if found is not None:
        return _primary(found)
    try:
        return redis.Redis.from_url(url, **OPTIONS)
    except ValueError as error:
        # Without the URL, which may hold a password.
        raise UsageError(
            f"the address of the store can't be read ({error}), so nothing was done. Give RUNNER_REDIS_URL "
            "or --redis-url a URL such as redis://localhost:6379/0 or unix:///run/redis.sock?db=0."
        ) from error


def _primary(found: Sentinels) -> Any:
    """Each connection asks the Sentinels anew which server is the primary."""
    # Any: redis-py's Sentinel has no annotations.
    watching: Any = Sentinel
    watchers = watching(
        found.hosts,
        sentinel_kwargs={
            "username": found.sentinel_username,
            "password": found.sentinel_password,
            "socket_timeout": ASKED_WITHIN,
            "socket_connect_timeout": ASKED_WITHIN,
        },
    )
    login = {"username": found.username, "password": found.password}
    return watchers.master_for(found.service, db=found.database, **login, **OPTIONS)


def _place(url: str) -> str:
    """Name a server without its password."""
    found = sentinels(url) or cluster(url)
    if found is not None:
        return found.place
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
