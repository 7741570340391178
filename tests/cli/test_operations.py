"""Commands that change runs: cancel, hold, release, skip, retry, fork, again and migrate."""

from __future__ import annotations

import functools
import json

import pytest

from runner import Client
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.jobs import begin, carry_on
from runner.store.redis.jobs import Jobs
from runner.store.redis.store import RedisStore
from tests.cli.conftest import read
from tests.graphs import Bench, ident, wired
from tests.waiting import wait_until


def test_a_failed_run_is_retried(cli):
    """`runs retry` writes the nodes that run again; a completed run is a conflict."""
    run_id = cli("run", "shop-print", "--wait").stdout.split("\t")[1]

    done = cli("runs", "retry", run_id)

    assert (done.exit_code, done.stdout) == (0, "fail_once\n")
    wait_until(
        lambda: "completed" in cli("runs", "show", run_id).stdout.splitlines()[0],
        "it completes",
    )
    again = cli("runs", "retry", run_id, "--node", "fail_once")
    assert again.exit_code == 5
    assert "has completed" in again.stderr
    assert cli("runs", "retry", "00none").exit_code == 4


@pytest.mark.full
def test_a_run_that_waits_is_cancelled(cli, waiting):
    """`runs cancel` ends the run and withdraws its question; a run that has ended is a conflict."""
    run_id, question = waiting

    done = cli("runs", "cancel", run_id, "--reason", "ordered twice", "--by", "ana", "--json")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["run_id"] == run_id
    wait_until(
        lambda: "cancelled" in cli("runs", "show", run_id).stdout.splitlines()[0], "it ends"
    )
    shown = read(cli, "runs", "show", run_id)
    assert shown["reason"] == "cancelled by ana: ordered twice"
    assert read(cli, "interrupts", "show", question)["status"] == "withdrawn"
    again = cli("runs", "cancel", run_id)
    assert again.exit_code == 5
    assert "nothing was changed" in again.stderr
    assert cli("runs", "cancel", "00none").exit_code == 4


@pytest.mark.full
def test_a_node_that_waits_is_held_and_skipped(cli, waiting):
    """`runs hold`, `release` and `skip` write the run's status; `runs show` names the operator."""
    (run_id, _), node = waiting, "approve"

    held = cli("runs", "hold", run_id, node, "--by", "ana", "--reason", "an audit")

    assert (held.exit_code, held.stdout) == (0, "interrupted\n")
    shown = read(cli, "runs", "show", run_id)["reason"]
    assert shown.startswith(f"{node} is held by ana since ")
    assert shown.endswith(": an audit")
    assert cli("runs", "release", run_id, node, "--by", "bo").exit_code == 0
    skipped = cli("runs", "skip", run_id, node, "--output", '{"ok": true}', "--by", "ana")
    assert skipped.exit_code == 0
    wait_until(
        lambda: "completed" in cli("runs", "show", run_id).stdout.splitlines()[0], "it ends"
    )
    nodes = read(cli, "runs", "show", run_id)["nodes"]
    (mine,) = [each for each in nodes if each["id"] == node]
    assert (mine["output"], mine["skipped"]) == ({"ok": True}, "human:|ana")
    late = cli("runs", "hold", run_id, node)
    assert (late.exit_code, "Nothing was changed" in late.stderr) == (5, True)
    assert cli("runs", "hold", run_id, "nothing").exit_code == 4
    assert cli("runs", "hold", "00none", node).exit_code == 4
    assert cli("runs", "skip", run_id, node, "--output", "{").exit_code == 2


@pytest.mark.full
def test_who_works_at_the_terminal_asks_for_a_run(cli, waiting, monkeypatch):
    """By the login name, or by another: runs, forks, repeats and schedules, so rules can exclude them."""
    monkeypatch.setenv("LOGNAME", "ana")
    started = cli("run", "shop-refund", "--input", "1").stdout.strip()
    path, body = f"/v1/runs/{waiting[0]}:fork", '{"node": "stock"}'
    made = [
        cli("api", "POST", path, "--data", body, "--by", "ben"),
        cli("api", "POST", f"/v1/runs/{started}:again"),
    ]
    forked, again = (json.loads(done.stdout)["run_id"] for done in made)
    schedule = '{"id": "asked", "graph": "shop-refund", "interval": 300}'
    cli("api", "POST", "/v1/schedules", "--data", schedule)

    def asked(run):
        return read(cli, "runs", "show", run)["requester"]

    assert [asked(run) for run in (started, forked, again)] == [
        f"human:|{name}" for name in ("ana", "ben", "ana")
    ]
    times = '{"first": "2026-01-01T00:00:00Z", "last": "2026-01-01T00:05:00Z"}'
    filled = cli("api", "POST", "/v1/schedules/asked:backfill", "--data", times)
    assert asked(json.loads(filled.stdout)["items"][0]["run_id"]) == "human:|ana"
    assert cli("api", "DELETE", "/v1/schedules/asked").exit_code == 0


