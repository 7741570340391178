"""Celery as it comes: tasks with default settings, on the same Redis."""

from __future__ import annotations

import os
import time

from celery import Celery

# Not shared: one program has an app for each store that it measures.
# Chords need stored results; the tasks that are measured alone ignore theirs.
app = Celery("bare", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_BACKEND"])


@app.task(ignore_result=True, shared=False)
def noop() -> None:
    """Do nothing."""


@app.task(ignore_result=True, shared=False)
def nap() -> None:
    """Wait, as a node of `bench.graphs` does."""
    time.sleep(0.2)


@app.task(shared=False)
def link(*_: object) -> None:
    """Do nothing, as a part of a canvas: it takes what the part before it gave."""


@app.task(ignore_result=True, shared=False)
def relay(left: int) -> None:
    """Note the time, and send the next of so many."""
    app.backend.client.rpush("relay", time.monotonic_ns())
    if left:
        relay.delay(left - 1)
