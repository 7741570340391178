from __future__ import annotations

import os
import signal
import subprocess
import sys

from runner import Client
from runner.cli.worker import worker_command
from tests.processes import run_module
from tests.waiting import wait_until


def test_a_worker_is_a_celery_worker_of_our_app():
    """The command names the app by its attribute and the pool, and passes on what it was given."""
    command = worker_command("solo", 3, ["--queues", "fast"])

    assert command[1:7] == ["-m", "celery", "--app", "tasks.app:app", "worker", "--pool"]
    assert command[7] == "solo"
    assert command[-4:] == ["--concurrency", "3", "--queues", "fast"]


def test_runner_worker_becomes_the_celery_worker():
    """There is no process in between that could be left behind: signals reach Celery itself."""
    done = run_module("runner.cli", "worker", "--pool", "solo", "--", "--help")

    assert done.returncode == 0, done.stderr
    assert "celery worker" in done.stdout


def test_ctrl_c_ends_the_looking_and_not_the_run(shop_url):
    """Who stops `run --wait` is told that the run goes on, and how to look at it again."""
    key = "looked-at"
    client = Client(redis_url=shop_url)
    with subprocess.Popen(
        [sys.executable, "-m", "runner.cli", "run", "shop-endless", "--wait", "--idempotency-key", key],
        env={**os.environ, "RUNNER_REDIS_URL": shop_url},
        stderr=subprocess.PIPE,
        text=True,
    ) as looking:
        try:
            run = client.run(looking.stderr.readline().strip().split("\t")[1])
            wait_until(lambda: "node.started" in looking.stderr.readline(), "the run goes")

            looking.send_signal(signal.SIGINT)

            assert looking.wait(timeout=20) == 130
            assert f"run {run.id} goes on" in looking.stderr.read()
        finally:
            looking.kill()
    assert run.status == "executing"
    run.cancel("the test is over")
