"""How a worker starts, what it tells its operator, and how it lives through an outage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from celery import Celery

from runner import Client, Status
from runner.celery.application import make_app
from runner.celery.doorbells import CeleryDispatcher
from runner.dev.embedded import embedded_store
from runner.settings import Settings, as_broker
from runner.store.redis.store import RedisStore
from tests.celery.workers import BOOT, LEASE, MARGIN, RECOVERY, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.full


BAD = {
    "bad_syntax": "def bad(:\n",
    "bad_build": (
        "from runner import graph\n@graph('bad')\ndef bad():\n    raise ZeroDivisionError('half')\n"
    ),
}
"""Modules of graphs with a mistake."""

REFUSED = {
    "it has no graphs. Name the modules that register yours in RUNNER_GRAPHS.": {
        "RUNNER_GRAPHS": ""
    },
    "the module 'no_such_module' of RUNNER_GRAPHS can't be imported": {
        "RUNNER_GRAPHS": "no_such_module"
    },
    "the module 'bad_syntax' of RUNNER_GRAPHS can't be imported: SyntaxError: invalid syntax "
    "({}/bad_syntax.py, line 1).": {"RUNNER_GRAPHS": "bad_syntax"},
    "graph 'bad' can't be built: ZeroDivisionError: half ({}/bad_build.py, line 4).": {
        "RUNNER_GRAPHS": "bad_build"
    },
    "accept_content of its app lacks json": {"app": "tests.celery.pickles:app"},
}
"""What the line of a worker that must not start says, and its settings."""


@pytest.mark.slow
def test_a_worker_that_could_not_run_its_nodes_does_not_start(empty_site, tmp_path):
    """One line says why: it names the graph or the module, its error, and the line of the user's code."""
    for name, code in BAD.items():
        (tmp_path / f"{name}.py").write_text(code)
    for settings in REFUSED.values():
        empty_site.add("solo", slots=1, PYTHONPATH=str(tmp_path), **settings)

    for reason, worker in zip(REFUSED, empty_site.workers, strict=True):
        wait_until(lambda each=worker: not each.alive, "the worker ends", seconds=BOOT)
        (line,) = worker.output().strip().splitlines()
        assert line.startswith(f"The worker did not start: {reason.format(tmp_path)}")


