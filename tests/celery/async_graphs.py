"""Graphs for the pool `async`: nodes that wait on the loop, and nodes that block a thread."""

from __future__ import annotations

import asyncio
import threading

from celery import current_task

from runner import GraphBuilder, graph
from tests.celery.graphs import GATE_SECONDS, store


def single(node, **options):
    builder = GraphBuilder()
    builder.add_node(node, "a", **options)
    return builder.build()


async def wait(ctx):
    """Say that this node runs, then wait until the test opens its gate."""
    with store() as client:
        client.sadd("waiting", ctx.run_id)
        for _ in range(GATE_SECONDS * 5):
            if client.exists("gate"):
                return
            await asyncio.sleep(0.2)
    raise TimeoutError("the test never opened the gate")


def block(ctx):
    """Block a thread until the test opens the gate; return the node's own task id."""
    task_id = current_task.request.id
    with store() as client:
        client.sadd("blocking", ctx.run_id)
        pause = threading.Event()
        while not client.exists("gate"):
            ctx.check()
            pause.wait(0.2)
    return [task_id, current_task.request.id]


async def until_stopped(ctx):
    """Say that this node runs, then wait until its run is cancelled."""
    with store() as client:
        client.sadd("waiting", ctx.run_id)
    for _ in range(GATE_SECONDS * 5):
        ctx.check()
        await asyncio.sleep(0.2)


async def hang(ctx):
    await asyncio.sleep(1000)


@graph("waits")
def waits():
    return single(wait)


@graph("blocks")
def blocks():
    return single(block)


@graph("cancelled")
def cancelled():
    return single(until_stopped)


@graph("times_out")
def times_out():
    return single(hang, timeout=1)
