"""What a worker tells the store when it starts: its graphs, and how the queue is rung."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from celery.worker import state

from runner.errors import BrokerError, RunnerError
from runner.store.doorbell import DoorbellTemplate
from runner.store.vitals import vitals
from tasks.background import Background
from tasks.doorbells import make_template
from tasks.engines import pushes

if TYPE_CHECKING:
    from runner.store.redis import RedisStore

log = logging.getLogger(__name__)

EXIT_CONFIG = 78
"""What a worker ends with whose settings the store can't keep, as sysexits.h has it."""


class Announcer(Background):
    """Publishes the graphs and the doorbell's template, once; again and again until the store takes it."""

    label = "announcer"
    app: Celery

    def prepare(self, worker: Any) -> None:
        """Remember whose doorbell it is."""
        self.app = worker.app

    def turn(self) -> None:
        """Tell everything and be done, unless the store can't be what it must."""
        if not self._is_fit():
            state.should_stop = EXIT_CONFIG
            self.finish()
            return
        template = self._template() if pushes(self.app, self.settings) else None
        if template is not None:
            cast("RedisStore", self.engine.store).install_doorbell(template)
        names = self.engine.registry.names()
        self.engine.publish(names)
        log.info("worker.ready: graphs: %s", ", ".join(names) or "none; name their modules in RUNNER_GRAPHS")
        self.finish()

    def _is_fit(self) -> bool:
        """Look at the store: shout about one that throws runs away; one that can't obey ends the worker."""
        found = vitals(self.settings.redis_url)
        if found.forgets:
            log.critical(
                "store.forgets: maxmemory-policy is %s: when memory is full, runs that wait for people are "
                "thrown away. Set maxmemory-policy noeviction.",
                found.policy,
            )
        if self.settings.durability == "fsync" and found.unable:
            log.critical(
                "store.unable: RUNNER_DURABILITY is fsync, but %s. The worker stops. Set appendonly yes on a "
                "Redis 7.2 or newer or a Valkey, or choose another level.",
                found.unable,
            )
            return False
        return True

    def _template(self) -> DoorbellTemplate | None:
        try:
            return make_template(self.app)
        except BrokerError:
            raise
        except RunnerError as error:
            log.warning("doorbell.published: %s", error)
            return None
