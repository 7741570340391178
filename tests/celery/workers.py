"""Real worker processes for tests: started together, killed at will, gone with the session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis
from celery import Celery
from celery.app.control import Control
from kombu import pools

from runner import Client
from runner.definition.registry import Registry
from runner.dev.supervised_process import SupervisedProcess
from runner.settings import as_broker
from runner.store.redis.store import RedisStore
from tests.celery.warm_process import ForkedProcess
from tests.waiting import wait_until

LEASE = 2.0
SWEEP = 0.5
RECOVERY = LEASE + SWEEP * 1.2
"""Seconds within which work of a lost worker goes on."""
MARGIN = 20.0
"""Seconds on top for a slow machine, and so for nothing else: the controls wait less."""
BOOT = 150
"""Seconds in which a worker starts, however many other processes start beside it."""

SETTINGS = {
    "RUNNER_GRAPHS": "tests.celery.graphs",
    "RUNNER_LEASE": str(LEASE),
    "RUNNER_SWEEP_INTERVAL": str(SWEEP),
    "RUNNER_EARLY_ANSWER": "150",
    "CELERY_CUSTOM_WORKER_POOL": "runner.celery.async_pool:TaskPool",
}

DATABASES = 16
"""So many has a server."""


class Worker:
    """One `celery worker` process; kill it, freeze it or let it stop."""

    def __init__(
        self,
        url: str,
        log: Path,
        options: Sequence[str],
        *,
        settings: Mapping[str, str],
        app: str,
        forked: bool = True,
    ) -> None:
        words = ["celery", "--app", app, "worker", "--loglevel", "info", *options]
        words += ["--hostname", f"{log.stem}@%h"]
        self.log = log
        environment = {"RUNNER_REDIS_URL": url, **SETTINGS, **settings}
        if forked and "LD_PRELOAD" not in settings:
            self._guard = ForkedProcess(words, log=log, environment=environment)
        else:
            command = [sys.executable, "-m", *words]
            self._guard = SupervisedProcess(command, log=log, environment=environment)

    @property
    def pid(self) -> int:
        return self._guard.pid

    @property
    def alive(self) -> bool:
        return self._guard.alive()

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self) -> None:
        def ready():
            assert self.alive, f"the worker ended; its log:\n{self.output()}"
            return "worker.ready:" in self.output() and "ready." in self.output().replace(
                "worker.ready:", ""
            )

        wait_until(ready, f"{self.log.stem} is ready", seconds=BOOT)

    def kill(self) -> None:
        """End it as a power cut would: no signal handler, no goodbye."""
        self._guard.kill()

    def end(self) -> None:
        if self.alive:
            self.kill()
        self._guard.end()


class Site:
    """One database with its own workers, and the client's view of it."""

    def __init__(self, url: str, folder: Path, number: int = 0) -> None:
        self.url, self.folder, self.number = url, folder, number
        self.ended = False
        self.redis = redis.Redis.from_url(url)
        # It knows no graph itself: what other tests have registered in this process is not the workers'.
        self.client = Client(store=RedisStore(url, lease=LEASE), registry=Registry())
        self.workers: list[Worker] = []
        self._started = 0

    def add(
        self,
        pool: str = "threads",
        slots: int = 4,
        app: str = "runner.celery:app",
        queues: str = "",
        options: Sequence[str] = (),
        *,
        forked: bool = True,
        **settings: str,
    ) -> Worker:
        """Start a worker; `wait_ready` says when it takes work. Without slots it has its defaults.

        A fork has the library imported; an app that doesn't import it needs a program of its own.
        """
        self._started += 1
        # Celery's own command knows a pool that isn't Celery's by this name.
        name = "custom" if pool == "async" else pool
        words = ["--pool", name, "--concurrency", str(slots)] if slots else []
        words += [*(["--queues", queues] if queues else []), *options]
        log = self.folder / f"{pool}{self._started}.log"
        log.touch()
        self.workers.append(
            Worker(self.url, log, words, settings=settings, app=app, forked=forked)
        )
        return self.workers[-1]

    def ready(self, count: int = 1, **settings: str) -> None:
        """Have so many workers, starting those that are missing side by side."""
        for worker in [worker for worker in self.workers if not worker.alive]:
            worker.end()
            self.workers.remove(worker)
        while len(self.workers) < count:
            self.add(**settings)
        for worker in self.workers:
            worker.wait_ready()

    def starter(self, run) -> Worker:
        """The worker in which the gated node of a run was started last."""
        wait_until(lambda: self.redis.exists(f"started:{run.id}"), "the node runs")
        pid = int(self.redis.lrange(f"started:{run.id}", -1, -1)[0].split()[0])
        return next(worker for worker in self.workers if worker.pid == pid)

    def starts(self, run) -> list[list[str]]:
        """What each start of a run's gated nodes said: process, attempt, idempotency key."""
        return [line.decode().split() for line in self.redis.lrange(f"started:{run.id}", 0, -1)]

    @property
    def control(self) -> Control:
        """The remote control of the site's workers, as any Celery client has it."""
        return Celery("client", broker=as_broker(self.url), set_as_current=False).control

    def open_gate(self, run) -> None:
        self.redis.set(f"gate:{run.id}", 1)

    def send(self, body: object, stream: str = "runner:responses", field: str = "body") -> str:
        return self.redis.xadd(stream, {field: body}).decode()

    def receipt(self, name: str):
        """Wait for the next receipt on a reply stream, and take it off."""
        wait_until(lambda: self.redis.xlen(name), f"a receipt comes to {name}")
        ((key, fields),) = self.redis.xrange(name, count=1)
        self.redis.xdel(name, key)
        return json.loads(fields[b"body"])

    def dead_letter(self, message: str) -> dict[str, bytes]:
        """Wait for the dead letter of a message."""
        letters: list[dict[str, bytes]] = []

        def arrived():
            for _, fields in self.redis.xrange("runner:dead"):
                if fields[b"id"].decode() == message:
                    letters.append({name.decode(): value for name, value in fields.items()})
            return letters

        wait_until(arrived, f"message {message} is among the dead letters")
        return letters[0]

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        self.redis.close()
        self.client.engine.store.close()
        self.ended = True


class Databases:
    """Gives out sites, each with a database and a folder of its own; an ended site's is used again."""

    def __init__(self, url, folders) -> None:
        self._url, self._folders, self._given = url, folders, []

    def __next__(self) -> Site:
        taken = {site.number for site in self._given if not site.ended}
        number = min(set(range(DATABASES)) - taken)
        url = self._url.replace("db=0", f"db={number}")
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        pools.reset()  # An earlier test may have ended the connections that kombu keeps.
        self._given.append(Site(url, self._folders.mktemp(f"site{number}-"), number))
        return self._given[-1]


def script(text: str, *arguments: str) -> str:
    """Run a small program of somebody else's: nothing of ours is imported."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout
