"""The connection to Redis: one per thread for scripts, a pool for everything else.

Scripts go over a raw connection, which costs half the processor time of the client's call. A broken
connection is replaced and the command is sent once more: every script gives a repeat its first reply.
This is the only place that translates the client's errors.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import urlsplit

import hiredis
import redis
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisError,
    TryAgainError,
)
from redis.sentinel import MasterNotFoundError, Sentinel

from runner.errors import StoreError, UsageError
from runner.store.addresses import (
    CLIENTS,
    Cluster,
    Sentinels,
    canonical,
    cluster,
    partition_addresses,
    sentinels,
)
from runner.store.redis.keys import Keys

# Redis Cluster: the server of each key, and a client for each server.
#
# All keys of a partition share a slot, so one server has them all and nothing here spreads a request
# over several. The map of slots is read when it is missing, and dropped when a server says that it is
# wrong or can't be reached; the failed request is repeated like any other.


Address = tuple[str, int]

MOVED = (AskError, ClusterDownError, MovedError, TryAgainError)
"""The errors for a slot that another server has, that is being moved, or that no server has."""

NO_LOGIN = re.compile("unauthenticated (multi)?bulk")
"""Redis' refusal of a long command without a login."""

KEYLESS = frozenset({"CONFIG", "INFO", "PING", "TIME"})

KEY_AT = {"EVAL": 3, "EVALSHA": 3, "XGROUP": 2, "XINFO": 2}
"""The position of a command's first key, if it isn't the first argument."""


def key_of(command: Sequence[Any]) -> str | bytes | None:
    """Return the key that decides which server a command goes to; None if any server can answer."""
    if command[0] in KEYLESS:
        return None
    reads = command[0] in {"XREAD", "XREADGROUP"}
    at = command.index("STREAMS") + 1 if reads else KEY_AT.get(command[0], 1)
    key: str | bytes = command[at]
    return key


class Servers:
    """The servers of a cluster, by their slots. Thread-safe."""

    def __init__(self, cluster: Cluster, options: Mapping[str, Any]) -> None:
        """Take the cluster, and the options for every client; nothing is connected yet."""
        login = {"username": cluster.username, "password": cluster.password, "ssl": cluster.tls}
        self._hosts = cluster.hosts
        self._options = {**login, **options}
        self._lock = threading.Lock()
        self._slots: dict[int, Address] = {}
        self._clients: dict[Address, Any] = {}

    def address(self, key: str | bytes) -> Address:
        """Return the server that has a key.

        Raises:
            redis.ConnectionError: no server of the cluster can be reached, or none has the key's slot.
        """
        slots = self._slots or self._learn()
        address = slots.get(key_slot(key.encode() if isinstance(key, str) else key))
        if address is None:
            self.forget()
            raise redis.ConnectionError("no server of the cluster has the slot")
        return address

    def homes(self, first: str) -> dict[Address, str]:
        """Return a key on each server that has slots; the server of the key `first` comes first."""
        homes = {self.address(first): first}
        servers = set(self._slots.values())
        for number in itertools.count():
            if servers <= homes.keys():
                break
            homes.setdefault(self.address(f"{{{number}}}"), f"{{{number}}}")
        return homes

    def client(self, address: Address) -> Any:
        with self._lock:
            if address not in self._clients:
                self._clients[address] = redis.Redis(
                    host=address[0], port=address[1], **self._options
                )
            return self._clients[address]

    def forget(self) -> None:
        """Drop the map of slots, so the next request reads it: it was wrong, or a server is gone."""
        self._slots = {}

    def clients(self) -> list[Any]:
        return list(self._clients.values())

    def close(self) -> None:
        for client in self.clients():
            client.close()

    def _learn(self) -> dict[int, Address]:
        """Ask the known servers for the map of slots, the URL's servers last, until one answers."""
        failed: Exception | None = None
        for address in dict.fromkeys([*self._clients, *self._hosts]):
            try:
                slots = self.client(address).execute_command("CLUSTER", "SLOTS")
            except redis.RedisError as error:
                failed = error
                continue
            self._slots = _slots(slots, address)
            return self._slots
        raise redis.ConnectionError(
            f"no server of the cluster returned the map of slots ({failed})"
        )


def _slots(ranges: Sequence[Sequence[Any]], asked: Address) -> dict[int, Address]:
    """Read the server of each slot; a server that doesn't know its own name is the one that was asked."""
    servers: dict[int, Address] = {}
    for first, last, (host, port, *_), *_ in ranges:
        address = ((host or b"").decode() or asked[0], int(port))
        servers.update(dict.fromkeys(range(first, last + 1), address))
    return servers


