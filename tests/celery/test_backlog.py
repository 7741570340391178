"""A backlog as each door shows it, with a real worker whose slots are all busy."""

from __future__ import annotations

import json
import time

import pytest
from fastapi.testclient import TestClient

from runner import Status
from runner.approvals.rules import Principal
from runner.operations.backlog import read_backlog, with_waits
from runner.operations.doctor import FAIL, PASS, WARN, examine, read_facts
from runner.operations.installation import Installation
from runner.operations.views import read_run, read_workers
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.settings import Settings
from tests.waiting import wait_until

SLOTS, RUNS = 40, 400
QUEUE = "runner/gated"


@pytest.fixture
def crowd(empty_site, monkeypatch):
    """400 runs on 40 slots, whose nodes end when the test says so."""
    monkeypatch.setenv("RUNNER_REDIS_URL", empty_site.url)
    empty_site.add("threads", slots=SLOTS).wait_ready()
    runs = [empty_site.client.start("gated", None) for _ in range(RUNS)]
    wait_until(
        lambda: sum(empty_site.redis.exists(f"started:{run.id}") for run in runs) == SLOTS,
        "every slot is busy",
    )
    return empty_site


@pytest.mark.full
def test_the_401st_run_says_why_it_waits(crowd):
    """Within two seconds after its start: how many are before it; a node rung again counts once.

    A check fails while a node waits too long, and names queue and number; it passes with a longer bound.
    """
    installation = Installation(Settings(redis_url=crowd.url))
    began = time.monotonic()
    last = crowd.client.start("gated", None)
    node, *_ = with_waits(installation, read_run(installation.store, last.id)).nodes
    took = time.monotonic() - began
    key = f"{QUEUE}\x06\x163"
    length = crowd.redis.llen(key)
    wait_until(lambda: crowd.redis.llen(key) > length, "doorbells are rung again")
    backlog = read_backlog(installation)
    (row,) = (row for row in backlog.queues if row.queue == QUEUE)

    assert (node.status, node.progress) == ("ready", "behind 360 others, no free slot")
    assert took < 2
    assert (row.ready, row.graphs, row.slots) == (RUNS + 1 - SLOTS, ("gated",), SLOTS)
    assert backlog.ready >= row.ready
    assert 0 < row.oldest_seconds < 60

    person = Person(Principal("ola"), frozenset(GRANTS))
    app = create_app(Settings(), auth=lambda request: person)
    http = TestClient(app, base_url="https://runner.example")
    of_api = http.get("/v1/backlog").json()
    pages = {path: http.get(path).text for path in ("/", "/workers", "/graphs/gated")}
    run_page = http.get(f"/runs/{last.id}?tab=nodes").text

    assert of_api["ready"] == backlog.ready
    assert "361 nodes wait for a worker" in pages["/"]
    assert all(
        '<td class="right" data-label="waiting">361</td>' in text for text in pages.values()
    )
    assert "behind 360 others, no free slot" in run_page
    assert "behind 360 others" in json.dumps(http.get(f"/v1/runs/{last.id}").json())

    for bound, result in ((0, FAIL), (3600, PASS)):
        checks = examine(read_facts(Settings(redis_url=crowd.url, max_wait=bound)))
        (check,) = [check for check in checks if check.name == "backlog"]
        assert check.result == result
        assert f"{QUEUE}: 361 waiting" in check.detail


@pytest.mark.slow
def test_a_queue_that_remote_control_cancelled_is_served_by_no_worker(empty_site):
    """Doctor, list, backlog and run tell the truth after the next heartbeat, and after `add_consumer`."""
    empty_site.add(slots=2).wait_ready()
    settings = Settings(redis_url=empty_site.url)
    installation = Installation(settings)

    def served():
        (worker,) = read_workers(installation)
        return QUEUE in worker.queues

    def told(run):
        (check,) = [each for each in examine(read_facts(settings)) if each.name == "queues"]
        (row,) = read_backlog(installation, ["gated"]).queues
        node, *_ = with_waits(installation, read_run(installation.store, run.id)).nodes
        return check.result, row.slots, node.progress

    assert served()
    empty_site.control.cancel_consumer(QUEUE)
    wait_until(lambda: not served(), "the heartbeat says that the queue is not consumed")
    run = empty_site.client.start("gated", None)
    assert told(run) == (FAIL, 0, f"next, no worker serves {QUEUE}")

    empty_site.control.add_consumer(QUEUE)
    wait_until(lambda: empty_site.redis.exists(f"started:{run.id}"), "the node runs")
    wait_until(served, "the heartbeat says that the queue is consumed again")
    assert told(run) == (PASS, 2, "")
    empty_site.open_gate(run)
    assert run.wait(60).status is Status.COMPLETED


@pytest.mark.slow
def test_what_remote_control_changes_in_a_worker_is_told(empty_site):
    """Processes, a rate and events, as Flower's buttons change them; and doctor passes when they are back."""
    worker = empty_site.add("prefork", slots=1, app="tests.celery.other_teams_app:app")
    worker.wait_ready()
    settings, control = Settings(redis_url=empty_site.url), empty_site.control
    installation = Installation(settings)

    def told(*expected):
        (view,) = read_workers(installation)
        return (view.slots, view.rate, view.events) == expected

    def problems():
        return {
            (each.name, each.result) for each in examine(read_facts(settings)) if each.fix
        } & {("slots", WARN), ("rate limit", WARN), ("events", WARN)}

    wait_until(lambda: told(1, "", False), "the heartbeat tells how the worker has started")
    assert problems() == {("events", WARN)}

    control.pool_shrink(1)
    control.rate_limit("runner.node", "1/h")
    control.enable_events()
    wait_until(lambda: told(0, "1/h", True), "the heartbeat tells what has changed")
    wait_until(lambda: "nodes.slowed: 1/h" in worker.output(), "the log tells the rate")
    assert problems() == {("slots", WARN), ("rate limit", WARN)}

    control.pool_grow(2)
    control.rate_limit("runner.node", 0)
    wait_until(lambda: told(2, "", True), "the heartbeat tells that they are back")
    assert not problems()
    assert empty_site.client.start("chain", "go").wait(60).status is Status.COMPLETED
