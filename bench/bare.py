"""Celery as it comes: tasks with default settings, on the same Redis."""

from __future__ import annotations

import os
import time

from celery import Celery

# Chords need stored results; the tasks that are measured alone ignore theirs.
app = Celery("bare", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_BACKEND"])


@app.task(ignore_result=True)
def noop() -> None:
    """Do nothing."""


@app.task(ignore_result=True)
def nap() -> None:
    """Wait, as a node of `bench.graphs` does."""
    time.sleep(0.2)


@app.task
def link(*_: object) -> None:
    """Do nothing, as a part of a canvas: it takes what the part before it gave."""
