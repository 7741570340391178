"""Sabotage: a worker that takes the signal of a time limit for that of its own end."""

from __future__ import annotations

from runner.celery import engines

engines._is_overdue = lambda _task: False
