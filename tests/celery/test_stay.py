"""Nodes that stay on the slot of the one before: each is a Celery task as any other, and none is lost."""

from __future__ import annotations

import os
import signal

import pytest
from celery.events.state import State

from runner import Status
from runner.celery.inline_continuation import MAX_NODES
from tests.celery.conftest import POOLS
from tests.celery.staying_graphs import LENGTH
from tests.celery.test_monitoring import following
from tests.celery.workers import MARGIN, RECOVERY
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.staying_graphs"}

LONG = {**GRAPHS, "RUNNER_LEASE": "300"}
"""With this lease, what takes less than MARGIN did not wait for one to end."""


@pytest.fixture(scope="module")
def staying_sites(databases):
    sites = {pool: next(databases) for pool in POOLS}
    for pool, site in sites.items():
        site.add(pool, slots=1 if pool == "solo" else 2, **LONG)
    for pool, site in sites.items():
        ready(site, 2 if pool == "prefork" else 1)
    yield sites
    for site in sites.values():
        site.end()


@pytest.fixture(params=["threads", "prefork", "async"])
def place(request, staying_sites):
    """A site with one worker; the test runs once on each pool that runs nodes beside its main thread."""
    return staying_sites[request.param]


def ready(site, children=1):
    """Wait for a worker, and until so many processes have run a node: the first of a child takes long."""
    site.workers[-1].wait_ready()
    before = site.redis.scard("processes")
    while site.redis.scard("processes") < before + children:
        assert site.client.start("short", "go").wait(60).status is Status.COMPLETED
    return site


KINDS = ("task-received", "task-started", "task-succeeded")


