"""Celery's own worker for tests, which a program runs in a thread of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

PROGRAM = """
import sys

from celery import Celery
from celery.contrib.testing.worker import start_worker

from runner import Client, GraphBuilder, graph
from runner.celery import install
from runner.settings import Settings, as_broker

app = Celery("shop", broker=as_broker(Settings().redis_url))
install(app)


@graph("hello")
def hello():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: f"hello {ctx.task}", "greet")
    return builder.build()


with start_worker(app, pool=sys.argv[1], perform_ping_check=False):
    print(Client().start("hello", "Ana").wait(timeout=60).results["greet"].output)
"""


@pytest.mark.parametrize("pool", ["threads", "solo", "prefork"])
def test_it_runs_nodes(pool, redis_url, tmp_path):
    """`start_worker` serves the queues of the app's graphs, on each of its pools."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "RUNNER_REDIS_URL": redis_url, "RUNNER_GRAPHS": ""}
    command = [sys.executable, "program.py", pool]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=True, timeout=120
    )

    assert done.stdout == b"hello Ana\n"
