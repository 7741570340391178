"""Ended runs reach the archive before they expire, whatever happens to workers and to the archive."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from runner import Status
from runner.cli.program import runner
from runner.records.listings import RunQuery
from runner.store.archive import open_archive
from runner.store.redis.keys import Keys
from tests.chaos.kill_switch import arm, died_at
from tests.waiting import wait_until

KEYS = Keys()
EVERYTHING = RunQuery()
SETTINGS = {
    "RUNNER_GRAPHS": "tests.chaos.archive_graphs",
    "RUNNER_SWEEP_INTERVAL": "0.1",
    "RUNNER_RETENTION": "2",
}

ARCHIVED = {"archived": True, "size": 0, "output": None}
"""What differs in the view of a run that only the archive has: its nodes have the outputs."""


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "archive")


@pytest.fixture
def call(empty_site, place):
    """Call the command line with the site's store and the archive."""

    def invoke(*arguments, exit_code=0):
        settings = {"RUNNER_REDIS_URL": empty_site.url, "RUNNER_ARCHIVE": place}
        done = CliRunner().invoke(
            runner, arguments, env={**settings, "RUNNER_SWEEP_INTERVAL": "0.1"}
        )
        assert exit_code in {done.exit_code, None}, done.output
        return done.stdout

    return invoke


def start(site, place, app="runner.celery:app", **settings):
    worker = site.add(app=app, **{**SETTINGS, "RUNNER_ARCHIVE": place, **settings})
    worker.wait_ready()
    return worker


def is_gone(site, run):
    return not site.redis.exists(KEYS.run(run.id))


def doctor(call):
    checks = json.loads(call("--json", "doctor", exit_code=None))["checks"]
    return next(
        ((check["result"], check["detail"]) for check in checks if check["name"] == "archive"),
        None,
    )


def test_a_run_is_shown_and_listed_after_it_has_expired(empty_site, place, call):
    """What `runs show`, `list` and `export` write of a run and those inside it stays, marked as archived."""
    worker = start(empty_site, place, RUNNER_RETENTION="10")
    run = empty_site.client.start("report", "go", tags={"order": "7"})
    assert run.wait(60).status is Status.COMPLETED
    shown = json.loads(call("--json", "runs", "show", run.id))
    exported = json.loads(call("runs", "export", run.id))
    listed = json.loads(call("--json", "runs", "list"))["runs"]
    lines = call("runs", "show", run.id).splitlines()
    (child,) = exported["runs"]
    assert len(listed) == 2
    assert not any(run["archived"] for run in listed)
    assert len(child["visits"][0]["output"]) == 2_000_000

    wait_until(lambda: is_gone(empty_site, run), "the run has expired")
    wait_until(
        lambda: empty_site.redis.zcard(f"{KEYS.prefix}retired") == 0, "a sweep has forgotten it"
    )

    again = json.loads(call("--json", "runs", "show", run.id))
    assert again == {**shown, **ARCHIVED} | {"nodes": archived_nodes(shown["nodes"])}
    assert json.loads(call("runs", "export", run.id)) == exported
    assert json.loads(call("runs", "export", child["run_id"])) == child
    unknown = {"ended_at": None, "requester": ""}
    expected = [{**line, **unknown, "archived": True} for line in listed]
    assert json.loads(call("--json", "runs", "list"))["runs"] == expected
    assert json.loads(call("--json", "runs", "list", "--tag", "order=7"))["runs"] == [
        expected[1]
    ]
    assert call("runs", "show", run.id[:-4]).splitlines() == [
        lines[0] + "\tarchived",
        *lines[1:],
    ]
    assert call("runs", "list").splitlines()[0].endswith("\torder=7\t\tarchived")
    call("runs", "show", "00" + "0" * 26, exit_code=4)
    assert "ERROR" not in worker.output()


def archived_nodes(nodes):
    return [
        {**node, "run": {**node["run"], **ARCHIVED}} if node["run"] else node for node in nodes
    ]


