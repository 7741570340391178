"""Each door says that too many runs are open, and starts nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from click.testing import CliRunner

from runner.async_client import AsyncClient
from runner.cli.program import runner
from runner.errors import TooManyRuns
from runner.operations.message_handlers import IncomingMessage, handle_start
from runner.schedules.schedule import Schedule
from tests.operations.test_schedules import Site as Scheduled
from tests.server.conftest import Site


def of_client(url):
    with pytest.raises(TooManyRuns) as refused:
        Scheduled(url).client.start("g", None)
    return str(refused.value)


def of_async_client(url):
    client = AsyncClient(store=Scheduled(url).client.engine.store)
    with pytest.raises(TooManyRuns) as refused:
        asyncio.run(client.start("g", None))
    return str(refused.value)


def of_message(url):
    message = IncomingMessage("1-0", "starts/1-0", b'{"v":1,"graph":"g","task":null}')
    result = handle_start(Scheduled(url).engine, message)
    assert result.disposition == "dead"
    assert result.receipt.status == "full"
    return result.receipt.detail


def of_http(url):
    answer = Site(url, {}).http.post("/v1/runs", json={"graph": "g"})
    assert answer.status_code == 429
    assert answer.headers["Retry-After"]
    return answer.json()["detail"]


def of_command(url):
    result = CliRunner().invoke(runner, ["run", "g"], env={"RUNNER_REDIS_URL": url})
    assert result.exit_code == 5
    return result.stderr


def of_schedule(url):
    scheduler = Scheduled(url).scheduler()
    scheduler.add(Schedule("s", "g", interval=60))
    scheduler.schedules.change("s", lambda schedule: replace(schedule, next_at=1))
    assert scheduler.fire("s") == ""
    return scheduler.schedules.get("s").error


@pytest.mark.parametrize(
    "refused", [of_client, of_async_client, of_message, of_http, of_command, of_schedule]
)
def test_a_start_over_the_bound_is_refused_at_each_door(redis_url, monkeypatch, refused):
    """It says how many runs are open and starts none; the run before it found room."""
    monkeypatch.setenv("RUNNER_MAX_OPEN_RUNS", "1")
    site = Scheduled(redis_url)
    first = site.client.start("g", None)

    assert "the namespace has 1 open run, and RUNNER_MAX_OPEN_RUNS allows 1" in " ".join(
        refused(redis_url).split()
    )
    assert [run.run_id for run in site.client.runs()] == [first.id]
