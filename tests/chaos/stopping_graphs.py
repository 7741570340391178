"""Graphs for workers that are told to stop: each worker has a queue, and so a graph, of its own."""

from __future__ import annotations

import os
import threading
from itertools import pairwise

from runner import GraphBuilder, graph
from runner.definition.registry import registry
from tests.celery.graphs import name_of, store
from tests.celery.shapes import drawn

CASES = (
    *(
        f"{how}_{pool}"
        for how in ("ends", "late", "cold")
        for pool in ("threads", "prefork", "solo", "async")
    ),
    *(f"{how}_{pool}" for how in ("soft", "kept", "hangs") for pool in ("threads", "prefork")),
    "soft_async",
)


def until_open(ctx):
    """Say which process runs this, then wait until the test opens the gate of the run."""
    with store() as client:
        client.rpush(
            f"started:{ctx.run_id}", f"{os.getpid()} {ctx.attempt} {ctx.idempotency_key}"
        )
        pause = threading.Event()
        while not client.exists(f"gate:{ctx.run_id}"):
            ctx.check()
            pause.wait(0.05)
    return "done"


def stubborn(ctx):
    """Hang for ever at the first start, whatever this process is told; end at once at the next."""
    with store() as client:
        count = client.rpush(
            f"started:{ctx.run_id}", f"{os.getpid()} {ctx.attempt} {ctx.idempotency_key}"
        )
        pause = threading.Event()
        while count == 1 and not client.exists(f"free:{ctx.run_id}"):
            try:
                pause.wait(0.05)
            except SystemExit:
                continue
    return "done"


def build(node, queue):
    builder = GraphBuilder()
    builder.add_node(node, "a", queue=queue)
    builder.add_node(name_of, "b")
    builder.add_edge("a", "b")
    return builder.build()


STARTS = {"a": 1, "b": 2, "d": 1, "e": 1, "z": 1}
"""How often each node of `rolling` is started where nothing happens: who asks is started again to go on."""


def takes_long(ctx):
    """Count how often this runs."""
    with store() as client:
        client.hincrby("ran", f"{ctx.run_id} {ctx.node_id}", 1)
    threading.Event().wait(0.4)
    return ctx.node_id


@graph("rolling")
def rolling():
    """One branch asks while the other works."""
    edges = ("ab", "ad", "de", "bz", "ez")
    return drawn(*edges, work=takes_long, b=lambda ctx: ctx.interrupt("go?")).build()


@graph("row")
def row():
    names = "abcdefghijkl"
    return drawn(*map("".join, pairwise(names)), work=takes_long).build()


for case in CASES:
    registry.add(
        case,
        lambda case=case: build(stubborn if case.startswith("hangs") else until_open, case),
    )
