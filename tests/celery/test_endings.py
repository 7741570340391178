"""A task of another app is called when a run has ended, whatever happens to the workers meanwhile."""

from __future__ import annotations

import json

import pytest

from runner import Status
from tests.celery.workers import BOOT, MARGIN, RECOVERY
from tests.waiting import wait_until

TASK = "shop.done@shop"


SETTINGS = {
    "RUNNER_ON_END": TASK,
    "RUNNER_GRAPHS": "tests.celery.graphs,tests.celery.deadly",
}


@pytest.fixture(scope="module")
def shops(databases):
    """A site with the worker of somebody else's app, which consumes only its own queue."""
    site = next(databases)
    worker = site.add(slots=1, app="tests.celery.ledger:app")
    wait_until(lambda: "ready." in worker.output(), "the shop's worker is ready", seconds=BOOT)
    site.workers.remove(worker)
    yield site
    worker.end()
    site.end()


@pytest.fixture
def shop(shops):
    """Two workers of ours beside that one."""
    shops.ready(2, slots=2, **SETTINGS)
    return shops


def calls_of(site, run_id, count=1):
    """Wait until the task was called so many times, and give what it was told."""
    wait_until(
        lambda: site.redis.llen(f"told:{run_id}") >= count,
        "the task is called",
        seconds=RECOVERY + MARGIN,
    )
    return [json.loads(message) for message in site.redis.lrange(f"told:{run_id}", 0, -1)]


def unreported(site, run_id):
    return site.client.engine.store.peek(run_id).unreported


@pytest.mark.slow
def test_a_task_of_another_app_is_called_when_a_run_ends(shop):
    """Runs that complete, fail or are cancelled tell so once, with their output where it is small."""
    runs = [
        shop.client.start(graph, "go", on_end=TASK)
        for graph in ("chain", "failure", "question")
    ]
    assert runs[2].wait(60).status is Status.INTERRUPTED
    runs[2].cancel()
    expected = [
        ("chain", "completed", ["c", "b"]),
        ("failure", "failed", None),
        ("question", "cancelled", None),
    ]
    for run, (graph, status, output) in zip(runs, expected, strict=True):
        call = {"graph": graph, "status": status, "output": output, "tags": {}}
        assert calls_of(shop, run.id) == [[f"{run.id}.end", call]]
        wait_until(lambda run_id=run.id: not unreported(shop, run_id), "the call is noted")

    message = {
        "v": 1,
        "graph": "chain",
        "task": 1,
        "on_end": TASK,
        "reply_to": "runner:replies:end",
    }
    shop.send(json.dumps(message), "runner:starts")
    run_id = shop.receipt("runner:replies:end")["run_id"]
    assert calls_of(shop, run_id)[0][1]["status"] == "completed"

    message = {**message, "on_end": "shop.refund@shop"}
    shop.send(json.dumps(message), "runner:starts")
    refused = shop.receipt("runner:replies:end")
    assert refused["status"] == "rejected"
    assert "on_end names 'shop.refund@shop', which messages may not call" in refused["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "calls"), [("before", 1), ("after", 2)])
def test_a_worker_killed_while_it_tells_is_replaced(shop, moment, calls):
    """A worker that dies between the end and the call, or before it noted the call, leaves it to another."""
    run = shop.client.start("gated", "go", on_end=TASK)
    shop.redis.set(f"die:{moment}:{run.id}", 1)
    shop.open_gate(run)

    made = calls_of(shop, run.id, calls)

    assert [call[0] for call in made] == [f"{run.id}.end"] * calls
    wait_until(lambda: not unreported(shop, run.id), "the call is noted")
    assert shop.redis.get(f"died:{run.id}") == b"1"
    assert [worker.alive for worker in shop.workers].count(False) == 1
