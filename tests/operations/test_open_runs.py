"""Each door says that too many runs are open, and starts nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.async_client import AsyncClient
from runner.cli.program import runner
from runner.errors import TooManyRuns
from runner.limits.concurrency import Concurrency, Debounce, admission
from runner.operations.message_handlers import IncomingMessage, handle_start
from runner.schedules.schedule import Schedule
from tests.graphs import ident, single
from tests.operations.test_schedules import Site as Scheduled
from tests.server.conftest import Site
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


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
    site = Scheduled(url)
    scheduler = site.scheduler()
    scheduler.add(Schedule("s", "g", interval=60))
    site.make_due("s")
    assert scheduler.fire("s") == ""
    return scheduler.schedules.get("s").error


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("size", [200, 201])
def test_a_key_that_is_too_long_is_refused_at_each_door(redis_url, size):
    """Also where the process has no code of the graph; control: the longest one."""
    tags = {"account": "x" * size}
    site = Scheduled(redis_url)
    rules = admission("k", None, Concurrency(9, by="tag:account"))
    site.client.engine.registry.add("k", lambda: single(ident), rules)
    site.client.engine.publish(["k"])
    body = json.dumps({"v": 1, "graph": "k", "task": None, "tags": tags}).encode()
    message = handle_start(site.engine, IncomingMessage("1-0", "starts/1-0", body))
    http = Site(redis_url, {}).http.post("/v1/runs", json={"graph": "k", "tags": tags})
    scheduler = site.scheduler()
    scheduler.add(Schedule("s", "k", interval=60, tags=tags))
    site.make_due("s")
    scheduler.fire("s")
    problem = scheduler.schedules.get("s").error

    assert (message.disposition, http.status_code) == (
        ("done", 201) if size == 200 else ("dead", 422)
    )
    assert ("201 bytes, over 200; nothing was started" in problem) == (size == 201)
    assert len(list(site.client.runs())) == (3 if size == 200 else 0)


def by_client(site):
    return lambda: site.client.start("g", None, tags={"account": "7"}).id


def by_async_client(site):
    client = AsyncClient(
        store=site.client.engine.store, dispatcher=site, registry=site.registry
    )
    return lambda: asyncio.run(client.start("g", None, tags={"account": "7"})).id


def by_message(site):
    body = b'{"v":1,"graph":"g","task":null,"tags":{"account":"7"}}'
    numbers = itertools.count()

    def start():
        name = f"{next(numbers)}-0"
        return handle_start(
            site.client.engine, IncomingMessage(name, f"starts/{name}", body)
        ).receipt

    return start


def by_http(site):
    body = {"graph": "g", "task": None, "tags": {"account": "7"}}
    return lambda: site.http.post("/v1/runs", json=body).json()["run_id"]


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [Concurrency(1, by="tag:account"), None])
def test_starts_of_a_key_by_four_doors_at_once_begin_one_run(redis_url, concurrency):
    """Of 50 starts one begins, then one with each end, in their order; without a key all begin."""
    site = Site(redis_url, {})
    site.registry.add("g", lambda: single(ident), admission("g", None, concurrency))
    site.client.engine.publish(["g"])
    message = by_message(site)
    doors = [by_client(site), by_async_client(site), lambda: message().run_id, by_http(site)]
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda number: doors[number % 4](), range(50)))
    assert len(set(started)) == 50
    if concurrency is None:
        assert len(site.bells) == 50
        return

    begun = []
    while site.bells:
        (bell,) = site.bells
        begun.append(bell.run_id)
        site.bells.clear()
        site.client.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
    assert sorted(begun) == sorted(started)
    times = [site.client.engine.store.read(run_id).created_at for run_id in begun]
    assert times == sorted(times)


@pytest.mark.parametrize("debounce", [Debounce(30, by="tag:account"), None])
def test_a_debounced_start_by_message_is_accepted(redis_url, debounce):
    """Its receipt names the run that waits; control: without a debounce each message has a run."""
    site = Site(redis_url, {})
    site.registry.add("g", lambda: single(ident), admission("g", None, None, debounce))
    site.client.engine.publish(["g"])
    start = by_message(site)
    receipts = [start() for _ in range(2)]

    assert [receipt.status for receipt in receipts] == ["accepted"] * 2
    assert (receipts[0].run_id == receipts[1].run_id) == (debounce is not None)


@pytest.mark.parametrize("when_full", ["skip", "queue"])
def test_a_skipped_start_by_http_returns_the_open_run(redis_url, when_full):
    """Whatever its body and its Idempotency-Key; one that is not skipped has another run."""
    site = Site(redis_url, {})
    rules = admission("g", None, Concurrency(1, when_full=when_full))
    site.registry.add("g", lambda: single(ident), rules)
    first, second = (
        site.http.post(
            "/v1/runs", json={"graph": "g", "task": key}, headers={"Idempotency-Key": key}
        )
        for key in "ab"
    )

    assert (first.status_code, second.status_code) == (201, 201)
    assert (first.json()["run_id"] == second.json()["run_id"]) == (when_full == "skip")


@pytest.mark.full
def test_every_door_shows_what_a_run_waits_for(redis_url):
    """The command, the API and the page name the key of a run that is queued, not of the open one."""
    site = Site(redis_url, {})
    rules = admission("g", None, Concurrency(1, by="tag:account"))
    site.registry.add("g", lambda: single(ident), rules)
    runs = [site.client.start("g", None, tags={"account": "7"}).id for _ in range(2)]
    shown = [
        (
            "waits for account=7" in site.http.get(f"/runs/{run_id}").text,
            site.http.get(f"/v1/runs/{run_id}").json()["reason"],
            "waits for account=7"
            in CliRunner()
            .invoke(runner, ["runs", "show", run_id], env={"RUNNER_REDIS_URL": redis_url})
            .stdout,
        )
        for run_id in runs
    ]
    assert shown == [(False, "", False), (True, "waits for account=7", True)]


DIES = """
import contextlib, os, signal, sys
from runner.client import Client
from runner.definition.registry import Registry
from runner.errors import TooManyRuns
from runner.limits.concurrency import Concurrency, Debounce, admission
from tests.graphs import ident, single

