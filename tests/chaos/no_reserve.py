"""Sabotage: a worker as in `kill_points` whose agents reserve nothing before a call."""

from __future__ import annotations

from runner.agent.budgets import Meter
from tests.chaos.kill_points import app

__all__ = ["app"]


async def pass_over(*_: object) -> None:
    """Let every call begin."""


Meter._reserve = pass_over
