"""What the soak does to a site: one fault after another, drawn by a seed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import redis

from runner.dev.embedded import EmbeddedStore
from tests.celery.workers import Site, Worker

GRAPHS = "tests.chaos.soak_graphs"
FREEZES = (0.5, 1.0, 4.0)
"""Seconds that a worker is frozen: less than a lease, and more."""


def children(worker: Worker) -> list[int]:
    """The processes of a worker's pool that run nodes."""
    pids: list[str] = []
    with suppress(OSError):
        named = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        pids = [
            child
            for child in named
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
    return [int(child) for child in pids]


class Faults:
    """Does one fault at a time, and keeps the workers of the site at their number.

    The first worker is never ended: its memory is what the soak looks at.
    """

    def __init__(
        self, site: Site, store: EmbeddedStore, rng: random.Random, settings: dict[str, str]
    ) -> None:
        self.site, self.store, self.rng = site, store, rng
        self.settings = {"RUNNER_GRAPHS": GRAPHS, "RUNNER_SHUTDOWN_GRACE": "3", **settings}
        self.done: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._told: set[int] = set()
        self._frozen: list[tuple[float, int]] = []
        self.pools = ("threads", "threads", "prefork")
        for pool in self.pools:
            self._boot(pool)
        self._all = [
            (self.kill_worker, 3),
            (self.kill_child, 2),
            (self.freeze_worker, 3),
            (self.drop_messages, 3),
            (self.double_messages, 3),
            (self.flush_scripts, 2),
            (self.restart_store, 2),
            (self.cut_connections, 3),
            (self.stop_worker, 2),
        ]

    def _boot(self, pool: str) -> None:
        self.site.add(pool, 2 if pool == "prefork" else 8, **self.settings)

    @property
    def survivor(self) -> Worker:
        """The worker that is never ended."""
        return self.site.workers[0]

    def strike(self) -> None:
        """Do a fault, drawn by weight."""
        faults, weights = zip(*self._all, strict=True)
        (fault,) = self.rng.choices(faults, weights)
        with suppress(redis.RedisError, OSError):
            fault()
            self.done[fault.__name__] += 1

    def mend(self) -> None:
        """Thaw who has been frozen long enough, and replace workers that have ended."""
        now = time.monotonic()
        for when, pid in [entry for entry in self._frozen if entry[0] <= now]:
            self._frozen.remove((when, pid))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for place, worker in enumerate(self.site.workers):
            if not worker.alive:
                self.ended["as told" if worker.pid in self._told else "by itself"] += 1
                worker.end()
                self._boot(self.pools[place])
                self.site.workers[place] = self.site.workers.pop()

    def heal(self) -> None:
        """No more faults: everybody is thawed."""
        self._frozen = [(0.0, pid) for _, pid in self._frozen]
        self.mend()

    def _victim(self) -> Worker:
        worker = self.rng.choice(self.site.workers[1:])
        self._told.add(worker.pid)
        return worker

    def kill_worker(self) -> None:
        self._victim().kill()

    def kill_child(self) -> None:
        pids = children(self.site.workers[-1])
        if pids:
            os.kill(self.rng.choice(pids), signal.SIGKILL)

    def freeze_worker(self) -> None:
        worker = self.rng.choice(self.site.workers)
        os.kill(worker.pid, signal.SIGSTOP)
        self._frozen.append((time.monotonic() + self.rng.choice(FREEZES), worker.pid))

    def stop_worker(self) -> None:
        os.kill(
            self._victim().pid,
            self.rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGQUIT]),
        )

    def _queues(self) -> list[bytes]:
        keys = self.site.redis.scan_iter("runner*", _type="list")
        return [key for key in keys if not key.startswith(b"runner:")]

    def drop_messages(self) -> None:
        for key in self._queues():
            self.site.redis.delete(key)

    def double_messages(self) -> None:
        for key in self._queues():
            messages = self.site.redis.lrange(key, 0, -1)
            if messages:
                self.site.redis.lpush(key, *messages, *messages)

    def flush_scripts(self) -> None:
        self.site.redis.script_flush()

    def restart_store(self) -> None:
        self.store.kill()
        self.store.restart()

    def cut_connections(self) -> None:
        self.site.redis.client_kill_filter(_type="normal", skipme=True)