class Recording(State):
    """Celery's state of tasks, with the kind and the task of each event in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def event(self, event):
        self.seen.append((event["type"], event.get("uuid")))
        return super().event(event)


def tasks(site, run=None):
    """The nodes that ran, of one run or of all, with how their tasks came."""
    lines = [line.decode().split() for line in site.redis.lrange("tasks", 0, -1)]
    return [line[1:] if run else line for line in lines if not run or line[0] == run.id]


def open_gate(site, run, node):
    site.redis.set(f"gate:{run.id}:{node}", 1)


def starts(site, run, node):
    """The process, the attempt and the thread of each start of a node."""
    return [
        line.decode().split() for line in site.redis.lrange(f"started:{run.id}:{node}", 0, -1)
    ]


def begun(site, run, node, times=1):
    wait_until(
        lambda: len(starts(site, run, node)) == times, f"{node} has started {times} times"
    )


def busy(site, graph="gates"):
    """A run whose second node stays, and waits at its gate."""
    run = site.client.start(graph, "go")
    begun(site, run, "a")
    open_gate(site, run, "a")
    begun(site, run, "b")
    assert tasks(site, run)[-1] == ["b", "stayed"]
    return run


def killed_in_a_row(site):
    """A run whose worker was killed while a node that stayed ran on it."""
    run = busy(site)
    pid = int(starts(site, run, "b")[0][0])
    next(worker for worker in site.workers if worker.pid == pid).kill()
    return run


def stopped_between(site, worker):
    """A run whose worker was told to stop while the first node ran, and has ended after it."""
    run = site.client.start("gates", "go")
    begun(site, run, "a")
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: "worker.stopping" in worker.output(), "the worker has noticed")
    open_gate(site, run, "a")
    wait_until(lambda: not worker.alive, "the worker has ended")
    return run


def on(site, pool):
    return site.workers[0].log.stem.startswith(pool)


def revoked(site, task_id):
    return any(
        task_id in ids for ids in (site.control.inspect(limit=1).revoked() or {}).values()
    )


def status(site, run, node):
    record = site.client.engine.store.read(run.id).nodes.get(node)
    return record and record.status


def rows():
    """How the nodes of a long line come, one after the other, while all slots are in use."""
    return ["stayed" if number % MAX_NODES else "fetched" for number in range(LENGTH)]


@pytest.mark.parametrize("place", POOLS, indirect=True)
def test_a_row_has_eight_nodes(place):
    """Eight nodes run on the thread of one slot; the next comes from the queue, and begins another row."""
    other = None if on(place, "solo") else busy(place)
    run = place.client.start("line", "go")
    begun(place, run, "n0")
    if other is not None:
        wait_until(
            lambda: place.control.inspect(limit=1).ping(),
            "the worker's event loop has turned",
        )
    open_gate(place, run, "n0")
    result = run.wait(60)
    if other is not None:
        open_gate(place, other, "b")
        assert other.wait(60).status is Status.COMPLETED

    assert result.status is Status.COMPLETED
    assert [came for _, came in tasks(place, run)] == rows()
    assert {each.attempts for each in result.results.values()} == {1}
    threads = [starts(place, run, f"n{number}")[0][2] for number in range(LENGTH)]
    if on(place, "async"):
        return  # nodes that block run on any thread
    assert {len(set(threads[at : at + MAX_NODES])) for at in range(0, LENGTH, MAX_NODES)} == {1}


@pytest.mark.parametrize("pool", ["threads", "prefork", "async"])
def test_a_row_goes_on_while_a_slot_is_free(staying_sites, pool):
    """Nothing waits in the queue then; `test_a_row_has_eight_nodes` is the control, with no slot free."""
    site = staying_sites[pool]
    run = site.client.start("line", "go")
    open_gate(site, run, "n0")

    assert run.wait(60).status is Status.COMPLETED
    assert [came for _, came in tasks(site, run)] == ["fetched"] + ["stayed"] * (LENGTH - 1)


def test_a_pool_of_the_user_s_gets_every_node(empty_site):
    """It may prepare a thread for each task, so no node passes it by; rows go on."""
    pool = "tests.celery.staying_graphs:ListingPool"
    empty_site.add("custom", slots=2, CELERY_CUSTOM_WORKER_POOL=pool, **GRAPHS)
    ready(empty_site)
    run = empty_site.client.start("gates", "go")
    for node in "ab":
        open_gate(empty_site, run, node)
    assert run.wait(60).status is Status.COMPLETED

    applied = [task.decode() for task in empty_site.redis.lrange("applied", 0, -1)]
    ids = [f"{run.id}.{node}.1.1" for node in "abc"]
    assert [task for task in applied if run.id in task] == ids
    assert [came for _, came in tasks(empty_site, run)] == ["fetched", "stayed", "stayed"]


def test_each_node_is_a_task_of_its_own_with_all_its_events(place):
    """A monitor, and the log, show each node received, started and done, in order, after the task before."""
    with following(place, Recording) as state:
        run = place.client.start("line", "go")
        open_gate(place, run, "n0")
        assert run.wait(60).status is Status.COMPLETED
        ids = [f"{run.id}.n{number}.1.1" for number in range(LENGTH)]
        wait_until(lambda: ("task-succeeded", ids[-1]) in state.seen, "the last event has come")

        events = [event for event in state.seen if event[1] in ids]
        for first in range(0, LENGTH, MAX_NODES):  # between rows, events of two slots may cross
            row = ids[first : first + MAX_NODES]
            assert [event for event in events if event[1] in row] == [
                (kind, task) for task in row for kind in KINDS
            ]
        shown = [state.tasks[task] for task in ids]
    assert [task.parent_id for task in shown[1:]] == ids[:-1]
    assert {(task.name.partition("/")[0], task.args, task.result) for task in shown} == {
        ("line", "visit=1 attempt=1", "None")
    }
    # Children of a prefork pool log what their tasks return; other pools leave that to the main process.
    lines = [line for line in place.workers[-1].output().splitlines() if f"{run.id}." in line]
    assert {line.rpartition(": ")[2] for line in lines if "succeeded in" in line} <= {"None"}


def signalled(site, run):
    """The nodes of a run for which each of Celery's signals came, in order."""
    kinds = ("received", "prerun", "success", "failure", "postrun")
    lists = {kind: site.redis.lrange(f"signals:{kind}", 0, -1) for kind in kinds}
    return {
        kind: [task.decode().split(".")[1] for task in tasks if run.id in task.decode()]
        for kind, tasks in lists.items()
    }


