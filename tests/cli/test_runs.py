from __future__ import annotations

import json
import time

from runner.cli.documents import InterruptDocument, NodeDocument, RunDocument, RunLine
from tests.waiting import wait_until


def test_runs_are_listed_newest_first(cli):
    """A line is a run: id, graph, status, time of start, tags."""
    older, newer = (cli("run", "shop-tell", "--input", "1", "--wait", "--json") for _ in range(2))

    listed = [line.split("\t") for line in cli("runs", "list", "--limit", "2").stdout.splitlines()]

    assert [cells[0] for cells in listed] == [json.loads(run.stdout)["run_id"] for run in (newer, older)]
    assert listed[0][1:3] == ["shop-tell", "completed"]


def test_runs_are_listed_by_status(cli, waiting):
    """`--status` leaves the others out."""
    listed = json.loads(cli("runs", "list", "--status", "interrupted", "--json").stdout)["runs"]

    assert waiting[0] in [run["run_id"] for run in listed]
    assert {run["status"] for run in listed} == {"interrupted"}
    assert set(listed[0]) == RunLine.__required_keys__


def test_runs_are_found_by_graph_tag_and_time(cli):
    """Filters cut the listing together; `next` is the cursor of what follows."""
    mark = f"t{time.time_ns()}"
    for number in range(3):
        cli("run", "shop-tell", "--input", "1", "--tag", f"mark={mark}", "--tag", f"n={number}")
    wanted = ("runs", "list", "--graph", "shop-tell", "--tag", f"mark={mark}", "--since", "1h", "--json")

    first = json.loads(cli(*wanted, "--limit", "2").stdout)
    rest = json.loads(cli(*wanted, "--limit", "2", "--cursor", first["next"]).stdout)
    plain = cli("runs", "list", "--tag", f"mark={mark}", "--limit", "1")

    assert [run["tags"]["n"] for run in first["runs"] + rest["runs"]] == ["2", "1", "0"]
    assert rest["next"] is None
    assert plain.stderr.startswith("More follow: --cursor ")
    assert cli("runs", "list", "--tag", f"mark={mark}", "--until", "2020-01-01").stdout == ""
    assert cli("runs", "list", "--since", "yesterday").exit_code == 2
    assert cli("runs", "list", "--cursor", "nonsense").exit_code == 2


def test_the_document_of_a_run_has_the_documented_keys(cli, waiting):
    """The keys of a run, its nodes and its questions are what the reference says, no less and no more."""
    run = json.loads(cli("runs", "show", waiting[0], "--json").stdout)

    nodes = {node["id"]: node for node in run["nodes"]}
    assert set(run) == RunDocument.__required_keys__
    assert all(set(node) == NodeDocument.__required_keys__ for node in run["nodes"])
    assert all(set(asked) == InterruptDocument.__required_keys__ for asked in run["interrupts"])
    assert (run["status"], run["task"], run["ended_at"]) == ("interrupted", 1042, None)
    assert nodes["stock"]["output"] == "in stock"
    assert nodes["approve"]["status"] == "waiting"
    assert run["interrupts"][0]["id"] == waiting[1]


def test_an_error_is_in_the_document_whole(cli):
    """A failed node has the type, the message and the traceback of its error."""
    run = json.loads(cli("run", "shop-fail", "--input", "7", "--wait", "--json").stdout)

    error = run["nodes"][0]["error"]
    assert (error["type"], error["message"]) == ("ValueError", "order 7 is not there")
    assert "raise ValueError" in error["traceback"]
    assert run["reason"]


def test_a_graph_inside_a_graph_is_shown_inside_its_node(cli):
    """The child run is part of its parent, and its question is among the parent's."""
    done = cli("run", "shop-outer", "--input", "1", "--wait")
    run_id = done.stdout.split("\t")[1]
    run = json.loads(cli("runs", "show", run_id, "--json").stdout)

    inner = next(node for node in run["nodes"] if node["id"] == "inner")["run"]
    assert done.exit_code == 3
    assert "node\tinner/stock\tcompleted" in done.stdout
    assert inner["graph"] == "shop-outer/inner"
    assert [asked["run_id"] for asked in run["interrupts"]] == [inner["run_id"]]


def test_control_characters_of_users_stay_inside_their_cell(cli):
    """What a node returns can't add a line, a cell or a colour to what others read."""
    done = cli("run", "shop-tell", "--input", '"\\u202eabc"', "--wait")

    node = done.stdout.splitlines()[1].split("\t")
    assert len(done.stdout.splitlines()) == 2
    assert node[6] == r"\u202eabc\x1b[31m\tand\nmore"


def test_json_is_ascii_whatever_is_in_it(cli):
    """No terminal and no encoding can misread the JSON."""
    done = cli("run", "shop-tell", "--input", '"\\u202eä\\u001b"', "--wait", "--json")

    assert done.stdout.isascii()
    assert json.loads(done.stdout)["task"] == "\u202eä\x1b"


def test_a_failed_run_is_retried(cli):
    """`runs retry` writes the nodes that run again; a run that has completed is a conflict."""
    run_id = cli("run", "shop-print", "--wait").stdout.split("\t")[1]

    done = cli("runs", "retry", run_id)

    assert (done.exit_code, done.stdout) == (0, "fail_once\n")
    wait_until(lambda: "completed" in cli("runs", "show", run_id).stdout.splitlines()[0], "it completes")
    again = cli("runs", "retry", run_id, "--node", "fail_once")
    assert again.exit_code == 5
    assert "has completed" in again.stderr
    assert cli("runs", "retry", "00none").exit_code == 4


def test_a_run_that_waits_is_cancelled(cli, waiting):
    """`runs cancel` ends the run and withdraws its question; a run that has ended is a conflict."""
    run_id, question = waiting

    done = cli("runs", "cancel", run_id, "--reason", "ordered twice", "--json")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["run_id"] == run_id
    wait_until(lambda: "cancelled" in cli("runs", "show", run_id).stdout.splitlines()[0], "it ends")
    assert json.loads(cli("runs", "show", run_id, "--json").stdout)["reason"] == "ordered twice"
    assert json.loads(cli("interrupts", "show", question, "--json").stdout)["status"] == "withdrawn"
    again = cli("runs", "cancel", run_id)
    assert again.exit_code == 5
    assert "nothing was changed" in again.stderr
    assert cli("runs", "cancel", "00none").exit_code == 4


def gave(cli, run_id):
    """Wait for a run of one node, and give its output."""
    wait_until(lambda: "completed" in cli("runs", "show", run_id).stdout.splitlines()[0], "it completes")
    return json.loads(cli("runs", "show", run_id, "--json").stdout)["nodes"][0]["output"]


def test_a_run_is_forked_and_started_again(cli):
    """`runs fork` and `runs again` write the id of the new run; the edited input is what the node gets."""
    source = cli("run", "shop-tell", "--input", "1", "--wait").stdout.split("\t")[1]

    forked = cli("runs", "fork", source, "--from", "tell", "--input", '"other"', "--tag", "by=ana")
    again = cli("runs", "again", source, "--json")

    assert (forked.exit_code, again.exit_code) == (0, 0)
    assert gave(cli, forked.stdout.strip()).startswith("other")
    assert gave(cli, json.loads(again.stdout)["run_id"]).startswith("1")
    listed = json.loads(cli("runs", "list", "--json", "--limit", "50").stdout)["runs"]
    tags = next(run["tags"] for run in listed if run["run_id"] == forked.stdout.strip())
    assert tags == {"by": "ana", "forked_from": source}
    assert cli("runs", "fork", source, "--from", "nobody").exit_code == 4
