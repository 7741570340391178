"""Celery as it comes: a task that does nothing, default settings, the same Redis."""

from __future__ import annotations

import os

from celery import Celery

# Chords need stored results; the tasks that are measured alone ignore theirs.
app = Celery("bare", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_BACKEND"])


@app.task(ignore_result=True)
def noop() -> None:
    """Do nothing."""


@app.task
def link(*_: object) -> None:
    """Do nothing, as a part of a canvas: it takes what the part before it gave."""