def test_celery_s_signals_come_for_each_node(place):
    """A tracer or a logger that hangs on them sees each node's task begin and end, with its own id."""
    run = place.client.start("line", "go")
    open_gate(place, run, "n0")
    assert run.wait(60).status is Status.COMPLETED
    names = [f"n{number}" for number in range(LENGTH)]
    everything = dict.fromkeys(("received", "prerun", "success", "postrun"), names)
    wait_until(
        lambda: signalled(place, run) == {**everything, "failure": []},
        "each signal has come once for each node, in order",
    )


def test_a_node_that_fails_in_a_row_fails_as_any_task(place):
    """Its task has the error, in the log, for monitors and for receivers of signals."""
    with following(place) as state:
        run = place.client.start("failing", "go")
        open_gate(place, run, "a")
        result = run.wait(60)
        task_id = f"{run.id}.c.1.1"
        wait_until(
            lambda: task_id in state.tasks and state.tasks[task_id].state == "FAILURE",
            "a monitor knows",
        )
        shown = {node: state.tasks[f"{run.id}.{node}.1.1"].state for node in "ab"}
    assert (result.status, shown) == (Status.FAILED, {"a": "SUCCESS", "b": "SUCCESS"})
    assert task_id in str(result.results["c"].error)
    assert tasks(place, run)[-1] == ["c", "stayed"]
    assert f"failing/c[{task_id}] raised" in place.workers[-1].output()
    wait_until(lambda: signalled(place, run)["postrun"] == list("abc"), "the last signal came")
    assert signalled(place, run)["failure"] == ["c"]


def test_a_node_that_stays_is_active_under_its_own_id(place):
    """Celery's `inspect` shows the task that runs, since when, and no longer the one before it."""
    if on(place, "solo"):
        pytest.skip("its only thread answers when the node has ended")
    run = place.client.start("gates", "go")

    def active():
        (shown,) = place.control.inspect(limit=1, timeout=MARGIN).active().values()
        return [each for each in shown if run.id in each["id"]]

    shown = []
    for node in "ab":
        begun(place, run, node)
        shown += active()
        open_gate(place, run, node)
    assert run.wait(60).status is Status.COMPLETED
    assert [each["id"] for each in shown] == [f"{run.id}.{node}.1.1" for node in "ab"]
    assert [each["name"] for each in shown] == ["gates/a", "gates/b"]
    assert shown[0]["time_start"] < shown[1]["time_start"]
    wait_until(lambda: not active(), "nothing runs any more")


def test_a_rate_limit_ends_rows(place):
    """Set while a node runs, it holds for the next one, which comes from the queue; nothing is lost."""
    if on(place, "solo"):
        pytest.skip("its only thread hears of it when the node has ended")
    run = busy(place)
    place.control.rate_limit("runner.node", "50/s", reply=True, timeout=MARGIN, limit=1)
    open_gate(place, run, "b")
    assert run.wait(RECOVERY + MARGIN).status is Status.COMPLETED
    place.control.rate_limit("runner.node", 0, reply=True, timeout=MARGIN, limit=1)

    assert tasks(place, run) == [["a", "fetched"], ["b", "stayed"], ["c", "fetched"]]
    assert len(starts(place, run, "c")) == 1


def test_nodes_of_a_fan_are_taken_from_the_queue_with_a_settle(place):
    """Each begins where one ends; for monitors it is a task that the one before the fan has rung, as ever."""
    with following(place, Recording) as state:
        run = place.client.start("wide", "go")
        assert run.wait(60).status is Status.COMPLETED
        ids = [f"{run.id}.w{number}.1.1" for number in range(LENGTH)]
        wait_until(
            lambda: all(("task-succeeded", task) in state.seen for task in ids),
            "all events came",
        )
        shown = [state.tasks[task] for task in ids]
    came = dict(tasks(place, run))
    assert len(came) == LENGTH + 1
    assert "stayed" in came.values()
    if on(place, "solo"):
        assert [came[f"w{number}"] for number in range(LENGTH)] == [
            "stayed" if number % MAX_NODES else "fetched" for number in range(1, LENGTH + 1)
        ]
    assert {(task.parent_id, task.args, task.name[:6]) for task in shown} == {
        (f"{run.id}.first.1.1", "visit=1 attempt=1", "wide/w")
    }


