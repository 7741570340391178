"""What the real Flower shows: its API and its metrics, over events of a real worker."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path

import pytest

import runner
from runner import Status
from runner.celery.application import make_app
from runner.celery.tasks import NodeEvent, end_task
from runner.dev.supervised_process import SupervisedProcess
from runner.execution.engine import DoorbellOutcome
from runner.settings import Settings
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

STATES = {
    "question": {"node.with.dots.1.1": "WAITING"},
    "failure": {"b.1.1": "FAILURE"},
    "retry": {"flaky.1.1": "RETRY"},
    "chain": {"a.1.1": "SUCCESS", "b.1.1": "SUCCESS", "c.1.1": "SUCCESS"},
}
"""How the tasks of each graph end."""

ENDED = {"SUCCESS", "FAILURE", "REVOKED"}


class Flower:
    """A Flower process on a port of its own."""

    def __init__(self, url: str, folder, *options: str, **environment: str) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "celery", "--app", "tasks.app:app", "flower"]
        self.guard = SupervisedProcess(
            [*command, f"--port={port}", "--address=127.0.0.1", *options],
            log=folder / "flower.log",
            environment={
                "RUNNER_REDIS_URL": url,
                "FLOWER_UNAUTHENTICATED_API": "1",
                **environment,
            },
        )

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self.address}/{path}", timeout=60) as reply:  # noqa: S310 - our own Flower
                return reply.read().decode()
        except OSError:
            return ""

    def tasks(self) -> dict[str, dict]:
        return json.loads(self.get("api/tasks?limit=1000") or "{}")


@pytest.fixture(scope="module")
def flower(sites, tmp_path_factory):
    """Flower with our configuration beside the worker of threads, once it has seen the worker."""
    site = sites["threads"]
    site.workers[0].wait_ready()
    conf = f"--conf={Path(runner.__file__).parent}/integrations/flower.py"
    pages = "https://runner.example"
    shown = Flower(site.url, tmp_path_factory.mktemp("flower"), conf, RUNNER_SERVER_URL=pages)
    wait_until(
        lambda: "flower_worker_online{" in shown.get("metrics"), "Flower hears the worker"
    )
    yield shown
    shown.guard.end()


def ended_task(flower, key: str) -> dict:
    """What Flower knows of a task, once it knows that it is over."""
    wait_until(
        lambda: flower.tasks().get(key, {}).get("state") in ENDED,
        f"Flower knows how {key} ended",
    )
    return flower.tasks()[key]


@pytest.fixture(scope="module")
def ended(flower, sites):
    """One run of each kind, and what Flower knows when it knows all of them."""
    client = sites["threads"].client
    runs = {graph: client.start(graph, "go") for graph in STATES}
    for run in runs.values():
        run.wait(60)

    states = {
        f"{runs[graph].id}.{end}": state
        for graph in STATES
        for end, state in STATES[graph].items()
    }
    tasks = {}

    def known():
        tasks.update(flower.tasks())
        return all(tasks.get(task, {}).get("state") == state for task, state in states.items())

    wait_until(known, "Flower knows how each run ended")
    return runs, tasks


def test_flower_names_nodes_by_graph_and_name(ended):
    """A row's name is graph and node, and its id begins with the run's, so that a search finds its rows."""
    runs, tasks = ended
    chain = {
        key: task["name"] for key, task in tasks.items() if key.startswith(runs["chain"].id)
    }

    assert sorted(chain.values()) == ["chain/a", "chain/b", "chain/c"]


def test_flower_tells_waiting_failed_and_retried_from_done(ended):
    """Nothing that waits or failed is shown as a success, and what it waits for or failed of is told."""
    runs, tasks = ended
    waiting = tasks[f"{runs['question'].id}.node.with.dots.1.1"]
    failed = tasks[f"{runs['failure'].id}.b.1.1"]
    retried = tasks[f"{runs['retry'].id}.flaky.1.1"]

    assert (waiting["state"], waiting["result"]) == (
        "WAITING",
        "WAITING for a person: approval",
    )
    assert (failed["state"], failed["exception"]) == (
        "FAILURE",
        "ValueError('boom in attempt 1')",
    )
    assert retried["state"] == "RETRY"
    assert runs["failure"].result().status is Status.FAILED


def test_what_waits_says_where_to_see_it():
    """Where the address of the pages is known, the result of a waiting node has its run's."""
    app = make_app(Settings(server_url="https://runner.example/"))

    with pytest.raises(NodeEvent) as event:
        end_task(DoorbellOutcome("expanded"), app, "0run")

    assert event.value.fields == {
        "result": "WAITING for its items, see https://runner.example/runs/0run"
    }


