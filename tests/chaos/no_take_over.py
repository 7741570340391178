"""Sabotage: a worker as in `kill_points` that takes over no message from a reader that is gone."""

from __future__ import annotations

from runner.store.redis.streams import Intake
from tests.chaos.kill_points import app

__all__ = ["app"]

Intake.take_over = lambda *_, **__: []