def test_the_queue_has_its_turn_after_a_row(staying_sites):
    """What waits in the queue comes before the ninth node of a run that came earlier."""
    site = staying_sites["solo"]
    run = site.client.start("line", "go")
    begun(site, run, "n0")
    other = site.client.start("line", "go")
    open_gate(site, other, "n0")
    open_gate(site, run, "n0")

    assert run.wait(60).status is other.wait(60).status is Status.COMPLETED
    order = [name for name, *_ in tasks(site) if name in {run.id, other.id}]
    assert order[: 2 * MAX_NODES] == [run.id] * MAX_NODES + [other.id] * MAX_NODES


def test_a_worker_fetches_nothing_for_a_slot_in_use(place):
    """A node that stays keeps the delivery of its slot: other messages are left to other workers."""
    runs = [busy(place) for _ in range(1 if on(place, "solo") else 2)]
    if not on(place, "solo"):  # its only thread runs the node
        wait_until(
            lambda: place.control.inspect(limit=1).ping(),
            "the worker has asked for what it wants",
        )
    waits = place.client.start("short", "go")

    (queue,) = place.redis.keys("runner/short*")
    assert place.redis.llen(queue) == 1
    for run in runs:
        open_gate(place, run, "b")
    assert waits.wait(60).status is Status.COMPLETED


def test_a_row_has_one_delivery_of_rabbitmq_and_needs_no_more(empty_site, rabbit):
    """Rows are as long over RabbitMQ; what it delivers again after kill -9 runs nothing twice."""
    empty_site.ready(2, RUNNER_BROKER_URL=rabbit.url, **GRAPHS)
    line = empty_site.client.start("line", "go")
    open_gate(empty_site, line, "n0")
    assert line.wait(60).status is Status.COMPLETED
    assert [came for _, came in tasks(empty_site, line)].count("stayed") == LENGTH - 1

    run = killed_in_a_row(empty_site)
    begun(empty_site, run, "b", times=2)
    open_gate(empty_site, run, "b")
    result = run.wait(RECOVERY + MARGIN)
    assert result.status is Status.COMPLETED
    assert [len(starts(empty_site, run, node)) for node in "abc"] == [1, 2, 1]


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_stops_starts_no_further_node(empty_site, pool):
    """A warm stop ends after the nodes that run; the next one goes to another worker at once."""
    stopping = empty_site.add(pool, slots=1, **LONG)
    ready(empty_site)
    run = stopped_between(empty_site, stopping)
    assert starts(empty_site, run, "b") == []

    empty_site.add(slots=1, **LONG).wait_ready()
    open_gate(empty_site, run, "b")
    result = run.wait(MARGIN)
    assert result.status is Status.COMPLETED
    assert [result.results[node].attempts for node in "abc"] == [1, 1, 1]


def test_a_node_that_a_closing_pool_ignores_is_returned(empty_site):
    """The pool closes after the worker looks, and takes no task any more: the claim is returned."""
    stopping = empty_site.add(
        "prefork", slots=1, app="tests.celery.staying_faults:starts_late", **LONG
    )
    ready(empty_site)
    run = stopped_between(empty_site, stopping)

    assert starts(empty_site, run, "b") == []
    assert status(empty_site, run, "b") is Status.READY


