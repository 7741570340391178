"""Sabotage: a worker as in `slow_children` that waits for children which still start when it stops."""

from __future__ import annotations

from runner.celery import heartbeat
from tests.celery.slow_children import app

__all__ = ["app"]

heartbeat.end_starting_children = lambda _: None
