"""Sabotage: a worker that counts lost leases without an end."""

from __future__ import annotations

from runner.scheduler import timers
from tests.chaos.fork_app import app

__all__ = ["app"]

timers.CRASH_BUDGET = 1000
