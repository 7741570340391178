"""Sabotage: a worker that reads its queue as kombu does, with nothing between."""

from __future__ import annotations

from tasks import worker

worker.guard = lambda _bury: None
