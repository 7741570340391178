"""An operator revokes the task of a node, as from Flower: the node ends, and nothing waits for ever."""

from __future__ import annotations

import pytest

from runner import Status
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def revoke(site, run, **options):
    """Revoke the first node of a run, once its workers have heard of it."""
    task_id = f"{run.id}.a.1.1"
    site.control.revoke(task_id, **options)

    def heard():
        answers = site.control.inspect(timeout=1).revoked() or {}
        return answers and all(task_id in ids for ids in answers.values())

    wait_until(heard, "the workers know")


def failed_for(run):
    result = run.wait(60)
    assert result.status is Status.FAILED
    assert "revoked" in str(result.results["a"].result)


@pytest.mark.parametrize("pool", ["threads", "prefork", "async"])
def test_a_node_that_is_ready_ends_when_its_task_is_revoked(empty_site, pool):
    """Behind another one, which goes on; the run says why it failed, and a retry of it runs the node."""
    empty_site.ready(1, pool=pool, slots=1)
    first = empty_site.client.start("gated", "go")
    wait_until(lambda: empty_site.starts(first), "the slot is taken")
    second = empty_site.client.start("gated", "go")
    revoke(empty_site, second)
    empty_site.open_gate(first)
    failed_for(second)
    assert first.wait(60).status is Status.COMPLETED
    assert empty_site.starts(second) == []
    empty_site.open_gate(second)
    assert second.retry() == ["a"]
    assert second.wait(60).status is Status.COMPLETED


def test_a_node_that_runs_ends_when_its_task_is_terminated(empty_site):
    """With the default signal, which ends its child; the control: one of the run beside goes on."""
    empty_site.ready(1, pool="prefork", slots=2)
    runs = [empty_site.client.start("gated", "go") for _ in range(2)]
    for run in runs:
        wait_until(lambda run=run: empty_site.starts(run), "it runs")
    revoke(empty_site, runs[0], terminate=True)
    failed_for(runs[0])
    empty_site.open_gate(runs[1])
    assert runs[1].wait(60).status is Status.COMPLETED