@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_time_limits_hit_a_node_that_stays(empty_site, limit):
    """Celery's limits end it as they end any task."""
    options = ["--soft-time-limit" if limit == "soft" else "--time-limit", "1"]
    # While a child is spawned, a busy machine exceeds the limit by itself.
    app = "tests.chaos.fork_app:app"
    empty_site.add("prefork", slots=1, options=options, app=app, **GRAPHS)
    ready(empty_site)
    run = empty_site.client.start("sleeper", "go")
    open_gate(empty_site, run, "a")
    begun(empty_site, run, "b")
    assert tasks(empty_site, run)[-1] == ["b", "stayed"]

    if limit == "soft":
        assert run.wait(60).results["b"].error.type.endswith("SoftTimeLimitExceeded")
    else:
        begun(empty_site, run, "b", times=2)
        wait_until(
            lambda: f"{run.id}.b.1.1" in empty_site.workers[0].output(),
            "the limit is in the log",
        )
        assert "Hard time limit (1.0s) exceeded" in empty_site.workers[0].output()


def test_a_revoked_node_does_not_start_and_fails(place):
    """Revoked by its id before it starts, it is refused as a fetched one is, and ends with the reason."""
    if on(place, "solo"):
        pytest.skip("its only thread hears of it when the node has ended")
    run = place.client.start("gates", "go")
    begun(place, run, "a")
    task_id = f"{run.id}.b.1.1"
    with following(place) as state:
        place.control.revoke(task_id)
        wait_until(lambda: revoked(place, task_id), "the worker has heard of it")
        open_gate(place, run, "a")
        wait_until(
            lambda: task_id in state.tasks and state.tasks[task_id].state == "REVOKED", "it is"
        )
        result = run.wait(RECOVERY + MARGIN)
        assert result.status is Status.FAILED
        assert "revoked" in str(result.results["b"].result)
        assert starts(place, run, "b") == []


def test_a_claim_that_was_returned_serves_no_later_doorbell(place):
    """Its queue is cancelled on the worker and served again: the node starts once, by its new doorbell."""
    if on(place, "solo"):
        pytest.skip("its only thread hears of it when the node has ended")
    run = busy(place)
    place.control.cancel_consumer("runner/gates", reply=True, timeout=MARGIN, limit=1)
    open_gate(place, run, "b")
    wait_until(lambda: status(place, run, "c") is Status.READY, "its claim is returned")
    place.control.add_consumer("runner/gates", reply=True, timeout=MARGIN, limit=1)

    assert run.wait(RECOVERY + MARGIN).status is Status.COMPLETED
    assert len(starts(place, run, "c")) == 1


def test_a_worker_that_dies_between_two_nodes_loses_none(empty_site):
    """Killed after a settle has claimed the next node and before that started: another worker runs it."""
    empty_site.add(slots=1, app="tests.celery.staying_faults:dies", **GRAPHS).wait_ready()
    run = empty_site.client.start("short", "go")
    wait_until(lambda: not empty_site.workers[0].alive, "it dies between them")
    assert status(empty_site, run, "b") is Status.RUNNING
    assert starts(empty_site, run, "b") == []

    empty_site.ready(1, **GRAPHS)
    result = run.wait(RECOVERY + MARGIN)
    assert result.status is Status.COMPLETED
    assert result.results["b"].attempts == 2


def test_a_node_that_can_not_continue_goes_to_the_queue(empty_site):
    """An error before its task begins costs neither the lease nor an attempt."""
    empty_site.add(slots=1, app="tests.celery.staying_faults:stumbles", **GRAPHS).wait_ready()
    result = empty_site.client.start("short", "go").wait(MARGIN)

    assert result.status is Status.COMPLETED
    assert result.results["b"].attempts == 1
    assert "node.not_started" in empty_site.workers[0].output()


def test_where_claims_are_not_returned_a_stop_costs_a_lease(empty_site):
    """Control: a stopping worker that forgets what its nodes have claimed."""
    stopping = empty_site.add(
        "prefork", slots=1, app="tests.celery.staying_faults:forgets", **LONG
    )
    ready(empty_site)
    run = stopped_between(empty_site, stopping)

    assert status(empty_site, run, "b") is Status.RUNNING
