"""Part `fleet`: what 10,000 workers without work cost the store, simulated in virtual time.

Each worker is our own code: its stream reader, sweeper and heartbeat, the objects that a worker starts.
Only their time is virtual, and their connections are shared: a blocking read is sent without its wait, and
takes as much of the virtual time as it would have waited (to block and to wake a client costs the server
some more). So some seconds of a large fleet take as long as their commands do. What Celery itself sends
(BRPOP, events) is not in it: the part `idle` has that.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import redis

from bench.grid import Grid, number
from bench.meter import server_cpu
from runner.celery.application import make_app
from runner.celery.heartbeat import Heartbeat
from runner.celery.stream_consumer import StreamConsumer
from runner.celery.threads import Sweeper, WorkerThread
from runner.dev.embedded import embedded_store
from runner.settings import Settings
from runner.store.addresses import CLIENTS
from runner.store.redis.scripts import names, script
from runner.store.redis.workers import WorkerRegistry

THREADS: tuple[type[WorkerThread], ...] = (Heartbeat, StreamConsumer, Sweeper)
"""The threads of a worker that talk to the store without end."""

SIZES = [100, 1_000, 10_000]
SECONDS = 10
"""Virtual seconds of a round."""

ROUNDS = 1
SCHEME = "fleet"
POOLS = False
SLOW = 20_000
"""Commands whose time is looked at for each size of a fleet."""


class Clock:
    """The time of the worker whose turn it is; it stands in for the module `time`."""

    def __init__(self) -> None:
        """Begin where the real time is, so that Redis and the workers agree."""
        self.began, self.now = time.time(), 0.0

    def monotonic(self) -> float:
        """Return the seconds since the fleet's start, well above nothing."""
        return 1_000_000 + self.now

    def time(self) -> float:
        """Return the time."""
        return self.began + self.now

    def time_ns(self) -> int:
        """Return the time."""
        return int(self.time() * 1e9)


CLOCK = Clock()


class Stopping:
    """The event that a thread waits on while it has nothing to do; nobody stops it."""

    def is_set(self) -> bool:
        """Return that the worker goes on."""
        return False

    def wait(self, seconds: float) -> bool:
        """Let virtual time pass."""
        CLOCK.now += seconds
        return False


class VirtualConnection(redis.UnixDomainSocketConnection):
    """A connection on which nothing blocks: the wait of a command passes in virtual time.

    An idle server notices the end of a wait ten times a second only, so a short wait is no way out.
    """

    def can_read(self, timeout: float = 0) -> bool:
        """Wait for the reply as long as it takes: a wait in real time is none in virtual time."""
        return super().can_read(None if timeout else 0)

    def send_command(self, *command: Any, **options: Any) -> None:
        """Send a command without its wait."""
        words = list(command)
        name = _text(words[0])
        if name == "XREADGROUP":
            place = [_text(word) for word in words].index("BLOCK")
            CLOCK.now += float(words[place + 1]) / 1000
            del words[place : place + 2]
        elif name in {"BRPOP", "BLPOP"}:
            CLOCK.now += float(words.pop())
            words[0] = name[1:]
        super().send_command(*words, **options)


def _text(word: Any) -> str:
    return word.decode().upper() if isinstance(word, bytes) else str(word).upper()


class SharedPool(redis.ConnectionPool):
    """A pool that gives everybody the same connection: only one worker has its turn at a time."""

    _shared: Any = None

    def make_connection(self) -> Any:
        """Return the connection, connected at the first time."""
        if self._shared is None:
            self._shared = super().make_connection()
        return self._shared


def _clients() -> Any:
    made: dict[str, redis.Redis] = {}

    def client(url: str, **options: Any) -> redis.Redis:
        path = urlsplit(url).path
        if path not in made:
            pool = SharedPool(connection_class=VirtualConnection, path=path, **options)
            made[path] = redis.Redis(connection_pool=pool)
        return made[path]

    return client


@contextmanager
def _virtual_time() -> Iterator[None]:
    """Give our modules the virtual clock for the module `time`, and silence what they log."""
    rooms = ("runner.celery.", "runner.store.redis.")
    modules: list[Any] = [
        module for name, module in list(sys.modules.items()) if name.startswith(rooms)
    ]
    timed = [module for module in modules if getattr(module, "time", None) is time]
    logging.disable(logging.WARNING)
    for module in timed:
        module.time = CLOCK
    yield
    for module in timed:
        module.time = time
    logging.disable(logging.NOTSET)


