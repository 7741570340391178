"""The pool `async`: nodes that wait hold no thread, and all else is as on a pool of threads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from celery import Celery

from runner import Status
from runner.settings import as_broker
from runner.store.redis.workers import WorkerRegistry
from tests.celery.workers import MARGIN
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.async_graphs"}
SLOTS = 300
MOST_THREADS = 60
"""Far fewer than slots: carriers, the loop, and what a worker has beside its nodes."""


@pytest.fixture
def worker(empty_site):
    """A worker with many slots."""
    worker = empty_site.add("async", slots=SLOTS, **GRAPHS)
    worker.wait_ready()
    return worker


def start(site, graph, count=1):
    """Start runs, and wait until the nodes of all of them run."""
    runs = [site.client.start(graph, "go") for _ in range(count)]
    name = "blocking" if graph == "blocks" else "waiting"
    ids = {run.id.encode() for run in runs}
    wait_until(lambda: ids <= site.redis.smembers(name), f"{count} nodes run", seconds=150)
    return runs


def test_nodes_that_wait_hold_no_thread(empty_site, worker):
    """Every slot waits at once, on few threads; the worker's list and Celery's say how many slots it has."""
    runs = start(empty_site, "waits", SLOTS)

    assert len(list(Path(f"/proc/{worker.pid}/task").iterdir())) < MOST_THREADS
    (stats,) = empty_site.control.inspect(limit=1).stats().values()
    assert stats["pool"]["max-concurrency"] == SLOTS
    (listed,) = WorkerRegistry(empty_site.url).all()
    assert (listed.pool, listed.slots) == ("async", SLOTS)
    (active,) = empty_site.control.inspect(limit=1).active().values()
    assert len(active) == SLOTS

    empty_site.redis.set("gate", 1)
    assert {run.wait(60).status for run in runs} == {Status.COMPLETED}


def test_nodes_that_block_delay_no_others(empty_site, worker):
    """They run on other threads, each with its own task as the current one."""
    blocked = start(empty_site, "blocks", 30)
    (waiting,) = start(empty_site, "cancelled")
    waiting.cancel("enough")
    assert waiting.wait(60).status is Status.CANCELLED
    with Celery("sender", broker=as_broker(empty_site.url), set_as_current=False) as sender:
        message = {"graph": "times_out", "task": "go"}
        sender.send_task("runner.start", kwargs=message, queue="runner")
    wait_until(
        lambda: any(
            row.graph_id == "times_out" and row.status is Status.FAILED
            for row in empty_site.client.runs()
        ),
        "a Celery task ran, and its node timed out",
    )

    empty_site.redis.set("gate", 1)
    for run in blocked:
        result = run.wait(60)
        assert result.status is Status.COMPLETED
        assert result.results["a"].output == [f"{run.id}.a.1.1"] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_worker_that_stops_returns_the_nodes_that_wait(empty_site, number):
    """After the grace others run them, without waiting for a lease; the worker has gone by itself."""
    settings = {**GRAPHS, "RUNNER_LEASE": "300", "RUNNER_SHUTDOWN_GRACE": "1"}
    worker = empty_site.add("async", slots=SLOTS, **settings)
    worker.wait_ready()
    runs = start(empty_site, "waits", 50)
    os.kill(worker.pid, number)
    wait_until(lambda: not worker.alive, "the worker has gone by itself", seconds=60)

    empty_site.redis.set("gate", 1)
    empty_site.add("async", slots=SLOTS, **settings).wait_ready()
    assert {run.wait(MARGIN).status for run in runs} == {Status.COMPLETED}
    assert "node.lost" not in {event.kind for run in runs for event in run.events()}
