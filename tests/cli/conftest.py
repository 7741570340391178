from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.cli.program import runner
from runner.definition.registry import registry
from runner.dev.worker_process import worker_process
from runner.testing.plugin import private_store

HERE = Path(__file__).parent
QUICK = {"RUNNER_LEASE": "1.5", "RUNNER_SWEEP_INTERVAL": "0.5"}


@pytest.fixture(scope="session")
def shop_url():
    """The address of a store that is never emptied, with a real worker that has the shop's graphs."""
    with private_store() as store:
        environment = {
            "PYTHONPATH": str(HERE),
            "RUNNER_GRAPHS": "shop",
            "RUNNER_REDIS_URL": store.url,
            **QUICK,
        }
        with worker_process(environment, concurrency=8) as worker:
            worker.wait_ready()
            yield store.url


@pytest.fixture
def call(monkeypatch):
    """Call the command line as a program without a terminal and without graphs of its own does."""
    monkeypatch.setattr(registry, "_factories", {})
    monkeypatch.setattr(registry, "_plans", {})

    def invoke(*arguments, url, stdin=None):
        return CliRunner().invoke(
            runner, arguments, input=stdin, env={"RUNNER_REDIS_URL": url, **QUICK}
        )

    return invoke


@pytest.fixture
def cli(call, shop_url):
    """Call the command line on the shop's store, which has a worker."""
    return functools.partial(call, url=shop_url)


def read(call, *arguments):
    """Return the JSON of a command."""
    return json.loads(call(*arguments, "--json").stdout)


@pytest.fixture
def waiting(cli):
    """The id of a run that waits for a person, and the id of its question."""
    done = cli("run", "shop-refund", "--input", "1042", "--wait")
    assert done.exit_code == 3, done.stderr
    cells = [line.split("\t") for line in done.stdout.splitlines()]
    return cells[0][1], cells[-1][1]
