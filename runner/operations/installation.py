"""Access of `cli` and `server` to a store, which is opened here, once, by the settings."""

from __future__ import annotations

from functools import cached_property

from runner.execution.engine import Engine
from runner.schedules.schedule import Schedule
from runner.schedules.scheduler import Scheduler
from runner.store.shared import AuditLog, NoticeTail, Shared
from runner.webhooks.delivery import WebhookAdmin

__all__ = ["AuditLog", "Installation", "NoticeTail"]


class Installation(Shared):
    """A store with what people manage there."""

    @cached_property
    def webhooks(self) -> WebhookAdmin:
        """The webhooks."""
        return WebhookAdmin(self)

    def scheduler(self, engine: Engine) -> Scheduler:
        """Return the schedules; the engine starts their runs."""
        return Scheduler(engine, self.documents(Schedule))
