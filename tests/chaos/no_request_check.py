"""Sabotage: a worker that gives its pool every request, whatever is in it."""

from __future__ import annotations

from runner.celery import safe_consumer

safe_consumer.check_message = lambda _request: None
