"""The workers of a store: each repeatedly writes a description of itself while it lives.

The list is for operators only; scheduling doesn't use it. Every method raises StoreError when Redis
can't be reached.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from runner.records.codec import JSONMapping, JSONObject, without
from runner.records.workers import Worker
from runner.store.addresses import NAMESPACE
from runner.store.redis.connection import RedisConnection, connected, mapping_of
from runner.store.redis.keys import Keys
from runner.store.redis.scripts import run_on

FORGOTTEN = 86_400.0
"""Seconds after which a worker that is gone is no longer listed."""

PAGE = 200
"""Workers that are read at once, so that no command takes long."""


class WorkerRegistry:
    """The list of workers of one namespace in a database."""

    def __init__(
        self,
        place: str | RedisConnection,
        namespace: str = NAMESPACE,
        *,
        server_processes: bool = False,
    ) -> None:
        """Take a database's redis-py URL or connection; nothing is connected yet.

        With `server_processes` it lists the processes of `runner server` instead.
        """
        keys = Keys(namespace)
        self._redis = connected(place)
        self._key = keys.server_processes if server_processes else keys.workers

    def now(self) -> int:
        """Return the store's time in ms."""
        return self._redis.now()

    def enter(self, worker: JSONMapping, clock: int) -> bool:
        """Write a worker's sign of life; return whether the worker is new. `clock` is its own time in ms."""
        document = json.dumps({"v": 1, **worker})
        keys = (self._key,)
        return run_on(self._redis, "enter", keys, _field(worker), document, clock) == [b"new"]

    def leave(self, worker: JSONMapping) -> None:
        """Remove a worker."""
        self._redis.call("HDEL", self._key, _field(worker))

    def all(self) -> list[Worker]:
        """List the workers by name, including any that died within the last day."""
        return sorted(self._all().values(), key=lambda worker: (worker.name, worker.pid))

    def _all(self) -> dict[bytes, Worker]:
        cursor: bytes = b"0"
        workers: dict[bytes, Worker] = {}
        while True:
            cursor, entries = self._redis.call("HSCAN", self._key, cursor, "COUNT", PAGE)
            # A worker that is entered meanwhile may come twice.
            workers |= {name: _read(text) for name, text in mapping_of(entries).items()}
            if int(cursor) == 0:
                return workers

    def tidy(self) -> None:
        """Remove workers that have been gone for a day, or whose container has started again."""
        now = self.now()
        workers = self._all()
        alive = {(worker.name, worker.pid) for worker in workers.values() if worker.alive(now)}
        for field, worker in workers.items():
            is_replaced = not worker.alive(now) and (worker.name, worker.pid) in alive
            if is_replaced or now - worker.seen > FORGOTTEN * 1000:
                self._redis.call("HDEL", self._key, field)

    def close(self) -> None:
        self._redis.close()


def _field(worker: JSONMapping) -> str:
    # In containers, workers of one name may also have the same pid.
    return f"{worker['name']}:{worker['pid']}:{worker['started']}"


def described(worker: Worker) -> JSONObject:
    """Return a worker's own description, without the fields that the store adds."""
    return without(asdict(worker), "seen", "ahead")


def _read(value: bytes) -> Worker:
    """Read a worker; later releases may write more fields, earlier ones fewer."""
    values = json.loads(value)
    return Worker(
        **{part.name: values[part.name] for part in fields(Worker) if part.name in values}
    )
