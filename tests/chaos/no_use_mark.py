"""Sabotage: a worker as in `keys_by_attempt` for which an approval that was used is as good as new."""

from __future__ import annotations

from runner.approvals.ballots import Use
from tests.chaos.keys_by_attempt import app

__all__ = ["app"]

Use.allowed = lambda *_: True
