"""A worker's sign of life: what it is, serves and knows, for `runner workers` and `runner doctor`."""

from __future__ import annotations

import os
import time
from importlib import metadata
from typing import Any

from celery.worker import state

from runner.store.roster import EVERY, Roster, Worker, described
from tasks.background import Background
from tasks.config import is_redis
from tasks.engines import queues_of

VISIBILITY = 3600.0
"""Seconds that kombu gives a message of a Redis broker before it delivers it again."""

DISTRIBUTION = "celery-graph-runner"


class Presence(Background):
    """Tells the store every ten seconds that this worker is there."""

    label = "presence"

    def prepare(self, worker: Any) -> None:
        """Write down what stays as it is."""
        self._roster = Roster(self.settings.redis_url)
        self._told = self._describe(worker)
        self._tidied = False

    def turn(self) -> None:
        """Give the sign of life, then rest."""
        if not self._tidied:
            self._roster.tidy()
            self._tidied = True
        told = {**self._told, "busy": len(state.active_requests)}
        self._roster.enter(told, time.time_ns() // 1_000_000)
        self.stopping.wait(EVERY)

    def leave(self) -> None:
        """Take the worker off the list: it did not die, it was stopped."""
        self._roster.leave(self._told["name"], self._told["pid"])
        self._roster.close()

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
