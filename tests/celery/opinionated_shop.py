"""An app of another team whose tasks are late, short-lived and retried, and report to a task of its own."""

from __future__ import annotations

import os
from decimal import Decimal

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
    max_retries = 0
    throws = (Exception,)
    priority = 9
    compression = "gzip"
    delivery_mode = 1
    acks_on_failure_or_timeout = False
    reject_on_worker_lost = True
    store_eager_result = True

    def apply_async(self, *args: object, **options: object) -> object:
        late = {"countdown": 3600, "link": self.app.signature("shop.note")}
        return super().apply_async(*args, **{**late, **options})


URL = as_broker(os.environ["RUNNER_REDIS_URL"])
app = Celery("shop", task_cls=Base, broker=URL, backend=URL)
app.conf.update(
    accept_content=["json", "yaml"],
    enable_utc=False,
    task_compression="gzip",
    task_create_missing_queues=False,
    task_default_delivery_mode="transient",
    task_default_priority=9,
    task_ignore_result=False,
    task_inherit_parent_priority=True,
    task_queue_max_priority=5,
    task_routes={"*": {"exchange_type": "topic"}},
    task_serializer="yaml",
    task_store_eager_result=True,
    timezone="America/New_York",
    worker_deduplicate_successful_tasks=True,
)
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


@graph("unsendable")
def unsendable():
    """One with a value that YAML can't carry, and one with an argument that the task doesn't take."""
    builder = GraphBuilder()
    builder.add_node(CeleryTask(double, args=[Decimal(1)]), "value")
    builder.add_node(CeleryTask(double, args=[1, 2]), "number")
    return builder.set_failure_policy("continue").build()


@graph("opinionated")
def opinionated():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.task, "first")
    builder.add_node(CeleryTask(double), "double")
    builder.add_node(fail, "fail")
    builder.add_edge("first", "double")
    builder.add_edge("double", "fail")
    return builder.build()
