from __future__ import annotations

import json
import os
import re

import pytest
from click.testing import CliRunner

from runner.cli.program import runner
from runner.dev.worker_process import worker_command, worker_process
from tests.cli.conftest import read
from tests.processes import run_module
from tests.waiting import wait_until

pytestmark = pytest.mark.full


def test_a_worker_is_a_celery_worker_of_our_app():
    """The command has the app, the pool and the options that are passed on."""
    command = worker_command("solo", 3, ["--queues", "fast"])

    assert command[:4] == ["runner.celery", "worker", "--pool", "solo"]
    assert command[-4:] == ["--concurrency", "3", "--queues", "fast"]


def test_runner_worker_becomes_the_celery_worker():
    """There is no process in between that could be left behind: signals reach Celery itself."""
    done = run_module("runner.cli", "worker", "--pool", "solo", "--", "--help")

    assert done.returncode == 0, done.stderr
    assert "celery worker" in done.stdout


def test_two_workers_of_one_machine_have_different_names(monkeypatch):
    """The default name holds the process id; a name that is passed on stays."""
    commands = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command))

    CliRunner().invoke(runner, ["worker"])
    CliRunner().invoke(runner, ["worker", "--", "--hostname", "mine@%h"])

    assert f"worker-{os.getpid()}@%h" in commands[0]
    assert [word for word in commands[1] if "@" in word] == ["mine@%h"]


def test_workers_are_listed_with_what_they_serve(cli):
    """The list has state, pool, slots, queues and graphs of each worker."""
    wait_until(lambda: "celery@" in cli("workers", "list").stdout, "the worker is on the list")
    (worker,) = read(cli, "workers", "list")["workers"]

    assert (worker["state"], worker["pool"], worker["slots"]) == ("alive", "threads", 8)
    assert {"runner", "runner/shop-refund"} <= set(worker["queues"])
    assert "shop-refund" in worker["graphs"]


def test_metrics_are_prometheus_text(call, fake_store):
    """Every line is a comment or a number with few labels, and each number has its help."""
    fake_store.client.xadd("runner:dead", {"reason": "no JSON"})
    lines = call("metrics", url=fake_store.url).stdout.splitlines()
    numbers = [line for line in lines if not line.startswith("#")]

    assert all(
        re.fullmatch(r'[a-z_]+(\{[a-z]+="[a-z0-9_]+"\})? [0-9.e+]+', line) for line in numbers
    )
    assert 'runner_dead_letters{kind="message"} 1' in numbers
    assert 'runner_runs{status="executing"} 0' in numbers
    assert "runner_workers 0" in numbers
    assert len({line.split()[2] for line in lines if line.startswith("# HELP")}) == 19


def test_metrics_count_what_waits(cli, waiting):
    """An open question and its run are counted, and the worker is."""
    wait_until(lambda: "celery@" in cli("workers", "list").stdout, "the worker is on the list")
    shown = dict(
        line.rsplit(" ", 1) for line in cli("metrics").stdout.splitlines() if line[0] != "#"
    )

    assert (
        sum(float(shown[name]) for name in shown if name.startswith("runner_questions_open"))
        >= 1
    )
    assert float(shown['runner_runs{status="interrupted"}']) >= 1
    assert float(shown["runner_workers"]) == 1
    assert float(shown["runner_slots"]) == 8


@pytest.mark.slow
def test_a_worker_logs_json_on_request(tmp_path, runner_store):
    """With the setting each line that a worker writes is a JSON document; Celery's banner is none."""
    environment = {
        "RUNNER_REDIS_URL": runner_store.url,
        "RUNNER_LOG_FORMAT": "json",
        "RUNNER_GRAPHS": "tests.celery.graphs",
    }
    with worker_process(environment, concurrency=1) as worker:
        lines = []
        worker.wait_ready(lines.append)
    logged = [json.loads(line) for line in lines]

    assert any("worker.ready" in record["message"] for record in logged)
    assert {"time", "level", "logger", "message", "process"} <= set(logged[0])
