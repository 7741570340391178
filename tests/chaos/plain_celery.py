"""Plain Celery, with nothing of ours: the control of what a frozen worker loses."""

from __future__ import annotations

import os

from celery import Celery

from runner.settings import as_broker

app = Celery(
    "plain", broker=as_broker(os.environ.get("RUNNER_REDIS_URL", "redis://127.0.0.1/0"))
)
app.conf.task_default_queue = "plain"
app.conf.task_acks_late = bool(os.environ.get("PLAIN_ACKS_LATE"))


@app.task(name="plain.note")
def note(number: int) -> None:
    """Say that the task of that number was executed."""
    with app.connection_for_write() as connection:
        connection.default_channel.client.sadd("executed", number)
