"""Sabotage: a worker as in `kill_points` that takes over no message from a reader that is gone."""

from __future__ import annotations

from runner.store.redis.streams import StreamReader
from tests.chaos.kill_points import app

__all__ = ["app"]

StreamReader.take_over = lambda *_, **__: []
