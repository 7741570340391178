"""A worker's sign of life: what it is, serves and knows, for `runner workers` and `runner doctor`.

The thread ends last, after the pool: a worker that was told to stop is on the list until its nodes have
ended, and one that hangs stays there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib import metadata
from typing import Any

from celery import signals
from celery.worker import state

from runner.errors import RunnerError
from runner.store.roster import EVERY, Roster, Worker, described
from tasks.background import ENDS_WITHIN, Background
from tasks.config import is_redis
from tasks.engines import queues_of
from tasks.stopping import Stopping, spare

log = logging.getLogger(__name__)

VISIBILITY = 3600.0
"""Seconds that kombu gives a message of a Redis broker before it delivers it again."""

LOOK = 0.5
"""Seconds between two looks whether the worker was told to stop: a busy solo worker can't say so itself."""

DISTRIBUTION = "celery-graph-runner"


class Presence(Background):
    """Tells the store every ten seconds that this worker is there."""

    label = "presence"

    def prepare(self, worker: Any) -> None:
        """Write down what stays as it is."""
        self._roster = Roster(self.settings.redis_url)
        self._told = self._describe(worker)
        self._tidied = False
        self._over, self._due = threading.Event(), 0.0
        spare(worker.pool)
        self._stopping = Stopping(self.engine, self.settings.shutdown_grace)
        signals.worker_shutdown.connect(self._end, sender=worker)

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
        """Only begin to end: the pool stops after this step, and takes as long as its nodes."""
        self.stopping.set()

    terminate = stop

    def turn(self) -> None:
        """Give the sign of life, and look how the worker does until the next one."""
        if not self._tidied:
            self._roster.tidy()
            self._tidied = True
        self._look()
        self.stopping.wait(LOOK)

    def leave(self) -> None:
        """Take the worker off the list when its pool has stopped: it did not die."""
        while not self._over.wait(LOOK):
            try:
                self._look()
            except RunnerError as error:
                log.info("presence.waits: %s", error)
        self._roster.leave(self._told["name"], self._told["pid"])
        self._roster.close()

    def _look(self) -> None:
        """Give the sign of life when it is time, or when the worker was told to stop."""
        before = self._stopping.elapsed
        self._stopping.look()
        elapsed = self._stopping.elapsed
        if time.monotonic() < self._due and bool(before) == bool(elapsed):
            return
        told = {**self._told, "busy": len(state.active_requests), "stopping": round(elapsed, 3)}
        self._roster.enter(told, time.time_ns() // 1_000_000)
        self._due = time.monotonic() + EVERY

    def _end(self, **_: object) -> None:
        self._over.set()
        if self._thread is not None and self.stopping.is_set():
            self._thread.join(ENDS_WITHIN)

    def _describe(self, worker: Any) -> dict[str, Any]:
        conf, registry = worker.app.conf, self.engine.registry
        return described(
            Worker(
                name=str(worker.hostname),
                pid=os.getpid(),
                pool=_pool(worker.pool_cls),
                slots=int(worker.concurrency or 1),
                queues=sorted(worker.app.amqp.queues.consume_from),
                wants=queues_of(registry),
                graphs={name: registry.get(name).topology.fingerprint for name in registry.names()},
                accepts=sorted(str(each) for each in conf.accept_content),
                events=bool(worker.task_events),
                lease=self.settings.lease,
                sweep_interval=self.settings.sweep_interval,
                grace=self.settings.shutdown_grace,
                visibility=_visibility(worker.app),
                version=metadata.version(DISTRIBUTION),
                started=time.time_ns() // 1_000_000,
            )
        )


def _pool(kind: Any) -> str:
    """Name a pool as the option `--pool` does."""
    name = str(kind.__module__).rpartition(".")[2]
    return "threads" if name == "thread" else name


def _visibility(app: Any) -> float:
    """Say after how many seconds the broker gives a message to another worker; 0: it doesn't."""
    url, options = app.conf.broker_read_url or app.conf.broker_url, app.conf.broker_transport_options or {}
    if not is_redis(str(url)) or options.get("ack_emulation") is False:
        return 0.0
    return float(options.get("visibility_timeout", VISIBILITY))
