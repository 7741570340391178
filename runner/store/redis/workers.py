"""The workers of a store: each writes what it is and serves, again and again while it lives.

For operators only: nothing is scheduled by it. Every method raises StoreError when Redis
can't be reached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from runner.store.redis.connection import RedisConnection, connected
from runner.store.redis.keys import NAMESPACE, Keys
from runner.store.redis.scripts import run_on

EVERY = 10.0
"""Seconds between two signs of life of a worker."""

SILENT = 3 * EVERY
"""Seconds without a sign of life after which a worker counts as gone."""

HANGS = 10.0
"""Seconds after which a worker that does not stop hangs: its nodes have been returned to the queue."""

FORGOTTEN = 86_400.0
"""Seconds after which a worker that is gone is no longer listed."""


KEEPER = "keeper"
"""The pool of a process that has none."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker as it described itself; `graphs` are fingerprints by name.

    `seen` is in ms of the store's clock, `ahead` how many ms the worker's own clock is before it.
    `stopping` are the seconds since it was asked to stop, or 0; `grace` those that its nodes have then.
    `wants` are the queues of its graphs, `queues` those that it serves. `accepts` are the content
    types of messages that it reads; `visibility` is in seconds, 0 where the broker has no such thing.
    `executing` has how many nodes of each queue run on it, `longest` for how many seconds the first of them.
    """

    name: str
    pid: int = 0
    pool: str = ""
    slots: int = 0
    busy: int = 0
    executing: dict[str, int] = field(default_factory=dict)
    longest: float = 0.0
    queues: list[str] = field(default_factory=list)
    wants: list[str] = field(default_factory=list)
    graphs: dict[str, str] = field(default_factory=dict)
    accepts: list[str] = field(default_factory=list)
    events: bool = True
    lease: float = 0.0
    sweep_interval: float = 0.0
    visibility: float = 0.0
    version: str = ""
    started: int = 0
    seen: int = 0
    ahead: int = 0
    stopping: float = 0.0
    grace: float = 0.0

    @property
    def is_keeper(self) -> bool:
        """Whether it is a keeper, which runs no nodes."""
        return self.pool == KEEPER

    def alive(self, now: int) -> bool:
        """Return whether it gave a sign of life lately; `now` is in ms of the store's clock."""
        return now - self.seen < SILENT * 1000

    def state_at(self, now: int) -> str:
        """Return "alive", "stopping", "hangs" (it should have stopped by now) or "gone" (it is silent)."""
        if not self.alive(now):
            return "gone"
        if not self.stopping:
            return "alive"
        return "hangs" if self.stopping > self.grace + HANGS else "stopping"


PAGE = 200
"""Workers that are read at once: however many there are, no command takes long."""


class WorkerRegistry:
    """The list of workers of one namespace in a database."""

    def __init__(self, place: str | RedisConnection, namespace: str = NAMESPACE) -> None:
        """Take a database, by its redis-py URL or as it is connected; nothing is connected yet."""
        self._redis, self._key = connected(place), Keys(namespace).workers

    def now(self) -> int:
        """Return the store's time in ms."""
        seconds, micros = self._redis.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def enter(self, worker: Mapping[str, Any], clock: int) -> bool:
        """Write a worker's sign of life; return whether it was not listed. `clock` is its own time in ms."""
        field = f"{worker['name']}:{worker['pid']}"
        document = json.dumps({"v": 1, **worker})
        return run_on(self._redis, "enter", (self._key,), field, document, clock) == [b"new"]

    def leave(self, name: str, pid: int) -> None:
        """Remove a worker."""
        self._redis.call("HDEL", self._key, f"{name}:{pid}")

    def all(self) -> list[Worker]:
        """List the workers by name, with those that died within the last day."""
        cursor: bytes = b"0"
        workers: dict[bytes, Worker] = {}
        while True:
            cursor, entries = self._redis.call("HSCAN", self._key, cursor, "COUNT", PAGE)
            # One that is entered meanwhile may come twice.
            workers |= dict(zip(entries[::2], map(_read, entries[1::2]), strict=True))
            if int(cursor) == 0:
                return sorted(workers.values(), key=lambda worker: (worker.name, worker.pid))

    def tidy(self) -> None:
        """Remove the workers that have been gone for a day."""
        now = self.now()
        for worker in self.all():
            if now - worker.seen > FORGOTTEN * 1000:
                self.leave(worker.name, worker.pid)

    def close(self) -> None:
        self._redis.close()


def described(worker: Worker) -> dict[str, Any]:
    """Return what a worker says of itself: all but what the store adds."""
    return {name: value for name, value in asdict(worker).items() if name not in {"seen", "ahead"}}


def _read(value: bytes) -> Worker:
    """A worker of a later release may write more fields, one of an earlier release fewer."""
    values = json.loads(value)
    return Worker(
        **{part.name: values[part.name] for part in fields(Worker) if part.name in values}
    )
