"""An error that only the process of its node can load fails the node, and nothing else."""

from __future__ import annotations

import pytest

from runner import Status

pytestmark = pytest.mark.slow


def test_no_error_of_a_node_ends_the_worker(empty_site):
    """The one child goes on after each of them, also where the node is tried again."""
    worker = empty_site.add("prefork", slots=1, RUNNER_GRAPHS="tests.celery.foreign")
    worker.wait_ready()
    for kind in ("module", "oserror", "memory"):
        for graph_id in ("explodes", "explodes-twice"):
            run = empty_site.client.start(graph_id, kind)
            assert run.wait(20).status is Status.FAILED, (graph_id, kind)
    log = worker.output()
    assert "raised unexpected: Odd('odd')" in log
    assert "CRITICAL" not in log
    # Each has the frames of its node alone, also an error that isn't raised as it is.
    assert 'raise MemoryError("no room")' in log
    assert "celery/tasks.py" not in log