@pytest.mark.parametrize(
    ("command", "request_"),
    [
        ("runs fork", "runner api POST /v1/runs/RUN:fork"),
        ("runs again", "runner api POST /v1/runs/RUN:again"),
        ("runs events", "runner runs watch RUN"),
        ("interrupts withdraw", "runner api POST /v1/questions/ID:withdraw"),
        ("interrupts vote-all", "runner api POST /v1/questions:vote"),
        ("keys api", "GET /v1/keys"),
    ],
)
def test_a_command_that_was_removed_names_its_request(cli, command, request_):
    """Control: the error of another unknown command names the help."""
    assert f"Use `{request_}`" in cli(*command.split(), "x").stderr
    assert "--help`" in cli(command.split()[0], "nothing").stderr


def ask(ctx):
    return ctx.interrupt("sure?")


@pytest.fixture
def moved(fake_store, call):
    """Two runs that wait at a node which has another name in the current graph, and the command line."""
    bench = Bench(
        wired({"a": ident, "b": ask}, "a b").build(),
        lambda clock: RedisStore(fake_store.url, push=False),
    )
    runs = []
    for _ in range(2):
        bench.start().finish()
        runs.append(bench.run_id)
    known = Registry()
    known.add("bench", wired({"a": ident, "approval": ask}, "a approval").build)
    bench.engine = Engine(bench.store, bench, known)
    bench.engine.publish(["bench"])
    yield bench, runs, functools.partial(call, "runs", "migrate", url=fake_store.url)
    bench.store.close()


@pytest.mark.full
def test_a_run_is_moved_and_each_node_reported(moved):
    """The line has the node, its new name and the outcome; then the run continues."""
    bench, runs, call = moved

    done = call(runs[0], "--map", "b=approval")

    assert (done.exit_code, done.stdout.rstrip("\n").split("\t")) == (
        0,
        [runs[0], "bench", "b", "approval", "is asked under its new name", "", ""],
    )
    bench.run_id = runs[0]
    bench.answer("yes")
    assert bench.finish().results["approval"].output == "yes"


@pytest.mark.full
def test_all_waiting_runs_of_a_graph_are_moved(moved):
    """Runs that can't be moved are reported with the reason; runs that need no migration are left out."""
    _, runs, call = moved

    refused = call("--graph", "bench", "--json")
    done = call("--graph", "bench", "--map", "b=approval", "--json")
    again = call("--graph", "bench")

    assert refused.exit_code == 5
    assert {run["run_id"] for run in json.loads(refused.stdout)["runs"]} == set(runs)
    assert all("b waits" in run["error"] for run in json.loads(refused.stdout)["runs"])
    assert done.exit_code == 0
    assert [run["moved"] for run in json.loads(done.stdout)["runs"]] == [True, True]
    assert (again.exit_code, again.stdout) == (0, "")


@pytest.mark.full
def test_what_can_not_be_moved_is_refused_with_the_way_out(moved):
    """The error names the flags; a wrong mapping or name, or neither a run nor a graph, is refused, too."""
    _, runs, call = moved

    unsaid, odd, neither = call(runs[0]), call(runs[0], "--map", "b="), call()
    twice, nowhere = (
        call(runs[0], "--map", "b=approval", "--map", "b=c"),
        call("--graph", "bnech"),
    )

    assert unsaid.exit_code == 5
    assert "--map OLD=NEW" in unsaid.stderr
    assert "OLD=NEW" in odd.stderr
    assert [odd.exit_code, neither.exit_code, call("00none").exit_code] == [2, 2, 4]
    assert [twice.exit_code, nowhere.exit_code] == [2, 4]


@pytest.mark.slow
def test_a_worker_carries_on_a_job_that_a_server_has_left(shop_url, waiting):
    """Its next sweep does the rest, and keeps the results of what was done."""
    jobs, client = Jobs(shop_url), Client(shop_url)
    job_id = begin(jobs, "cancel", "an incident", "ana", ["0none", waiting[0]]).job_id
    carry_on(client.engine, jobs, job_id, 1)

    wait_until(lambda: jobs.get(job_id).ended_at, "a worker has carried on the job")

    assert jobs.get(job_id).results[waiting[0]] == "cancelled"
    assert client.run(waiting[0]).status == "cancelled"
