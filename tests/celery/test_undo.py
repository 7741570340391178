"""Undos on real workers, one of which is killed in the middle of one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from runner import Status
from tests.celery.workers import MARGIN, RECOVERY
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.saga_graphs"}


@pytest.mark.parametrize("pool", ["threads", pytest.param("prefork", marks=pytest.mark.full)])
def test_a_worker_killed_in_an_undo_costs_time_only(empty_site, pool):
    """Another worker undoes it again under the same key, then the node before; control: not in between."""
    lost = empty_site.add(pool, 1, **GRAPHS)
    lost.wait_ready()
    run = empty_site.client.start("saga", "go")
    wait_until(lambda: empty_site.starts(run), "the undo runs")
    assert run.status is Status.EXECUTING

    lost.kill()
    with suppress(ProcessLookupError):  # the same one, without a pool of processes
        os.kill(int(empty_site.starts(run)[0][0]), signal.SIGKILL)
    empty_site.add(pool, 1, **GRAPHS).wait_ready()
    wait_until(lambda: len(empty_site.starts(run)) == 2, "again", seconds=RECOVERY + MARGIN)
    assert "@undo:book" not in run.result().results
    empty_site.open_gate(run)

    result = run.wait(RECOVERY + MARGIN)
    assert (result.status, result.reason) == (Status.FAILED, 'node "ship" failed')
    assert result.results["@undo:book"].output == ["@undo:book", "book"]
    keys = {key for _, _, key in empty_site.starts(run)}
    assert keys == {f"{run.id}.@undo:charge.1"}
    ended = [event.node for event in run.events() if event.kind == "node.completed"]
    assert ended == ["book", "charge", "@undo:charge", "@undo:book"]
