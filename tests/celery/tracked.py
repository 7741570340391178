"""An app in which Sentry's SDK writes to a file, with a graph for each way in which a node ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import sentry_sdk
from celery import Celery
from sentry_sdk.transport import Transport

import runner.celery
from runner import GraphBuilder, RetryPolicy, graph
from runner.celery import CeleryTask
from runner.settings import as_broker


class ToFile(Transport):
    """Appends what would be sent to the file of SENTRY_FILE, one event a line."""

    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            with Path(os.environ["SENTRY_FILE"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps(event, default=str) + "\n")


app = Celery("tracked", broker=as_broker(os.environ["RUNNER_REDIS_URL"]))
runner.celery.install(app)

# After `install`, as in a Django project whose settings initialize Sentry: Celery reads them later.
sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=ToFile)


@app.task(name="tracked.explode")
def explode_task():
    raise LookupError("of a task")


@app.task(name="tracked.late", expires=0.001)
def late_task():
    """Expire before a worker has it."""


def explode(ctx):
    raise LookupError(f"no order {ctx.task}")


def flaky(ctx):
    if ctx.attempt == 1:
        raise LookupError("not yet")
    return "done"


def ask(ctx):
    return ctx.interrupt("go on?")


def single(node, **options):
    builder = GraphBuilder()
    builder.add_node(node, "only", **options)
    return builder.build()


@graph("fails")
def fails():
    return single(explode)


@graph("outer")
def outer():
    return single(single(explode))


@graph("elsewhere")
def elsewhere():
    return single(CeleryTask(explode_task, args=[]))


@graph("discarded")
def discarded():
    return single(CeleryTask(late_task, args=[]))


@graph("retries")
def retries():
    return single(flaky, retry=RetryPolicy(max_attempts=2, backoff=0))


@graph("asks")
def asks():
    return single(ask)
