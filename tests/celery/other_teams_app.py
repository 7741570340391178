"""A Celery app of another team, with a task of its own and ours installed."""

from __future__ import annotations

import os

from celery import Celery

import runner.celery
from runner.settings import as_broker

app = Celery("other_team", broker=as_broker(os.environ["RUNNER_REDIS_URL"]))


@app.task(name="other_team.write")
def write(key: str) -> None:
    with app.connection_for_write() as connection:
        connection.default_channel.client.set(key, "done")


runner.celery.install(app)
