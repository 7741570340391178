"""What tasks that raise leave behind in their worker."""

from __future__ import annotations

import gc
import pickle
import sys
import traceback

import pytest
from billiard import einfo
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from runner.celery.kombu_fixes import cache_traceback_code

TASKS = 20
LITTLE, MUCH = 500, 3000
"""Pieces of memory that one task leaves behind until Python finds them."""


@pytest.fixture
def plain(monkeypatch):
    """Billiard as it comes; what the test changes in it is taken back."""
    monkeypatch.setattr(einfo.Traceback.Frame, "Code", einfo._Code)


@pytest.fixture
def trace():
    """Run a task that ends as the node of a question does, as a worker runs it."""
    app = Celery("ends", set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="waits")
    def waits():
        raise Ignore

    run = build_tracer("waits", waits, app=app)
    yield lambda: run("id", (), {}, {"id": "id"})
    app.close()


def left_by(trace) -> float:
    trace()
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        for _ in range(TASKS):
            trace()
        return (sys.getallocatedblocks() - before) / TASKS
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_node_that_waits_leaves_little_behind(plain, trace):
    """Its traceback shares what it says of the code; without that it keeps a copy of all of it."""
    assert left_by(trace) > MUCH

    cache_traceback_code()
    cache_traceback_code()

    assert left_by(trace) < LITTLE


def test_a_traceback_says_what_it_said(plain):
    """Shared or not, and on the way to another process, it is printed alike."""

    def printed() -> tuple[str, str]:
        try:
            {}["a"]
        except KeyError:
            info = einfo.ExceptionInfo()
        sent = pickle.loads(pickle.dumps(info))  # noqa: S301 - our own
        return info.traceback, "".join(traceback.format_tb(sent.tb))

    before = printed()
    cache_traceback_code()

    assert printed() == before
    assert printed() == before
    assert "KeyError" in before[0]
