"""Sabotage: a worker that takes large messages as many at a time as small ones, and more."""

from __future__ import annotations

import runner.store.group
import runner.store.streams
from tasks.app import app

__all__ = ["app"]

runner.store.group.LARGE = 1 << 60
runner.store.streams.Intake.read.__defaults__ = (100,)
