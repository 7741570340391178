"""The testing strategy of the second seed on real workers, killed while their questions wait.

All runs are started on one worker, which is killed when every one of them waits; another worker,
a process that never saw them, takes the answers.
"""

from __future__ import annotations

import json

import pytest

from runner import Status
from tests.waiting import wait_until

pytestmark = pytest.mark.full

RUNS = {
    "kept": "agent_basic",
    "by_message": "waiting",
}


@pytest.fixture(scope="module")
def interrupted(databases):
    """Give the runs, and the result of each as it was when its worker was killed."""
    site = next(databases)
    site.ready(1)
    runs = {
        name: site.client.start(graph, "What is the weather?") for name, graph in RUNS.items()
    }
    before = {name: run.wait(60) for name, run in runs.items()}
    site.workers[0].kill()
    site.send(
        json.dumps(
            {"v": 1, "interrupt_id": before["by_message"].interrupts[0].id, "response": "yes"}
        )
    )
    alone = site.client.run(runs["by_message"].id)
    # Control: with nobody there nothing happens, and nothing is lost.
    with pytest.raises(AssertionError):
        wait_until(lambda: alone.status is not Status.INTERRUPTED, "it goes on", seconds=1)
    site.ready(1)
    yield runs, before
    site.end()


def test_an_answer_waits_for_a_worker(interrupted):
    """An answer that was sent while no worker lived is taken by the next one: it was in its stream."""
    runs, before = interrupted
    assert sorted(before["by_message"].execution_order) == ["a", "d", "e"]

    wait_until(lambda: runs["by_message"].status is Status.COMPLETED, "the run has its answer")

    assert sorted(runs["by_message"].result().execution_order) == ["a", "b", "d", "e", "f"]