Argument = bytes | str | int

HOME = Keys().prefix

TIMEOUT = 5.0
"""Seconds that a command or a connect may take."""

NOTICED_WITHIN = 0.5
"""Seconds within which a thread that waits for the server notices that it must stop."""

KERNEL_WAITS = sys.platform == "linux" and sys.maxsize > 2**32
"""True if a socket's time limits have the form set below; other platforms have another form."""

ASKED_WITHIN = 1.0
"""Seconds that a Sentinel has to name the primary before another one is asked."""

_AGAIN = " Nothing was written. The request may be repeated, and work continues by itself when there is "

READ_ONLY = "read only replica"
"""In a replica's refusal; if a script met it on Redis 6.2, the error is not a ReadOnlyError."""

PASSING = {
    "maxmemory": _AGAIN
    + "room. Give the server more memory, or delete ended runs sooner (RUNNER_RETENTION).",
    "MISCONF": _AGAIN + "room. See the server's log: most often its disk is full.",
    "NOREPLICAS": _AGAIN + "a replica. Start it, or lower min-replicas-to-write.",
    READ_ONLY: _AGAIN + "a primary. Check that RUNNER_REDIS_URL names it, or its Sentinels.",
}
"""Advice for temporary refusals, by a word of the server's message."""

ELSEWHERE = (
    _AGAIN
    + "a server for these keys, or a new map of the cluster, which is being read. See CLUSTER NODES."
)


