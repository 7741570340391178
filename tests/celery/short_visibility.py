"""The app of somebody else whose broker returns the messages of a dead worker after two seconds."""

from __future__ import annotations

from tests.celery.shop_with_ours import app

__all__ = ["app"]

app.conf.broker_transport_options = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
