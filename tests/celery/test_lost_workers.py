"""Workers that die while they run nodes: who they were, and who says so."""

from __future__ import annotations

import socket

import pytest

from runner import Status
from runner.operations.views import read_run
from tests.celery.workers import MARGIN, RECOVERY
from tests.waiting import wait_until


def named(worker) -> str:
    return f"{worker.log.stem}@{socket.gethostname()}"


@pytest.mark.slow
def test_a_lost_worker_is_named_by_events_and_log(empty_site):
    """The survivor warns of worker, node and run; the events name both; control: nothing before."""
    lost, survivor = empty_site.add(slots=1), empty_site.add(slots=1, queues="other")
    empty_site.ready(2)
    run = empty_site.client.start("gated", "go")
    wait_until(lambda: empty_site.starts(run), "the node runs")
    assert read_run(empty_site.client.engine.store, run.id).nodes[0].worker == named(lost)
    assert "node.lost" not in survivor.output()

    lost.kill()
    wait_until(lambda: "node.lost" in survivor.output(), "it warns", seconds=RECOVERY + MARGIN)
    empty_site.add(slots=1).wait_ready()
    empty_site.open_gate(run)

    assert run.wait(RECOVERY + MARGIN).status is Status.COMPLETED
    (line,) = [line for line in survivor.output().splitlines() if "node.lost" in line]
    assert "WARNING" in line
    assert f"worker '{named(lost)}'" in line
    assert f"gated/a of run {run.id}" in line
    other = named(empty_site.workers[-1])
    of_node = [event for event in run.events() if event.kind in {"node.started", "node.lost"}]
    assert [(event.kind, event.data) for event in of_node if event.node == "a"] == [
        ("node.started", {"worker": named(lost)}),
        ("node.lost", {"worker": named(lost)}),
        ("node.started", {"worker": other}),
    ]
    assert {node.worker for node in read_run(empty_site.client.engine.store, run.id).nodes} == {
        other
    }


@pytest.mark.slow
def test_messages_of_a_killed_worker_do_not_stay_unacknowledged(empty_site):
    """An app's broker keeps them for its visibility timeout; then the next worker drops them as stale."""
    app = "tests.celery.short_visibility:app"
    lost = empty_site.add(slots=2, app=app)
    lost.wait_ready()
    runs = [empty_site.client.start("gated", "go") for _ in range(4)]
    wait_until(lambda: sum(bool(empty_site.starts(run)) for run in runs) == 2, "both slots run")
    lost.kill()
    assert empty_site.redis.hlen("unacked") >= 2
    empty_site.add(slots=4, app=app).wait_ready()
    for run in runs:
        empty_site.open_gate(run)

    assert {run.wait(RECOVERY + MARGIN).status for run in runs} == {Status.COMPLETED}
    wait_until(lambda: not empty_site.redis.hlen("unacked"), "they are delivered again")
    wait_until(lambda: not empty_site.redis.llen("runner/gated"), "and dropped")
    assert [len(empty_site.starts(run)) for run in runs].count(2) == 2
