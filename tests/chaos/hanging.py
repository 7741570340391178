"""Graphs whose nodes hang: at a gate that the test opens, deaf to everything or not."""

from __future__ import annotations

import os
import threading

from runner import GraphBuilder, graph
from tests.celery.graphs import GATE_SECONDS, store


def noted(ctx) -> None:
    with store() as client:
        client.rpush(
            f"started:{ctx.run_id}", f"{os.getpid()} {ctx.attempt} {ctx.idempotency_key}"
        )


def gate(ctx, look=lambda: None) -> None:
    """Wait until the gate of the run is open; `look` is called all the time."""
    pause = threading.Event()
    with store() as client:
        for _ in range(GATE_SECONDS * 20):
            if client.exists(f"gate:{ctx.run_id}"):
                return
            look()
            pause.wait(0.05)


def deaf(ctx):
    """Hang without asking whether this is still wanted."""
    noted(ctx)
    gate(ctx)
    return ctx.attempt


def polite(ctx):
    """Hang, ask all the time, and say when told to stop."""
    noted(ctx)
    try:
        gate(ctx, ctx.check)
    finally:
        with store() as client:
            client.set(f"cleaned:{ctx.run_id}", 1)


def stubborn(ctx):
    """Hang the first time, whatever is thrown at it."""
    noted(ctx)
    while ctx.attempt == 1:
        try:
            gate(ctx)
        except Exception:  # noqa: BLE001, S112 - that is what it is for
            continue
    return ctx.attempt


def one(function, **options):
    builder = GraphBuilder()
    builder.add_node(function, "a", **options)
    return builder.build()


@graph("hung_deaf")
def never_ends():
    """A node that hangs, and then a question."""
    builder = GraphBuilder()
    builder.add_node(deaf, "a")
    builder.add_node(lambda ctx: ctx.interrupt("well?"), "b")
    builder.add_edge("a", "b")
    return builder.build()


@graph("hung_deaf_in_time")
def deaf_in_time():
    return one(deaf, timeout=1)


@graph("hung_polite_in_time")
def polite_in_time():
    return one(polite, timeout=1)


@graph("hung_polite")
def polite_for_ever():
    return one(polite)


@graph("hung_stubborn")
def stubborn_once():
    return one(stubborn)
