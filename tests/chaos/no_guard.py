"""Sabotage: a worker that reads its queue as kombu and Celery do, with nothing between."""

from __future__ import annotations

from runner.celery import application

application.use_safe_channel = lambda *_: None
application.CONSUMER = application.CELERY_CONSUMER