class RedisConnection:
    """One Redis database. Thread-safe, and usable after a fork."""

    def __init__(
        self, url: str, home: str = HOME, check: Callable[[RedisConnection], None] | None = None
    ) -> None:
        """Take a redis-py URL (redis://, rediss://, unix://), or the URL of Sentinels or a cluster.

        Nothing is connected yet. In a cluster, `client` is the client of the server that has the key `home`.
        `check` is called before each command until it has once returned.

        Raises:
            UsageError: the URL can't be read.
        """
        try:
            url = canonical(url)
            spread = cluster(url)
            self._home = home
            self._servers = Servers(spread, OPTIONS) if spread else None
            self._client: Any = None if spread else _client(url)
        except ValueError as error:
            # The message leaves out the URL, which may hold a password.
            raise UsageError(
                f"the address of the store can't be read ({error}), so nothing was done. Give "
                "RUNNER_REDIS_URL or --redis-url a URL such as redis://localhost:6379/0 or unix:///run/redis.sock?db=0."
            ) from error
        self.place = _place(url)
        self._watched = sentinels(url) is not None
        self._own = threading.local()
        self._check = check
        # Each connect replaces this object: the server may have lost writes that it had acknowledged.
        self.connect_mark = object()

    def homes(self) -> dict[str, str]:
        """Return each server's name, and a key to use as `home` for commands to it without a key.

        Raises:
            StoreError: no server of the cluster could be reached.
        """
        if self._servers is None:
            return {self.place: self._home}
        with self.translated():
            return {
                f"{host}:{port}": key
                for (host, port), key in self._servers.homes(self._home).items()
            }

    @property
    def client(self) -> Any:
        """The client for everything but scripts."""
        return self.client_of(self._home)

    def client_of(self, key: str) -> Any:
        self._checked()
        if self._servers is None:
            return self._client
        return self._servers.client(self._servers.address(key))

    def _checked(self) -> None:
        check = self._check
        if check is not None and not self._own.__dict__.get("checks"):
            self._own.checks = True
            try:
                check(self)
            finally:
                self._own.__dict__.pop("checks", None)
            self._check = None

    def now(self) -> int:
        """Return the server's time in ms."""
        seconds, micros = self.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def apart(self, keys: Sequence[str]) -> list[list[str]]:
        """Group keys that one command may name together; in a cluster each key is alone."""
        return [list(keys)] if self._servers is None else [[key] for key in keys]

    def call_blocking(
        self, seconds: float, is_stopping: Callable[[], bool], *command: Argument
    ) -> Any:
        """Send a command that the server answers within `seconds`, or with None.

        None is also returned if `is_stopping` becomes true; the connection is closed, so the server notices.

        Raises:
            StoreError: the store could not be reached or refused.
        """

        def exchange(connection: Any) -> Any:
            ends = time.monotonic() + seconds + TIMEOUT
            connection.send_command(*command, check_health=False)
            while not connection.can_read(timeout=NOTICED_WITHIN):
                if is_stopping():
                    connection.disconnect()
                    return None
                if time.monotonic() > ends:
                    raise redis.TimeoutError(f"no answer in {seconds + TIMEOUT:g} s")
            return connection.read_response()

        return self.call(*command, exchange=exchange)

    def call_all(self, *commands: Sequence[Argument]) -> list[Any]:
        """Send any number of commands for keys of one server at once, and return their replies.

        Raises:
            StoreError: the store could not be reached, or refused a command.
        """

        def exchange(connection: Any) -> list[Any]:
            packed = b"".join(map(hiredis.pack_command, commands))  # type: ignore[arg-type]  # as below
            connection.send_packed_command([packed], check_health=False)
            return [_reply(connection) for _ in commands]

        replies: list[Any] = self.call(*commands[0], exchange=exchange) if commands else []
        with self.translated():
            for reply in replies:
                if isinstance(reply, redis.ResponseError):
                    raise reply
        return replies

    def call(
        self,
        *command: Argument,
        then: Callable[[Any, Any], None] | None = None,
        exchange: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Send one command on this thread's connection and return the raw reply.

        `then` is called with the connection and the reply; if the connection breaks meanwhile, the command
        and `then` are repeated. If given, `exchange` is called with the connection to send and to read.

        Raises:
            StoreError: the store could not be reached or refused.
        """
        try:
            repeated = False
            while True:
                connection = None
                try:
                    connection = self._connection(command)
                    if self._watched:
                        # Only connect() asks the Sentinels; it returns at once if already connected.
                        connection.connect()
                    if exchange is None:
                        # Like `send_command`, which would copy the arguments first.
                        packed = [hiredis.pack_command(command)]  # type: ignore[arg-type]  # its stub wants one
                        connection.send_packed_command(packed, check_health=False)
                        reply = connection.read_response()
                    else:
                        reply = exchange(connection)
                    if then is not None:
                        then(connection, reply)
                    return reply
                except MOVED as error:
                    self._forget_servers()
                    if repeated:
                        raise redis.ConnectionError(str(error)) from error
                except (redis.ResponseError, StoreError):
                    raise
                except BaseException as error:
                    if connection is not None:
                        # An unread reply would be taken for the next command's.
                        connection.disconnect()
                    if isinstance(error.__context__, BlockingIOError):
                        raise redis.TimeoutError(f"no reply within {TIMEOUT:g} s") from error
                    if repeated or not isinstance(error, (redis.ConnectionError, OSError)):
                        raise
                repeated = True
        except (RedisError, OSError) as error:
            self._raise(error)

    def _connection(self, command: tuple[Argument, ...]) -> Any:
        """Return this thread's connection; a fork's child makes a new one, since the old is the parent's."""
        if self._check is not None:
            self._checked()
        held = self._own.__dict__
        if held.get("pid") != os.getpid():
            held.update(connections={}, pid=os.getpid())
        servers = self._servers
        address = None
        if servers is not None:
            address = servers.address(key_of(command) or self._home)
        made = held["connections"].get(address)
        if made is None:
            client = (
                self._client if servers is None or address is None else servers.client(address)
            )
            made = held["connections"][address] = client.connection_pool.make_connection()
            made.register_connect_callback(self._on_connect)
        return made

    def _on_connect(self, connection: Any) -> None:
        """Note a new connection, and let the kernel limit its waits, if it can.

        If Python limits the time itself, it waits and reads in two system calls and hands over the
        interpreter lock in both: a node then costs four more system calls and as many hand-overs.
        """
        self.connect_mark = object()
        opened = connection._sock  # noqa: SLF001 - no public way
        if KERNEL_WAITS and type(opened).__module__ == "socket":  # neither TLS nor gevent
            limit = struct.pack("ll", int(TIMEOUT), 0)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            opened.settimeout(None)

    def _forget_servers(self) -> None:
        if self._servers is not None:
            self._servers.forget()

    def texts(self, key: str) -> dict[str, str]:
        """Read a hash of texts."""
        fields = mapping_of(self.call("HGETALL", key))
        return {name.decode(): value.decode() for name, value in fields.items()}

    def pipeline(self) -> Any:
        """Return a pipeline, which sends commands together and not as a transaction."""
        return self.client.pipeline(transaction=False)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the client's errors into StoreError, except the one for a forgotten script."""
        try:
            yield
        except (RedisError, OSError) as error:
            self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        if isinstance(error, NoScriptError):
            raise error
        if isinstance(error, redis.AuthenticationError) or NO_LOGIN.search(str(error)):
            raise StoreError(
                f"The store at {self.place} refused the login ({error}). Nothing was done, and "
                "nothing will be before user and password in RUNNER_REDIS_URL are right."
            ) from error
        if isinstance(error, redis.ResponseError):
            if isinstance(error, MOVED):
                self._forget_servers()
            elif READ_ONLY in str(error):
                self.release()  # the server's name may lead to another one by now
            raise self._refusal(error) from error
        self._forget_servers()
        raise StoreError(
            f"The store at {self.place} could not be reached ({error}). Nothing is lost, and work "
            "continues by itself when the store is back. The request may have been done: repeat a start "
            "with the same idempotency_key. Check that Redis runs and that RUNNER_REDIS_URL names it."
        ) from error

    def _refusal(self, error: redis.ResponseError) -> StoreError:
        """Make the error for a refused command, with `passing` set if the server will take it later."""
        fixes = (fix for word, fix in PASSING.items() if word in str(error))
        fix = ELSEWHERE if isinstance(error, MOVED) else next(fixes, "")
        refused = StoreError(f"The store at {self.place} refused a command: {error}{fix}")
        refused.passing = bool(fix)
        return refused

    def release(self) -> None:
        """Close this thread's connections, and unused ones; the next command connects again."""
        connections = self._own.__dict__.pop("connections", {})
        self._own.__dict__.clear()
        for connection in connections.values():
            connection.disconnect()
        for client in [self._client] if self._servers is None else self._servers.clients():
            client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        self.release()
        opened: Any = self._servers or self._client
        opened.close()


def pairs(reply: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Return a reply's pairs: each name or member is followed by its value."""
    return zip(reply[::2], reply[1::2], strict=True)


def mapping_of(reply: Sequence[Any]) -> dict[Any, Any]:
    """Return a mapping of the pairs of a reply."""
    return dict(pairs(reply))


def connected(place: str | RedisConnection, home: str = HOME) -> RedisConnection:
    """Return the given connection, or open one to a URL; see RedisConnection."""
    return RedisConnection(place, home) if isinstance(place, str) else place


def partitions_at(
    urls: str, namespace: str, partitions: int
) -> list[tuple[RedisConnection, Keys]]:
    """Return a connection and the keys of each partition; `urls` are as in RUNNER_REDIS_URL."""
    places = partition_addresses(urls, partitions)
    keys = [Keys(namespace, place.partition) for place in places]
    return [
        (RedisConnection(place.url, names.prefix), names)
        for place, names in zip(places, keys, strict=True)
    ]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as refusal:
        if NO_LOGIN.search(str(refusal)):  # the server has closed the connection
            raise
        return refusal  # later replies must still be read


OPTIONS: dict[str, Any] = {
    "socket_timeout": TIMEOUT,
    "socket_connect_timeout": TIMEOUT,
    "health_check_interval": 30,
    "protocol": 2,
    # The pool counts a connection for every past thread, and gives up at 100 by default.
    "max_connections": 2**31,
}


def _client(url: str) -> Any:
    """Open a client. Any: its annotations allow text, but without decode_responses replies are bytes."""
    service = sentinels(url)
    if service is not None:
        return _primary(service)
    make = CLIENTS.get(urlsplit(url).scheme)
    return make(url, **OPTIONS) if make else redis.Redis.from_url(url, **OPTIONS)


class Watchers(Sentinel):
    """Sentinels whose errors say why each named no primary: redis-py's errors give no reasons."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of a service's primary, from the first Sentinel that knows it.

        Raises:
            MasterNotFoundError: no Sentinel knows it.
        """
        base: Any = self  # redis-py's Sentinel has no annotations
        reasons = []
        for number, watcher in enumerate(base.sentinels):
            try:
                state = watcher.sentinel_masters().get(service_name)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                reasons.append(str(error))
                continue
            if state and base.check_master_state(state, service_name):
                if number:  # ask it first the next time
                    base.sentinels.insert(0, base.sentinels.pop(number))
                return state["ip"], state["port"]
            reasons.append("a Sentinel that was asked knows none")
        raise MasterNotFoundError(
            f"no Sentinel names the primary of {service_name!r}: {'; '.join(reasons)}"
        )


def _primary(service: Sentinels) -> Any:
    """Return a client whose new connections each ask the Sentinels for the primary."""
    # Any: redis-py's Sentinel has no annotations.
    watching: Any = Watchers
    watchers = watching(
        service.hosts,
        sentinel_kwargs={
            **service.login_of_sentinels,
            "socket_timeout": ASKED_WITHIN,
            "socket_connect_timeout": ASKED_WITHIN,
        },
    )
    login = {
        "username": service.username,
        "password": service.password,
        "ssl": bool(service.tls),
    }
    return watchers.master_for(
        service.service, db=service.database, **login, **service.tls, **OPTIONS
    )


def _place(url: str) -> str:
    """Name a server without its password."""
    servers = sentinels(url) or cluster(url)
    if servers is not None:
        return servers.place
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
