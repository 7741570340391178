"""Sabotage: a worker that never looks at what is frozen."""

from __future__ import annotations

from runner.approvals.freezes import Freezes
from tasks.app import app

__all__ = ["app"]

Freezes.known = {}
