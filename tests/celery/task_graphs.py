"""Graphs with nodes that are Celery tasks of another app."""

from __future__ import annotations

import os
from decimal import Decimal

from celery import Celery

from runner import Graph, GraphBuilder, RetryPolicy, graph
from runner.celery import CeleryTask
from runner.settings import as_broker


def alone(task: CeleryTask, **options: object) -> Graph:
    builder = GraphBuilder()
    builder.add_node(task, "work", **options)
    return builder.build()


def double(price: Decimal):
    """Return twice the price, without an annotation of the result."""
    return 2 * price


@graph("charging")
def charging():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: {"id": ctx.task}, "order")
    builder.add_node(CeleryTask("shop.charge"), "charge")
    builder.add_node(lambda ctx: ctx.inputs["charge"], "note")
    builder.add_edge("order", "charge")
    builder.add_edge("charge", "note")
    return builder.build()


@graph("declined")
def declined():
    task = CeleryTask(
        "shop.decline", args=lambda ctx: [ctx.task], kwargs={"times": 1}, queue="celery"
    )
    return alone(task)


@graph("declined_once")
def declined_once():
    task = CeleryTask("shop.decline", args=lambda ctx: [ctx.task], kwargs={"times": 1})
    return alone(task, retry=RetryPolicy(max_attempts=2, backoff=0.1))


@graph("priced")
def priced():
    builder = GraphBuilder()
    builder.add_node(CeleryTask("shop.price", args=[]), "work")
    builder.add_node(double, "double")
    builder.add_edge("work", "double")
    return builder.build()


@graph("set_of_prices")
def set_of_prices():
    return alone(CeleryTask("shop.prices", args=[]))


@graph("unsendable")
def unsendable():
    return alone(CeleryTask("shop.charge", args=[object()]))


@graph("slow")
def slow():
    return alone(CeleryTask("shop.slow"))


@graph("expiring")
def expiring():
    app = Celery(
        "sender", broker=as_broker(os.environ["RUNNER_REDIS_URL"]), set_as_current=False
    )

    @app.task(name="shop.slow", expires=0.001)
    def task(gate):
        return gate

    return alone(CeleryTask(task, queue="celery"))


@graph("slow_in_time")
def slow_in_time():
    return alone(CeleryTask("shop.slow"), timeout=5.0)
