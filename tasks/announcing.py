"""What a worker tells the store when it starts: its graphs, and how the queue is rung."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from celery import Celery

from runner.errors import BrokerError, RunnerError
from runner.store.doorbell import DoorbellTemplate
from tasks.background import Background
from tasks.doorbells import make_template
from tasks.engines import pushes

if TYPE_CHECKING:
    from runner.store.redis import RedisStore

log = logging.getLogger(__name__)


class Announcer(Background):
    """Publishes the graphs and the doorbell's template, once; again and again until the store takes it."""

    label = "announcer"
    app: Celery

    def prepare(self, worker: Any) -> None:
        """Remember whose doorbell it is."""
        self.app = worker.app

    def turn(self) -> None:
        """Tell everything and be done."""
        template = self._template() if pushes(self.app, self.settings) else None
        if template is not None:
            cast("RedisStore", self.engine.store).install_doorbell(template)
        names = self.engine.registry.names()
        self.engine.publish(names)
        log.info("worker.ready: graphs: %s", ", ".join(names) or "none; name their modules in RUNNER_GRAPHS")
        self.finish()

    def _template(self) -> DoorbellTemplate | None:
        try:
            return make_template(self.app)
        except BrokerError:
            raise
        except RunnerError as error:
            log.warning("doorbell.published: %s", error)
            return None
