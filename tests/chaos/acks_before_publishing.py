"""Sabotage: a worker whose relay says that notices were told before it tells them."""

from __future__ import annotations

from runner.celery.amqp import Relay
from tests.chaos.kill_points import app

__all__ = ["app"]

publish = Relay._publish


def tell_later(self, found) -> None:
    self._reader.done(found)
    publish(self, found)


Relay._publish = tell_later
