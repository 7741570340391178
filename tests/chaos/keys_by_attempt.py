"""Sabotage: a worker as in `kill_points` whose nodes have another idempotency key in each attempt."""

from __future__ import annotations

from runner.execution.context import ClaimedVisit
from tests.chaos.kill_points import app

__all__ = ["app"]

stable = ClaimedVisit.idempotency_key.fget

ClaimedVisit.idempotency_key = property(lambda self: f"{stable(self)}.{self.attempt}")
