"""An app of another team whose tasks are late, short-lived and retried, and report to a task of its own."""

from __future__ import annotations

import os

from celery import Celery, Task

import runner.celery
from runner import GraphBuilder, graph
from runner.celery import CeleryTask
from runner.settings import as_broker


class Base(Task):
    """A base class of all tasks that bears on how they are sent and on how they end."""

    abstract = True
    expires = -1
    immediate = True
    autoretry_for = (Exception,)
    default_retry_delay = 3600
    track_started = True

    def apply_async(self, *args: object, **options: object) -> object:
        late = {"countdown": 3600, "link": self.app.signature("shop.note")}
        return super().apply_async(*args, **{**late, **options})


URL = as_broker(os.environ["RUNNER_REDIS_URL"])
app = Celery("shop", task_cls=Base, broker=URL, backend=URL)
app.conf.task_routes = {"*": {"exchange_type": "topic"}}
runner.celery.install(app)


@app.task(name="shop.double", base=Task, queue="celery", exchange_type="direct")
def double(number: int) -> int:
    return 2 * number


def fail(ctx):
    raise LookupError(f"no order {ctx.inputs['double']}")


@graph("failing_at_once")
def failing_at_once():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: 1 / 0, "fail")
    return builder.build()


@graph("opinionated")
def opinionated():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.task, "first")
    builder.add_node(CeleryTask(double), "double")
    builder.add_node(fail, "fail")
    builder.add_edge("first", "double")
    builder.add_edge("double", "fail")
    return builder.build()