class Fleet:
    """So many workers; each thread of each has its turn when it is due."""

    def __init__(self, url: str, size: int) -> None:
        """Start all threads within a second, as after a deploy."""
        address = f"{SCHEME}://{urlsplit(url).path}"
        app = make_app(
            Settings().model_copy(update={"redis_url": address, "broker_url": address})
        )
        self.registry = WorkerRegistry(address)
        self._ties = itertools.count()
        self._due: list[tuple[float, int, WorkerThread]] = []
        for place in range(size):
            worker = SimpleNamespace(
                app=app,
                hostname=f"worker{place}@fleet",
                pool=SimpleNamespace(terminate_job=None),
                pool_cls=Fleet,
                concurrency=100,
                task_events=False,
            )
            for kind in THREADS:
                thread = kind(worker)
                thread.stopping = Stopping()  # type: ignore[assignment]
                self._prepare(thread, worker)
                begins = CLOCK.now + random.random()  # noqa: S311 - no secret
                heapq.heappush(self._due, (begins, next(self._ties), thread))

    def _prepare(self, thread: WorkerThread, worker: Any) -> None:
        from runner.celery.engines import engine_of, settings_of  # noqa: PLC0415 - after the clock was set

        thread.engine, thread.settings = engine_of(worker.app), settings_of(worker.app)
        thread.prepare(worker)
        if isinstance(thread, Heartbeat):
            thread._tidied = True  # noqa: SLF001 - a worker's start, which reads all others, is timed apart

    def go(self, until: float) -> None:
        """Let virtual time pass up to a moment."""
        while self._due[0][0] < until:
            CLOCK.now, _, thread = heapq.heappop(self._due)
            thread.run_once()
            heapq.heappush(self._due, (CLOCK.now, next(self._ties), thread))
        CLOCK.now = until


def measure(size: int, seconds: float) -> dict[str, Any]:
    """Simulate a fleet: first until every thread has had its turns, then for so many seconds."""
    with embedded_store() as store, redis.Redis.from_url(store.url) as server:
        fleet = Fleet(store.url, size)
        fleet.go(CLOCK.now + 2)  # every thread has had its first turn
        server.config_resetstat()
        used = server_cpu(server)
        fleet.go(CLOCK.now + seconds)
        spent = server_cpu(server) - used
        calls = {name: row["calls"] for name, row in server.info("commandstats").items()}
        server.config_set("slowlog-max-len", SLOW)
        server.config_set("slowlog-log-slower-than", 0)
        fleet.go(CLOCK.now + min(seconds, SLOW / 2 / size))
        fleet.registry.tidy()  # once an hour a worker that starts does this for all
        costs = _costs(server)
    sent = {
        name.removeprefix("cmdstat_"): count / seconds / size for name, count in calls.items()
    }
    return {
        "commands": {
            name: count
            for name, count in sent.items()
            if name not in {"info", "config|resetstat"}
        },
        "cpu": spent / seconds * 100,
        "microseconds": spent / seconds / size * 1e6,
        "costs": costs,
    }


def _costs(server: redis.Redis) -> dict[str, float]:
    """Return the server's middle microseconds of each command, scripts by their names."""
    scripts = {script(name).sha: name for name in names()}
    spent: dict[str, list[int]] = {}
    for entry in server.slowlog_get(SLOW):
        command = entry["command"].decode(errors="replace").split()
        name = (
            scripts.get(command[1], "")
            if command[0].upper() == "EVALSHA"
            else command[0].upper()
        )
        spent.setdefault(name, []).append(entry["duration"])
    own = {"", "CONFIG", "EVAL", "INFO", "SLOWLOG", "XGROUP"}
    return {name: median(spent[name]) for name in sorted(spent.keys() - own)}


def run(_: str, rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Simulate a fleet of each size, for ten seconds in each round."""
    CLIENTS[SCHEME] = _clients()
    with _virtual_time():
        return {str(size): measure(size, SECONDS * rounds) for size in sizes or SIZES}


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show the whole fleet, and what each command takes as the fleet grows."""
    fleets = [
        [
            f"{int(size):,}",
            f"{sum(found['commands'].values()):.2f}",
            number(sum(found["commands"].values()) * int(size)),
            f"{found['cpu']:.1f}%",
            number(found["microseconds"]),
        ]
        for size, found in figures.items()
    ]
    kinds = sorted({name for found in figures.values() for name in found["costs"]})
    costs = [
        [name, *(number(found["costs"].get(name, 0)) for found in figures.values())]
        for name in kinds
    ]
    last = figures[list(figures)[-1]]["commands"]
    note = (
        "Of the largest fleet, calls a second and worker, scripts' own included: "
        + ", ".join(f"{name} {count:.2f}" for name, count in sorted(last.items()))
    )
    columns = ["workers", "calls/s each", "calls/s", "Redis CPU, of a core", "us/s each"]
    return [
        Grid("A fleet without work (our own threads, simulated)", columns, fleets, f"{note}."),
        Grid(
            "What a command takes as the fleet grows, in us",
            ["workers", *(f"{int(size):,}" for size in figures)],
            costs,
        ),
    ]
