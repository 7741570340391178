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
from runner.store.redis.scripts import Scripts

FILE = os.open(os.environ["BENCH_CLOCK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
CALLS = {"take": "claim", "apply": "settle"}
"""What the scripts of the moments do."""


def note(moment: str) -> None:
    """Write down that something happens now."""
    os.write(FILE, f"{monotonic_ns()} {moment}\n".encode())


def body(_: NodeContext) -> None:
    """Be a node that only notes that it runs."""
    note("body")


def _noting_calls(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def noting(scripts: Scripts, script: str, *arguments: Any, **options: Any) -> Any:
        name = CALLS.get(script)
        if name is None:
            return run(scripts, script, *arguments, **options)
        note(f"{name} sent")
        try:
            return run(scripts, script, *arguments, **options)
        finally:
            note(f"{name} back")

    return noting


def _noting_fetch(read: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(read)
    def noting(channel: Any, **options: Any) -> Any:
        note("doorbell read")
        return read(channel, **options)

    return noting


Scripts.run = _noting_calls(Scripts.run)  # type: ignore[method-assign]
Channel._brpop_read = _noting_fetch(Channel._brpop_read)  # noqa: SLF001 - where kombu has the message
signals.task_received.connect(lambda **_: note("task received"), weak=False)
signals.task_prerun.connect(lambda **_: note("task begins"), weak=False)

graph("hops")(lambda: chain(100, body))
