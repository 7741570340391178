"""Writes down when a worker does what between two nodes; a worker imports it as a module of graphs.

Each moment is a line of a file, appended at once, so that the processes of a prefork pool share it. The
clock is the machine's monotonic one, which all processes see alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from time import monotonic_ns
from typing import Any

from celery import signals
from kombu.transport.redis import Channel

from bench.graphs import chain
from runner import NodeContext, graph
from runner.store.redis.connection import RedisConnection
from runner.store.redis.scripts import script

FILE = os.open(os.environ["BENCH_CLOCK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
CALLS = {script(name).sha: name for name in ("claim", "settle")}


def note(moment: str) -> None:
    """Write down that something happens now."""
    os.write(FILE, f"{monotonic_ns()} {moment}\n".encode())


def body(_: NodeContext) -> None:
    """Be a node that only notes that it runs."""
    note("body")


def _noting_calls(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def noting(connection: RedisConnection, *command: Any, **options: Any) -> Any:
        name = CALLS.get(command[1]) if command[0] == "EVALSHA" else None
        if name is None:
            return call(connection, *command, **options)
        note(f"{name} sent")
        try:
            return call(connection, *command, **options)
        finally:
            note(f"{name} back")

    return noting


def _noting_fetch(read: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(read)
    def noting(channel: Any, **options: Any) -> Any:
        note("doorbell read")
        return read(channel, **options)

    return noting


RedisConnection.call = _noting_calls(RedisConnection.call)  # type: ignore[method-assign]
Channel._brpop_read = _noting_fetch(Channel._brpop_read)  # noqa: SLF001 - where kombu has the message
signals.task_received.connect(lambda **_: note("task received"), weak=False)
signals.task_prerun.connect(lambda **_: note("task begins"), weak=False)

graph("hops")(lambda: chain(100, body))
