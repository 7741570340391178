"""Sabotage: a worker that takes large messages as many at a time as small ones, and more."""

from __future__ import annotations

import runner.store.redis.streams
from tasks.app import app

__all__ = ["app"]

runner.store.redis.streams.LARGE = 1 << 60
runner.store.redis.streams.Intake.read.__defaults__ = (100,)