def test_a_node_that_ran_too_long_is_shown_as_failed(flower, sites):
    """Its code ends after its timeout, and then its task ends as the node did: with the reason."""
    run = sites["threads"].client.start("deaf", "go")
    assert run.wait(60).status is Status.FAILED

    shown = ended_task(flower, f"{run.id}.sleep.1.1")

    assert shown["state"] == "FAILURE"
    assert "execution timed out after 0.5 s" in shown["exception"]


def test_a_node_of_a_cancelled_run_is_shown_as_revoked(flower, sites):
    """A node that was told to stop does not run for ever in Flower."""
    run = sites["threads"].client.start("gated", "go")
    sites["threads"].starter(run)
    run.cancel("a mistake")

    assert ended_task(flower, f"{run.id}.a.1.1")["state"] == "REVOKED"


def test_a_node_that_has_to_wait_for_its_turn_is_shown_waiting(flower, sites):
    """Flower says why a node that a limit holds back does not run."""
    run = sites["threads"].client.start("turns", "go")

    def held_back():
        mine = [task for key, task in flower.tasks().items() if key.startswith(run.id)]
        return [task["result"] for task in mine if task["state"] == "WAITING"]

    wait_until(held_back, "one of two waits, where one may run at a time")
    shown = held_back()
    sites["threads"].open_gate(run)

    assert shown == ["WAITING for its turn: a limit is reached"]
    assert run.wait(60).status is Status.COMPLETED


def test_flower_s_metrics_have_few_labels(ended, flower):
    """Prometheus sees one series for each node of a graph, never one for each run."""
    runs, _ = ended
    shown = flower.get("metrics")
    names = set(re.findall(r'flower_events_total{task="([^"]*)"', shown))

    assert {"chain/a", "question/node.with.dots"} <= names
    assert not [run.id for run in runs.values() if run.id in shown]


def test_flower_s_page_of_a_node_links_the_one_before(ended, flower):
    """The page of a task leads to the task that rang for it."""
    runs, _ = ended
    run = runs["chain"].id

    assert f"/task/{run}.a.1.1" in flower.get(f"task/{run}.b.1.1")


def test_the_page_of_a_task_links_its_run(ended, flower):
    """And its node there; the list of tasks is Flower's own."""
    runs, _ = ended
    for graph, node in (("chain", "b"), ("question", "node.with.dots")):
        run = runs[graph].id
        link = f'<a href="https://runner.example/runs/{run}?node={node}#node">'
        assert flower.get(f"task/{run}.{node}.1.1").count(link) == 1
    assert "runner.example" not in flower.get("tasks")


def test_the_task_that_a_celery_task_node_sent_links_that_node(monkeypatch):
    """Its id ends with `.task`; a task of another app has no link."""
    from runner.integrations.flower import page_of

    monkeypatch.setenv("RUNNER_SERVER_URL", "https://runner.example")
    wanted = "https://runner.example/runs/00run?node=a.b#node"
    assert {page_of("00run.a.b.1.1"), page_of("00run.a.b.1.1.task")} == {wanted}
    assert page_of("0c6e2f0e-6e5b-4a46-8f5f-6c1f4e5d2b1a") == ""


def test_a_node_that_was_asked_goes_on_as_the_same_task(flower, threads):
    """A question's task is WAITING until its answer, and then ends as the node does."""
    run = threads.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    task = f"{run.id}.node.with.dots.1.1"
    wait_until(lambda: flower.tasks().get(task, {}).get("state") == "WAITING", "it waits")
    threads.client.respond(question.id, "yes")
    assert run.wait(60).status is Status.COMPLETED
    assert ended_task(flower, task)["state"] == "SUCCESS"
    assert [key for key in flower.tasks() if key.startswith(run.id)] == [task]


def test_a_task_that_is_revoked_while_it_waits_says_so_by_its_time(flower, threads):
    """Its node fails when the answer comes; Celery's order of states keeps WAITING before REVOKED."""
    run = threads.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    task = f"{run.id}.node.with.dots.1.1"
    request = urllib.request.Request(  # noqa: S310 - our own Flower
        f"{flower.address}/api/task/revoke/{task}", method="POST", data=b""
    )
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - as above
    wait_until(
        lambda: task in str(threads.control.inspect(timeout=1).revoked()), "the worker knows"
    )
    threads.client.respond(question.id, "yes")
    assert run.wait(60).status is Status.FAILED
    wait_until(lambda: flower.tasks()[task]["revoked"], "Flower knows of it")
    assert flower.tasks()[task]["state"] == "WAITING"
