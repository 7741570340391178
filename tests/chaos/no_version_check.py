"""A worker without the check of what a run's node was when the run began."""

from __future__ import annotations

from runner.execution import nodes
from tasks.app import app

__all__ = ["app"]

nodes.unchanged = lambda plan, claim: True
