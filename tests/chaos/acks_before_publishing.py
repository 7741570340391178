"""Sabotage: a worker whose relay says that notices were told before it tells them."""

from __future__ import annotations

from runner.celery.amqp import Relay
from tests.chaos.kill_points import app

__all__ = ["app"]

publish = Relay._publish


def tell_later(self, notices) -> None:
    for reader in self._readers:
        reader.done(notices)
    publish(self, notices)


Relay._publish = tell_later
