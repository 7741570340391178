"""An app of another team that gives each message an expiry, however it is sent."""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import before_task_publish

import runner.celery
from runner import GraphBuilder, graph


@before_task_publish.connect
def expire(headers: dict[str, object], **_: object) -> None:
    """Set an expiry that is over when a worker reads the message."""
    headers["expires"] = "2020-01-01T00:00:00+00:00"


app = Celery("shop", broker=os.environ["RUNNER_BROKER_URL"])
runner.celery.install(app)


@graph("expiring")
def expiring():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.task, "first")
    builder.add_node(lambda ctx: ctx.inputs["first"], "second", queue="apart")
    builder.add_edge("first", "second")
    return builder.build()
