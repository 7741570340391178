"""A worker's start: it checks the store and the queues, then publishes graphs and the doorbell template."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, cast

from celery import Celery
from celery.worker import state

from runner.celery.doorbells import make_template
from runner.celery.engines import pushes
from runner.celery.queues import check_queues
from runner.celery.threads import WorkerThread
from runner.errors import BrokerError, RunnerError, UsageError
from runner.execution.engine import Engine
from runner.settings import Settings
from runner.store.redis import layout
from runner.store.redis.doorbell_template import DoorbellTemplate
from runner.store.redis.partitions import SharedStore
from runner.store.redis.server_info import ServerInfo, read_servers

log = logging.getLogger(__name__)

EXIT_CONFIG = 78
"""The exit code of a worker whose settings the store can't fulfil: EX_CONFIG of sysexits.h."""


class Publisher:
    """Publishes a worker's graphs, and the template with which the store's scripts ring its queues."""

    def __init__(self, app: Celery, engine: Engine, settings: Settings) -> None:
        """Keep the app and its engine; nothing is connected yet."""
        self._app = app
        self._engine = engine
        self._settings = settings
        self._store = cast("SharedStore", engine.store)

    @cached_property
    def _template(self) -> DoorbellTemplate | None:
        """A doorbell as the installed Celery writes it; None if the scripts can't ring."""
        if not pushes(self._app, self._settings):
            return None
        try:
            return make_template(self._app)
        except BrokerError:
            raise
        except RunnerError as error:
            log.warning("doorbell.published: %s", error)
            return None

    def publish(self, *, replace_template: bool = True) -> None:
        if replace_template or not self._store.has_doorbell():
            self._store.install_doorbell(self._template)
        self._engine.publish(self._engine.registry.names())

    def publish_again(self) -> None:
        """Publish again what the store has lost: it was emptied, or started from older data."""
        lost = self._store.lacking(self._engine.registry.names())
        bell = not self._store.has_doorbell() and self._template is not None
        if not (lost or bell) or layout.record(
            self._settings.partition_addresses, self._settings.namespace
        ):
            return
        log.warning(
            "store.emptied: the store has lost %s, which this worker publishes again. Restore lost runs, "
            "questions, schedules and webhooks from a backup.",
            ", ".join([*lost, *["the template of doorbells"] * bell]),
        )
        if bell:
            self._store.install_doorbell(self._template)
        self._engine.publish(lost)


class Startup(WorkerThread):
    """Publishes the graphs and the template once; it retries until the store has them."""

    label = "startup"
    role = "worker"
    app: Celery
    is_ready = False
    replaces_template = True

    def prepare(self, worker: Any) -> None:
        """Keep the app, which writes the template."""
        self.app = worker.app

    def run_once(self) -> None:
        """Publish everything and finish; a store that can't fulfil the settings stops the worker."""
        if not (self._check_store() and self._check_queues()):
            state.should_stop = EXIT_CONFIG
            self.finish()
            return
        Publisher(self.app, self.engine, self.settings).publish(
            replace_template=self.replaces_template
        )
        log.info(
            "%s.ready: graphs: %s",
            self.role,
            ", ".join(self.engine.registry.names())
            or "none; name their modules in RUNNER_GRAPHS",
        )
        self.is_ready = True
        self.finish()

    def _check_store(self) -> bool:
        """Log a problem of the store; return False if the worker must not run on it."""
        settings = self.settings
        urls = {address.url for address in settings.partition_addresses}
        servers = (info for url in urls for _, info in read_servers(url, settings.namespace))
        if not all(map(self._check_server, servers)):
            return False
        problem = layout.record(settings.partition_addresses, settings.namespace)
        if problem:
            log.critical("layout.wrong: %s. The worker stops.", problem)
        return not problem

    def _check_server(self, info: ServerInfo) -> bool:
        if info.forgets:
            log.critical(
                "store.forgets: maxmemory-policy is %s: when memory is full, runs that wait for people are "
                "deleted. Set maxmemory-policy noeviction.",
                info.policy,
            )
        if self.settings.durability == "fsync" and info.unable:
            log.critical(
                "store.unable: RUNNER_DURABILITY is fsync, but %s. The worker stops. Set appendonly yes on a "
                "Redis 7.2 or newer or a Valkey, or choose another level.",
                info.unable,
            )
            return False
        return True

    def _check_queues(self) -> bool:
        """Log a queue that can't be read; return False if one was found."""
        try:
            check_queues(self.app)
        except UsageError as error:
            log.critical("queue.unreadable: %s The worker stops.", error)
            return False
        return True