class Dies:
    def ring(self, doorbells):
        os.kill(os.getpid(), signal.SIGKILL)

registry = Registry()
registry.add("g", lambda: single(ident), admission("g", None, *eval(sys.argv[2])))
client = Client(sys.argv[1], dispatcher=Dies(), registry=registry)
with contextlib.suppress(TooManyRuns):
    if sys.argv[3:]:
        client.engine.deliver(sys.argv[3], "a", 1, 1)
    else:
        client.start("g", None)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "ends"),
    [
        ((Concurrency(1),), ["completed", "completed"]),
        ((Concurrency(1, when_full="replace"),), ["cancelled", "completed"]),
        ((Concurrency(1, when_full="skip"),), ["completed"]),
        ((Concurrency(1, when_full="refuse"),), ["completed"]),
        ((None, Debounce(0.5)), ["completed"]),
    ],
    ids=["queue", "replace", "skip", "refuse", "debounce"],
)
def test_a_process_that_is_killed_leaves_no_run_of_a_key_behind(
    redis_url, monkeypatch, rules, ends
):
    """It dies behind two starts and an end; sweeps begin what is left, and nothing begins before."""
    monkeypatch.setenv("RUNNER_LEASE", "1")
    site = Site(redis_url, {})
    site.registry.add("g", lambda: single(ident), admission("g", None, *rules))
    site.client.engine.publish(["g"])

    def die(*arguments):
        command = [sys.executable, "-c", DIES, redis_url, repr(rules), *arguments]
        assert subprocess.run(command, check=False, cwd=ROOT).returncode == -signal.SIGKILL

    def found():
        site.work()
        return sorted(str(run.status) for run in site.client.runs())

    def swept():
        site.client.engine.sweep()
        return found()

    die()
    (first,) = site.client.runs()
    die()
    queued = [site.client.engine.store.peek(run.run_id).is_queued for run in site.client.runs()]
    waits = "debounce" if rules[0] is None else rules[0].when_full
    assert (len(queued), any(queued)) == (len(ends), waits in ("queue", "debounce"))
    assert "completed" not in found()
    die(first.run_id)
    assert found().count("completed") == (waits not in ("replace", "debounce"))

    wait_until(lambda: swept() == ends, "all runs have ended")
    again = site.client.start("g", None)
    assert again.id != first.run_id
    wait_until(lambda: swept() == sorted([*ends, "completed"]), "another run begins and ends")
