"""Sabotage: a worker as in `kill_points`, none of whose processes ever looks at what is due."""

from __future__ import annotations

from runner.execution.engine import Engine
from tests.chaos.kill_points import app

__all__ = ["app"]

Engine.sweep = lambda *_: 0