def test_an_app_of_eager_tasks_stops_the_start(redis_url):
    """Nodes that ring for others would run them inside themselves; one line says what to change."""
    command = [sys.executable, "-m", "celery", "--app", "tests.celery.eager:app", "worker"]
    settings = {"RUNNER_REDIS_URL": redis_url, "RUNNER_GRAPHS": "tests.celery.graphs"}
    done = subprocess.run(
        [*command, "--pool", "solo"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("The worker did not start: task_always_eager is on in its app")


@pytest.mark.slow
@pytest.mark.parametrize("by", ["option", "control"])
def test_a_time_limit_counts_as_a_lost_worker(empty_site, by):
    """However Celery learned of the limit, a node that exceeds it is on its next attempt afterwards."""
    # Its children are forked: while others are spawned, a busy machine exceeds the limit by itself.
    app, options = "tests.chaos.fork_app:app", ["--time-limit", "2"] if by == "option" else []
    empty_site.add("prefork", slots=1, app=app, options=options).wait_ready()
    if by == "control":
        limited = lambda: empty_site.control.time_limit("runner.node", hard=2, reply=True)  # noqa: E731
        wait_until(limited, "the worker has set its limit")
    run = empty_site.client.start("gated", "go")

    # On a slow machine the limit may end a child before it has noted its start.
    first, second = first_attempts(empty_site, run)
    assert first < second


@pytest.mark.slow
def test_a_time_limit_taken_for_the_worker_s_end_counts_nothing(empty_site):
    """The control: a worker that gives such a node back has it begin for ever, as its first attempt."""
    graphs = "tests.celery.graphs,tests.chaos.no_time_limit"
    options = ["--time-limit", "2"]
    empty_site.add(
        "prefork",
        slots=1,
        app="tests.chaos.fork_app:app",
        options=options,
        RUNNER_GRAPHS=graphs,
    ).wait_ready()
    run = empty_site.client.start("gated", "go")

    assert first_attempts(empty_site, run) == [1, 1]


def first_attempts(site, run) -> list[int]:
    """Wait until a node that never ends has started twice, and return which attempts those were."""
    wait_until(lambda: len(site.starts(run)) > 1, "the node has started again")
    run.cancel("enough")
    return [int(attempt) for _, attempt, _ in site.starts(run)[:2]]


def trackers_of(worker) -> list[int]:
    """Find the processes that unlink the semaphores of a worker's pool."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (
                parent == worker.pid
                and b"semaphore_tracker" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
    return found


@pytest.mark.slow
def test_a_killed_semaphore_tracker_is_started_again(empty_site):
    """The next child that is replaced would have ended the worker: its node runs again, also twice."""
    worker = empty_site.add("prefork", slots=1)
    worker.wait_ready()
    for _ in range(2):
        (tracker,) = trackers_of(worker)
        os.kill(tracker, signal.SIGKILL)
        run = empty_site.client.start("gated", "go")
        wait_until(lambda run=run: empty_site.starts(run), "the node runs")
        os.kill(int(empty_site.starts(run)[0][0]), signal.SIGKILL)
        empty_site.open_gate(run)

        assert run.wait(RECOVERY + MARGIN).status is Status.COMPLETED
        assert worker.alive
    assert worker.output().count("tracker.restarted") == 2
    assert "KeyError" not in worker.output()


@pytest.mark.slow
def test_an_outage_of_the_store_stops_progress_and_nothing_else(tmp_path):
    """While the store is away the worker waits; when it is back everything goes on without a person."""
    with embedded_store(appendonly=True, directory=tmp_path / "data") as store:
        site = Site(store.url, tmp_path)
        try:
            site.ready(1)
            run = site.client.start("gated", "go")
            wait_until(lambda: site.starts(run), "the node runs")
            store.kill()
            wait_until(
                lambda: "sweeper.waits: The store" in site.workers[0].output(),
                "the sweeper notices",
            )
            store.restart()
            site.redis.set(f"gate:{run.id}", 1)

            assert (
                Client(store=RedisStore(store.url, lease=LEASE)).run(run.id).wait(60).status
                is Status.COMPLETED
            )
            question = site.client.start("question", "go")
            (interrupt,) = question.wait(60).interrupts
            site.send(json.dumps({"v": 1, "interrupt_id": interrupt.id, "response": 1}))
            wait_until(lambda: question.status is Status.COMPLETED, "answers are read again")
            assert site.workers[0].alive
        finally:
            site.end()


@pytest.mark.slow
def test_a_worker_that_stops_lets_its_node_finish(empty_site):
    """A deploy waits for the nodes that run: none is cut off, none is repeated, no trace is left."""
    empty_site.ready(1)
    run = empty_site.client.start("gated", "go")
    wait_until(lambda: empty_site.starts(run), "the node runs")

    os.kill(empty_site.workers[0].pid, signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in empty_site.workers[0].output(), "the worker is told")
    empty_site.open_gate(run)

    wait_until(lambda: not empty_site.workers[0].alive, "the worker has gone by itself")
    assert empty_site.client.engine.store.read(run.id).order[0] == "a"
    assert len(empty_site.starts(run)) == 1
    assert empty_site.redis.hlen("runner:workers") == 0
    assert empty_site.redis.xpending("runner:responses", "runner")["pending"] == 0


def stopped_while_children_start(site, app: str):
    """Have a worker of processes that are about to start for long, and stop it."""
    worker = site.add("prefork", slots=1, app=app)
    worker.wait_ready()
    wait_until(lambda: site.redis.get("children") == b"1", "its process has begun to start")
    os.kill(worker.pid, signal.SIGTERM)
    # Celery's word: a worker that is gone before its next heartbeat has none of ours.
    wait_until(lambda: "Warm shutdown" in worker.output(), "it is told")
    return worker


@pytest.mark.slow
def test_a_worker_that_stops_waits_for_no_child_that_starts(empty_site):
    """A worker that is stopped as soon as it is ready ends, however long its processes take to start."""
    worker = stopped_while_children_start(empty_site, "tests.celery.slow_children:app")

    wait_until(lambda: not worker.alive, "it has gone by itself")


@pytest.mark.slow
def test_celery_s_own_worker_waits_for_them(empty_site):
    """Control: without our part it stays until its processes have started."""
    worker = stopped_while_children_start(empty_site, "tests.celery.patient:app")

    assert worker.alive
    empty_site.redis.set("gate:children", 1)
    wait_until(lambda: not worker.alive, "it has gone, after its processes", seconds=150)


@pytest.mark.slow
def test_a_retry_does_not_wait_for_the_next_sweep(empty_site):
    """A backoff shorter than the rest between two sweeps, or none, is kept, in a child process, too."""
    empty_site.add("prefork", slots=1, RUNNER_SWEEP_INTERVAL="3600").wait_ready()

    for name in ("retry", "retry at once"):
        result = empty_site.client.start(name, "go").wait(60)

        assert result.results["flaky"].output == 2


def test_an_existing_app_runs_our_graphs_beside_its_own_tasks(empty_site):
    """After `runner.celery.install(app)` the workers of an app serve their own queue and ours."""
    worker = empty_site.add(app="tests.celery.other_teams_app:app")
    worker.wait_ready()
    client = Celery("client", broker=as_broker(empty_site.url), set_as_current=False)

    client.send_task("other_team.write", args=["written"])
    result = empty_site.client.start("chain", "go").wait(60)

    assert result.status is Status.COMPLETED
    wait_until(lambda: empty_site.redis.get("written") == b"done", "their own task has run")
    client.close()


@pytest.mark.slow
def test_a_queue_in_another_database_is_rung_by_publishing(empty_site, databases):
    """Where the broker is not the store, doorbells are published; runs go on, and their tasks are linked."""
    other = next(databases)
    broker = as_broker(other.url)
    empty_site.ready(1, RUNNER_BROKER_URL=broker)
    app = make_app(Settings(redis_url=empty_site.url, broker_url=broker))
    store = RedisStore(empty_site.url, lease=LEASE, push=False)
    client = Client(store=store, dispatcher=CeleryDispatcher(app))

    run = client.start("waiting", "go")
    (question,) = run.wait(60).interrupts
    client.respond(question.id, "yes")

    assert run.wait(60).status is Status.COMPLETED
    assert not empty_site.redis.exists("runner:{p00}:doorbell:1")
    assert set(run.result().execution_order) == set("abdef")
    linked = client.start("parents", "go")
    assert {name: node.output for name, node in linked.wait(60).results.items()} == {
        "a": None,
        "b": f"{linked.id}.a.1.1",
    }
    app.close()
    other.end()
