"""Looking on while runs go, reading what happened, and taking a run away whole."""

from __future__ import annotations

import json
import subprocess
import sys

from runner import Client
from runner.cli.documents import EventDocument
from runner.cli.export import ExportDocument, VisitDocument

YES = '{"decision": "approve"}'


def cells(text):
    return [line.split("\t") for line in text.splitlines()]


def test_watching_a_run_ends_when_only_people_can_go_on(cli, waiting):
    """Without a terminal a line is an event: time since the start, kind, node, what it is about."""
    run_id, question = waiting
    done = cli("runs", "watch", run_id)

    assert done.exit_code == 3
    asked = next(line for line in cells(done.stdout) if line[1] == "interrupt.asked")
    assert asked[2] == "approve"
    assert asked[3].startswith(f"{question} ")
    assert json.loads(asked[3].partition(" ")[2])["assignees"] == ["ana", "ben"]


def test_following_a_run_goes_on_until_it_has_ended(cli, shop_url, waiting):
    """`--follow` looks on while people think; each event is a line of JSON as soon as it happens."""
    run_id, question = waiting
    program = [sys.executable, "-m", "runner.cli", "--redis-url", shop_url]
    command = [*program, "runs", "watch", run_id, "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        events = [json.loads(watching.stdout.readline())]
        while events[-1]["kind"] != "interrupt.asked":
            events.append(json.loads(watching.stdout.readline()))
        cli("interrupts", "respond", question, "--response", YES, "--responder", "ana")
        events += [json.loads(line) for line in watching.stdout]

    assert watching.returncode == 0
    assert set(events[0]) == EventDocument.__required_keys__
    assert (events[0]["kind"], events[-1]["kind"]) == ("run.started", "run.ended")
    answered = next(event for event in events if event["kind"] == "interrupt.answered")
    assert answered["data"] == {"response": {"decision": "approve"}, "responder": "ana"}


def test_watching_has_an_end(cli, shop_url):
    """`--timeout` ends with 8, and the run goes on; no such run is 4."""
    run_id = cli("run", "shop-endless", "--input", "1").stdout.strip()

    done = cli("runs", "watch", run_id, "--timeout", "0.3")

    assert (done.exit_code, cli("runs", "watch", "00none").exit_code) == (8, 4)
    Client(redis_url=shop_url).run(run_id).cancel()
    assert cli("runs", "watch", run_id).exit_code == 1


def test_events_are_read_on_from_a_position(cli):
    """Events come in order, those of a graph inside with the way to their node; `--after` goes on."""
    run_id = cli("run", "shop-outer", "--input", "1", "--wait").stdout.split("\t")[1]

    events = cells(cli("runs", "events", run_id).stdout)
    rest = cli("runs", "events", run_id, "--after", events[3][0])
    as_json = [json.loads(line) for line in cli("runs", "events", run_id, "--json").stdout.splitlines()]

    assert [int(event[0]) for event in events] == list(range(1, len(events) + 1))
    assert "inner/approve" in {event[3] for event in events if event[2] == "interrupt.asked"}
    assert cells(rest.stdout) == events[4:]
    assert [event["position"] for event in as_json] == [event[0] for event in events]
    assert cli("runs", "events", run_id, "--after", "x").exit_code == 2
    assert cli("runs", "events", "00none").exit_code == 4


def test_a_run_is_exported_whole(cli, waiting):
    """The document holds visits, questions with their answers, events, and the graphs inside."""
    run_id = cli("run", "shop-outer", "--input", "1", "--wait").stdout.split("\t")[1]
    run = json.loads(cli("runs", "export", run_id).stdout)
    (inner,) = run["runs"]

    for document in (run, inner):
        assert set(document) == ExportDocument.__required_keys__
        assert all(set(visit) == VisitDocument.__required_keys__ for visit in document["visits"])
    assert (run["v"], run["task"], run["parent"], inner["parent"]) == (1, 1, None, run_id)
    assert {visit["node"]: visit["status"] for visit in inner["visits"]} == {
        "approve": "waiting",
        "look_up": "completed",
        "stock": "completed",
    }
    assert inner["interrupts"][0]["assignees"] == ["ana", "ben"]
    assert run["events"][0]["kind"] == "run.started"
    assert cli("runs", "export", "00none").exit_code == 4