def test_runs_wait_for_an_archive_that_can_not_be_written(empty_site, tmp_path, call, place):
    """While the archive fails nothing expires, the log and `doctor` say why, and it goes on by itself."""
    blocked = tmp_path / "blocked"
    blocked.touch()
    worker = start(empty_site, str(blocked / "archive"))
    runs = [empty_site.client.start("report", number) for number in range(3)]
    for run in runs:
        run.wait(60)
    wait_until(lambda: "archive.fails:" in worker.output(), "the log says so")
    wait_until(lambda: "Not a directory" in str(doctor(call)), "doctor says so")
    assert doctor(call)[0] == "fail"
    metrics = call("metrics")
    assert "runner_runs_unarchived 3" in metrics
    assert "runner_archive_failing 1" in metrics
    assert {empty_site.redis.pttl(KEYS.run(run.id)) for run in runs} == {-1}

    blocked.unlink()
    # What failed is taken again after a minute; a test need not wait for it.
    for run in runs:
        empty_site.redis.zadd(KEYS.unarchived, {run.id: 0})

    wait_until(lambda: "archive.resumed:" in worker.output(), "the log says so")
    wait_until(lambda: empty_site.redis.zcard(KEYS.unarchived) == 0, "all are archived")
    archive = open_archive(str(blocked / "archive"))
    assert all(archive.read(run.id) for run in runs)
    wait_until(lambda: doctor(call)[0] == "pass", "doctor is content")


def died_at_mark(site, place, app, point):
    """Kill a worker before or after it lets a run expire."""
    worker = start(site, place, app)
    run = site.client.start("report", "go")
    arm(site, point, run.id)
    run.wait(60)
    wait_until(lambda: died_at(site, point, run.id), "the worker dies")
    wait_until(lambda: not worker.alive, "the worker is gone")
    return run


def test_a_worker_that_dies_after_writing_writes_again(empty_site, place):
    """A kill between the write and its mark in the store loses nothing: the run is archived once more."""
    run = died_at_mark(empty_site, place, "tests.chaos.kill_points:app", "archived.before")
    archive = open_archive(place)
    assert archive.read(run.id)["status"] == "completed"
    assert empty_site.redis.pttl(KEYS.run(run.id)) == -1

    empty_site.redis.zadd(KEYS.unarchived, {run.id: 0})  # a minute later
    start(empty_site, place)

    wait_until(lambda: is_gone(empty_site, run), "the run has expired")
    assert [line.run_id for line in archive.runs(EVERYTHING, 10) if not line.parent] == [run.id]
    assert archive.read(run.id)["run_id"] == run.id


def test_without_that_order_a_run_is_lost(empty_site, place):
    """Control: a worker that marks runs before it writes them loses one when it is killed in between."""
    run = died_at_mark(
        empty_site, place, "tests.chaos.marks_before_writing:app", "archived.after"
    )
    start(empty_site, place)

    wait_until(lambda: is_gone(empty_site, run), "the run has expired")
    assert open_archive(place).read(run.id) is None


def test_a_database_that_restarts_is_written_to_again(empty_site, postgres, call):
    """With an archive in Postgres, runs wait while it is down, and are archived when it is back."""
    worker = start(empty_site, postgres.url)
    first = empty_site.client.start("report", 1)
    first.wait(60)
    wait_until(lambda: is_gone(empty_site, first), "the run has expired")
    postgres.stop()
    second = empty_site.client.start("report", 2)
    second.wait(60)
    wait_until(lambda: "archive.fails:" in worker.output(), "the log says so")
    assert empty_site.redis.pttl(KEYS.run(second.id)) == -1

    postgres.start()
    empty_site.redis.zadd(KEYS.unarchived, {second.id: 0})

    wait_until(lambda: is_gone(empty_site, second), "the run has expired")
    archive = open_archive(postgres.url)
    assert archive.read(first.id)["task"] == 1
    exported = archive.read(second.id)
    assert exported["task"] == 2
    assert exported["visits"][0]["output"] == {"attempt": 2, "text": "\x00é"}
    assert len(exported["runs"][0]["visits"][0]["output"]) == 2_000_000
