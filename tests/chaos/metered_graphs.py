"""The same graph twice, whose keys take turns: with a limit for each of them, and without."""

from __future__ import annotations

import functools
import os
import threading

from runner import Fairness, Graph, GraphBuilder, Limit, NodeContext, graph
from tests.celery.graphs import store

LIMIT = 2
STEP = 0.02


def work(name: str, ctx: NodeContext) -> None:
    """Say who begins and who ends; nothing goes on before the graph's gate is open."""
    said, pause = f"{ctx.task} {os.getpid()}", threading.Event()
    with store() as client:
        client.rpush(f"log:{name}", f"+ {said}")
        while not client.exists(f"open:{name}"):
            pause.wait(STEP)
        pause.wait(STEP)
        client.rpush(f"log:{name}", f"- {said}")


def _build(name: str, *limits: Limit) -> Graph:
    builder = GraphBuilder()
    builder.add_node(functools.partial(work, name), "work", limits=limits)
    return builder.build()


@graph("metered", fairness=Fairness("tag:tenant"))
def metered() -> Graph:
    return _build("metered", Limit("model", concurrency=LIMIT, by="tag:tenant"))


@graph("free", fairness=Fairness("tag:tenant"))
def free() -> Graph:
    return _build("free")
