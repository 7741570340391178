"""Sabotage: a worker that reads its queue as kombu and Celery do, with nothing between."""

from __future__ import annotations

from tasks import refusals, worker

worker.guard = lambda _bury: None
refusals.NAME = worker.CONSUMER
