"""The controls of the deaths of workers: with what brings the work back turned off, it stays lost."""

from __future__ import annotations

import json
import time

import pytest

from runner import Client, Status
from runner.celery.application import make_app
from runner.celery.doorbells import CeleryDispatcher
from runner.execution import ids
from runner.settings import Settings, as_broker
from runner.store.redis.store import RedisStore
from tests.celery.workers import LEASE, RECOVERY
from tests.chaos import journey
from tests.chaos.kill_switch import arm, died_at
from tests.chaos.steps import Step
from tests.waiting import wait_until

GRAPHS = {"RUNNER_GRAPHS": "tests.chaos.journey"}
LONG = 150
NODES = [
    Step("publish.before"),
    Step("claim.after"),
    Step("settle.before"),
    Step("effect.after"),
]


@pytest.fixture(scope="module")
def sites(databases, fork_server):
    """Give workers that never sweep, with their queue elsewhere, and workers that take no message over."""
    queue = next(databases)
    sites = {"no_sweep_app": next(databases), "no_take_over": next(databases)}
    settings = {"no_sweep_app": {"RUNNER_BROKER_URL": as_broker(queue.url)}, "no_take_over": {}}
    for name, site in sites.items():
        for number in "ab":
            app = f"tests.chaos.{name}:app"
            fork_server.add(site, name + number, app=app, **GRAPHS, **settings[name])
    sites["no_sweep_app"].broker = settings["no_sweep_app"]["RUNNER_BROKER_URL"]
    with fork_server.running(queue, *sites.values()):
        yield sites


@pytest.fixture
def start(sites):
    """Start runs as a program does that can ring for them: their queue is elsewhere."""
    site = sites["no_sweep_app"]
    app = make_app(Settings(redis_url=site.url, broker_url=site.broker))
    client = Client(
        store=RedisStore(site.url, lease=LEASE, push=False), dispatcher=CeleryDispatcher(app)
    )
    yield client.engine.start
    app.close()


def wait_long() -> None:
    """Wait as long as it takes at most until lost work is back."""
    ends = time.monotonic() + RECOVERY + 1.5
    wait_until(lambda: time.monotonic() > ends, "lease and sweep are over")


def test_without_a_sweep_a_dead_worker_s_node_is_lost(sites, start):
    """Control: a node that nobody rings for again is not run, whether its worker had claimed it or not."""
    site, runs = sites["no_sweep_app"], {}
    for step in NODES:
        run_id = ids.run_id()
        step.arm(site, run_id)
        start("journey", "go", run_id=run_id)
        runs[step] = site.client.run(run_id)
        wait_until(lambda step=step: step.died(site, runs[step]), "a worker died", seconds=LONG)

    wait_long()

    for step, run in runs.items():
        assert (step.node, 1) not in journey.commits(run), step


def test_without_taking_over_a_dead_reader_s_message_is_lost(sites):
    """Control: an answer and a start whose readers died on them are not applied by anybody."""
    site = sites["no_take_over"]
    run = site.client.start("question", "go")
    (question,) = run.wait(LONG).interrupts
    arm(site, "answer.before", question.id)
    site.send(json.dumps({"v": 1, "interrupt_id": question.id, "response": "yes"}))
    wait_until(
        lambda: died_at(site, "answer.before", question.id), "the reader died", seconds=LONG
    )
    arm(site, "start.before", "key")
    site.send(
        json.dumps({"v": 1, "graph": "slow", "task": "go", "idempotency_key": "key"}),
        "runner:starts",
    )
    wait_until(lambda: died_at(site, "start.before", "key"), "the reader died", seconds=LONG)

    wait_long()

    assert run.status is Status.INTERRUPTED
    assert not site.client.runs(graph="slow").items
