"""Children of a prefork pool that begin the next node themselves: for Celery each is a task as any other."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest
from celery.utils.collections import LimitedSet
from celery.worker import state

from runner import Status
from runner.celery.inline_continuation import BUDGET, MAX_NODES, ContinuingChild, Permission
from tests.celery.staying_graphs import LENGTH
from tests.celery.test_stay import GRAPHS, LONG, begun, busy, open_gate, ready, starts
from tests.celery.workers import MARGIN, RECOVERY
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(databases):
    """A site with one child."""
    site = next(databases)
    site.add("prefork", slots=1, **GRAPHS)
    yield ready(site)
    site.end()


def inspected(site, method):
    (reply,) = getattr(site.control.inspect(limit=1, timeout=MARGIN), method)().values()
    return reply


def given_to_children(site):
    """How many tasks the main process has given to its children."""
    return inspected(site, "stats")["pool"]["writes"]["total"]


def run_line(site):
    """Run the line to its end, and return the run with how many of its tasks a child was given."""
    before = given_to_children(site)
    run = site.client.start("line", "go")
    open_gate(site, run, "n0")
    assert run.wait(60).status is Status.COMPLETED
    return run, given_to_children(site) - before


def test_a_row_is_given_to_a_child_once(place):
    """The main process gives a child the first node of a row; control: all, once a node was revoked."""
    # On a slow machine a row ends earlier, by its time.
    assert -(-LENGTH // MAX_NODES) <= run_line(place)[1] <= LENGTH // 2

    place.control.revoke("some.node.1.1")
    wait_until(lambda: inspected(place, "revoked"), "the worker has heard of it")
    assert run_line(place)[1] == LENGTH


def test_a_child_that_dies_loses_no_node_that_it_has_begun(place):
    """Killed in its second node, the child is replaced, its task counts as lost, and the node runs again."""
    run = busy(place)
    os.kill(int(starts(place, run, "b")[0][0]), signal.SIGKILL)
    begun(place, run, "b", times=2)
    open_gate(place, run, "b")
    result = run.wait(RECOVERY + MARGIN)

    assert result.status is Status.COMPLETED
    assert [result.results[node].attempts for node in "abc"] == [1, 2, 1]
    assert "WorkerLostError" in place.workers[0].output()


def test_a_child_ends_after_as_many_nodes_as_celery_says(empty_site):
    """With `--max-tasks-per-child` it begins no node beyond its last, and none is lost."""
    limit = LENGTH - 5
    empty_site.add("prefork", slots=1, options=["--max-tasks-per-child", str(limit)], **LONG)
    run, _ = run_line(ready(empty_site))

    lines = [starts(empty_site, run, f"n{number}") for number in range(LENGTH)]
    assert {len(each) for each in lines} == {1}
    nodes = Counter(each[0][0] for each in lines)
    assert len(nodes) == 2
    assert max(nodes.values()) <= limit


def test_celery_controls_what_a_child_has_begun(empty_site):
    """The node is active in its child, which a smaller pool keeps; terminated, it runs again in another."""
    empty_site.add("prefork", slots=2, **GRAPHS)
    run = busy(ready(empty_site, 2))
    pid, task_id = int(starts(empty_site, run, "b")[0][0]), f"{run.id}.b.1.1"
    wait_until(
        lambda: (
            [(each["id"], each["worker_pid"]) for each in inspected(empty_site, "active")]
            == [(task_id, pid)]
        ),
        "it is active, alone",
    )
    empty_site.control.pool_shrink(1, reply=True, timeout=MARGIN, limit=1)
    wait_until(
        lambda: inspected(empty_site, "stats")["pool"]["processes"] == [pid],
        "one child is left",
    )

    empty_site.control.terminate(task_id, signal="SIGKILL")
    begun(empty_site, run, "b", times=2)
    assert {int(line[0]) for line in starts(empty_site, run, "b")} > {pid}
    open_gate(empty_site, run, "b")
    result = run.wait(RECOVERY + MARGIN)
    assert result.status is Status.COMPLETED
    assert [result.results[node].attempts for node in "abc"] == [1, 2, 1]


@pytest.mark.parametrize(
    ("values", "continues"),
    [
        ({}, True),
        ({"lasts": -1}, False),  # the worker's event loop has not turned for long
        (
            {"connection": 2},
            False,
        ),  # the worker has connected again since it gave the child its job
        ({"maxtasks": 3}, False),
        ({"max_memory_per_child": 1}, False),
        ({"took": 4, "timelimit": (10, None)}, True),
        ({"took": 6, "timelimit": (10, None)}, False),
        ({"took": 6, "timelimit": (None, 10)}, False),
    ],
)
def test_a_child_continues_only_where_its_worker_would_know(values, continues):
    """It must be sure that the worker lives, knows its job, and lets no limit end the next node."""
    now = time.monotonic()
    child = object.__new__(ContinuingChild)
    child._may_continue = [now + values.get("lasts", 60), values.get("connection", 1), 0]
    child.max_memory_per_child = values.get("max_memory_per_child")
    child.maxtasks, child._count, child._began = (
        values.get("maxtasks"),
        3,
        now - values.get("took", 0),
    )
    headers = {BUDGET: (3, now + 60, 1), "timelimit": values.get("timelimit")}

    assert child._is_free(headers) is continues


@pytest.mark.parametrize(
    ("revoked", "is_noticed"), [("run.node.1.1", True), ("a-task-of-a-user", False)]
)
def test_a_revoked_node_is_noticed_among_as_many_as_celery_remembers(
    monkeypatch, revoked, is_noticed
):
    """Each revocation then removes an older one, so their number says nothing."""
    ids = LimitedSet(maxlen=3)
    monkeypatch.setattr(state, "revoked", ids)
    permission = Permission()
    for other in ("one", "two", "three"):
        ids.add(other)
    assert not permission._revokes_nodes()

    ids.add(revoked)

    assert len(ids) == 3
    assert permission._revokes_nodes() is is_noticed
    ids.add("another")
    assert permission._revokes_nodes() is is_noticed
