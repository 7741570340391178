"""An app of another team with two brokers, among which Celery changes over."""

from __future__ import annotations

import os

from celery import Celery

import runner.celery
from runner.settings import as_broker

app = Celery(
    "shop", broker=[as_broker(os.environ["RUNNER_REDIS_URL"]), "redis://127.0.0.1:1/0"]
)
runner.celery.install(app)
