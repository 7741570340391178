"""Sabotage: a worker whose results are taken for a visit, whatever became of it since."""

from __future__ import annotations

from runner import scheduler
from runner.records.run import NodeRecord
from runner.scheduler import lifecycle
from tasks.app import app

__all__ = ["app"]


def owns_visit(record: NodeRecord, visit: int, fence: int) -> bool:
    """Compare the visit alone."""
    return record.visit == visit


# What a settle asks, in the transition and in the request around it.
assert lifecycle.owns is scheduler.owns
lifecycle.owns = scheduler.owns = owns_visit
