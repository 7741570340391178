"""Redis Cluster: which server has a key, and a client for each server.

All keys of a partition share a slot, so one server has them all and nothing here spreads a request
over several. The map of slots is asked for when it is missing and thrown away when a server says it
is wrong, or can't be reached; the request that found out is repeated by whoever repeats requests.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from runner.addresses import Cluster

Address = tuple[str, int]

MOVED = (AskError, ClusterDownError, MovedError, TryAgainError)
"""What servers say of a slot that is elsewhere, on its way there, or nowhere."""

KEYLESS = frozenset({"CONFIG", "INFO", "PING", "TIME"})
SCRIPTS = frozenset({"EVAL", "EVALSHA"})


def key_of(command: Sequence[Any]) -> str | bytes | None:
    """Find the key that says which server a command goes to; None for one that any server can answer."""
    if command[0] in KEYLESS:
        return None
    key: str | bytes = command[3] if command[0] in SCRIPTS else command[1]
    return key


class Servers:
    """The servers of a cluster, by what they have. Thread-safe."""

    def __init__(self, cluster: Cluster, options: Mapping[str, Any]) -> None:
        """`options` are those of every client; nothing is connected yet."""
        login = {"username": cluster.username, "password": cluster.password, "ssl": cluster.tls}
        self._hosts, self._options = cluster.hosts, {**login, **options}
        self._lock = threading.Lock()
        self._slots: dict[int, Address] = {}
        self._clients: dict[Address, Any] = {}

    def address(self, key: str | bytes) -> Address:
        """Say which server has a key.

        Raises:
            redis.ConnectionError: no server of the cluster can be asked, or none has it.
        """
        slots = self._slots or self._learn()
        found = slots.get(key_slot(key.encode() if isinstance(key, str) else key))
        if found is None:
            self.forget()
            raise redis.ConnectionError("no server of the cluster has the slot")
        return found

    def client(self, address: Address) -> Any:
        """Give the client of one server."""
        with self._lock:
            if address not in self._clients:
                self._clients[address] = redis.Redis(host=address[0], port=address[1], **self._options)
            return self._clients[address]

    def forget(self) -> None:
        """Ask anew before the next request: the map was wrong, or a server is gone."""
        self._slots = {}

    def close(self) -> None:
        """Close the connections at rest."""
        for client in list(self._clients.values()):
            client.close()

    def _learn(self) -> dict[int, Address]:
        """Ask the servers that are known, those of the URL last, until one tells."""
        failed: Exception | None = None
        for address in dict.fromkeys([*self._clients, *self._hosts]):
            try:
                told = self.client(address).execute_command("CLUSTER", "SLOTS")
            except redis.RedisError as error:
                failed = error
                continue
            self._slots = _read(told, address)
            return self._slots
        raise redis.ConnectionError(f"no server of the cluster tells who has what ({failed})")


def _read(told: Sequence[Sequence[Any]], asked: Address) -> dict[int, Address]:
    """Read who has which slots; a server that doesn't know its own name is the one that was asked."""
    found: dict[int, Address] = {}
    for first, last, (host, port, *_), *_ in told:
        address = ((host or b"").decode() or asked[0], int(port))
        found.update(dict.fromkeys(range(first, last + 1), address))
    return found
