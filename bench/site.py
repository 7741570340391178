"""A private store with workers on it: one of bare Celery, one of ours, with the same pool and slots."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from runner import Client
from runner.dev.embedded import EmbeddedStore, embedded_store
from runner.dev.supervised_process import SupervisedProcess
from runner.settings import as_broker
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore

BARE, OURS = 0, 1
SLOTS = {"threads": 8, "solo": 1, "prefork": 2}
CUSTOM = {"async": "runner.celery.async_pool:TaskPool"}
"""Pools that Celery's own command knows as `custom`."""
READY = {BARE: " ready.", OURS: "worker.ready:"}
PATIENCE = 900.0  # seconds
PAUSE = 0.005


class Site:
    """A store with a worker of each kind, or of those that are named."""

    def __init__(
        self,
        store: EmbeddedStore,
        folder: Path,
        pool: str,
        *,
        sides: tuple[int, ...] = (BARE, OURS),
        graphs: Sequence[str] = (),
        slots: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers, ours with these graphs; `slots` and `environment` are those of each worker."""
        socket = urlsplit(store.url).path
        self.urls = [f"unix://{socket}?db={number}" for number in (BARE, OURS)]
        self.servers = [redis.Redis.from_url(url) for url in self.urls]
        self._bare: Any = None
        self.pool, self.slots = pool, slots or SLOTS[pool]
        self._canvas = {
            "BENCH_BROKER": as_broker(self.urls[BARE]),
            "BENCH_BACKEND": f"redis+socket://{socket}?virtual_host={BARE}",
        }
        ours = {
            "RUNNER_REDIS_URL": self.urls[OURS],
            "RUNNER_GRAPHS": "bench.graphs",
            "BENCH_GRAPHS": ",".join(graphs),
        }
        self.client = Client(store=RedisStore(self.urls[OURS]))
        self.workers: dict[int, SupervisedProcess] = {}
        self._folder, self._ours = folder, {**ours, **(environment or {})}
        apps = [
            ("bench.bare:app", {**self._canvas, **(environment or {})}),
            ("runner.celery:app", self._ours),
        ]
        for side in sides:
            app, variables = apps[side]
            log = folder / f"worker{side}.log"
            self.workers[side] = _worker(app, pool, self.slots, log, variables)
        for side, process in self.workers.items():
            _await_ready(process, folder / f"worker{side}.log", READY[side])

    def add_worker(self) -> int:
        """Start one more worker of ours, and return its process id."""
        number = max(self.workers) + 1
        log = self._folder / f"worker{number}.log"
        self.workers[number] = worker(
            "runner.celery:app", self.pool, self.slots, log, self._ours
        )
        return self.workers[number].pid

    def celery(self) -> Any:
        """Import the bare app in this process, where it sends; that of an earlier site has another store."""
        if self._bare is None:
            os.environ.update(self._canvas)
            sys.modules.pop("bench.bare", None)
            self._bare = importlib.import_module("bench.bare")
        return self._bare

    def bare_tasks(self, count: int, name: str = "noop") -> None:
        """Send so many bare tasks, and wait until the worker has executed them."""
        task, server = getattr(self.celery(), name), self.servers[BARE]
        for _ in range(count):
            task.apply_async()
        wait_for(
            lambda: not server.llen("celery") and not server.zcard("unacked_index"),
            "the queue is empty",
        )

    def relay(self, length: int) -> list[float]:
        """Let bare tasks send each other; return when each began, in seconds."""
        server = self.servers[BARE]
        server.delete("relay")
        self.celery().relay.delay(length)
        wait_for(lambda: server.llen("relay") > length, "the relay has ended")
        return [int(at) / 1e9 for at in server.lrange("relay", 0, -1)]

    def start(self, graph: str) -> str:
        """Start a run and return its id."""
        return self.client.start(graph, None).id

    def ended(self, run_id: str) -> bool:
        """Tell whether a run has completed, with one cheap command."""
        status = self.servers[OURS].hget(Keys().run(run_id), "run") or b""
        return bytes(status).startswith(b"completed")

    def run(self, graph: str) -> None:
        """Run a graph to its end."""
        run_id = self.start(graph)
        wait_for(lambda: self.ended(run_id), f"{graph} has completed")

    def answer(self, interrupt_id: str, **fields: object) -> None:
        """Answer a question by a message on the stream, with other fields of it."""
        body = json.dumps({"v": 1, "interrupt_id": interrupt_id, "response": True, **fields})
        self.servers[OURS].xadd("runner:responses", {"body": body})

    def version(self) -> str:
        """Name the server and its version."""
        info = self.servers[OURS].info("server")
        kind = "Valkey" if "valkey_version" in info else "Redis"
        return f"{kind} {info.get('valkey_version', info['redis_version'])}"

    def end(self) -> None:
        """Stop the workers; results of the canvas forget the store, which ends before they do."""
        if BARE in self.workers:
            from celery.result import AsyncResult  # noqa: PLC0415 - only this side needs it

            for result in [made for made in gc.get_objects() if isinstance(made, AsyncResult)]:
                result.backend = None
        for process in self.workers.values():
            process.kill()
            process.end()


@contextmanager
def site(pool: str, **options) -> Iterator[Site]:  # noqa: ANN003 - those of Site
    """Run a site for the length of a `with` block."""
    with tempfile.TemporaryDirectory() as folder, embedded_store() as store:
        made = Site(store, Path(folder), pool, **options)
        try:
            yield made
        finally:
            made.end()


def worker(
    app: str, pool: str, slots: int, log: Path, environment: dict[str, str]
) -> SupervisedProcess:
    """Start a worker of ours, and wait until it takes work."""
    process = _worker(app, pool, slots, log, environment)
    _await_ready(process, log, READY[OURS])
    return process


def _worker(
    app: str, pool: str, slots: int, log: Path, environment: dict[str, str]
) -> SupervisedProcess:
    if pool in CUSTOM:
        environment = {**environment, "CELERY_CUSTOM_WORKER_POOL": CUSTOM[pool]}
        pool = "custom"
    options = ["--pool", pool, "--concurrency", str(slots), "--loglevel", "info"]
    options += ["--hostname", f"{log.stem}@%h"]
    if app != "runner.celery:app":  # ours says no to these itself
        options += ["--without-gossip", "--without-mingle"]
    command = [sys.executable, "-m", "celery", "--app", app, "worker", *options]
    return SupervisedProcess(command, log=log, environment=environment)


def _await_ready(worker: SupervisedProcess, log: Path, sign: str) -> None:
    def ready() -> bool:
        if not worker.alive():
            raise ChildProcessError(f"a worker has ended:\n{log.read_text()[-2000:]}")
        return log.exists() and sign in log.read_text()

    wait_for(ready, f"{log.name} says {sign!r}")


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it did not within 15 minutes.
    """
    ends = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(PAUSE)
