"""An app of somebody else's on the same broker, with nothing of ours: it is told how runs ended."""

from __future__ import annotations

import json
import os

from celery import Celery

from runner.settings import as_broker

app = Celery("ledger", broker=as_broker(os.environ["RUNNER_REDIS_URL"]))
app.conf.task_default_queue = "shop"


@app.task(bind=True, name="shop.done")
def done(self, run_id: str, **call: object) -> None:
    with app.connection_for_write() as connection:
        connection.default_channel.client.rpush(
            f"told:{run_id}", json.dumps([self.request.id, call])
        )
