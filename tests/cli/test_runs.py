"""Starting, listing, showing, watching and exporting runs."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from runner import Client, GraphBuilder
from runner.cli.run_tree import draw
from runner.client import SweeperDispatcher
from runner.definition.registry import Registry
from runner.limits.concurrency import Admission, Concurrency
from runner.operations.exports import error_of, read_export
from runner.operations.views import NodeView, archived_run, read_run
from runner.records import failures
from runner.records.budgets import Spending
from runner.records.json_form import document
from runner.records.run import Status
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.store.requests import SpendBudget
from runner.testing import ManualClock
from tests.cli.conftest import read
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.graphs import wired
from tests.waiting import wait_until

YES = '{"decision": "approve"}'


# -- runner run ----


@pytest.mark.full
@pytest.mark.parametrize(("name", "command"), [("list", "list"), ("show", "show")])
def test_run_for_runs_is_told(cli, name, command):
    """`runner run list` names the command that was meant; control: an unknown graph of another name."""
    refused = cli("run", name)
    unknown = cli("run", "nobody")

    assert f"Did you mean `runner runs {command}`?" in refused.stderr
    assert "Did you mean" not in unknown.stderr


def test_run_writes_the_id_alone(cli):
    """A script can keep what `runner run` writes: it is the run's id and nothing else."""
    started = cli("run", "shop-echo", "--input", '"hello"')

    run_id = started.stdout.strip()

    assert (started.exit_code, started.stderr) == (0, "")
    assert cli("runs", "show", run_id).stdout.startswith(f"run\t{run_id}\tshop-echo\t")


def test_waiting_for_a_run_that_completes_ends_with_0(cli):
    """`--wait` watches to the end: events on stderr, the result on stdout."""
    done = cli("run", "shop-echo", "--input", "1", "--wait")

    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("node\techo\tcompleted\t1\t1\t")
    kinds = [line.split("\t")[1] for line in done.stderr.splitlines()]
    assert kinds[-1] == "run.ended"
    assert "node.completed" in kinds


def test_waiting_for_a_run_that_fails_ends_with_1(cli):
    """A failed run shows in the exit code, and its error in the line of the node."""
    done = cli("run", "shop-fail", "--input", "7", "--wait")

    assert done.exit_code == 1
    assert "ValueError: order 7 is not there" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_run_that_takes_too_long_ends_with_8_and_continues(cli, shop_url):
    """`--timeout` ends the watching, not the run."""
    done = cli("run", "shop-endless", "--wait", "--timeout", "0.3")

    run = Client(redis_url=shop_url).run(done.stderr.splitlines()[0].split("\t")[1])

    assert done.exit_code == 8
    assert "it continues" in done.stderr
    assert run.status == "executing"
    run.cancel("the test is over")
    assert run.wait(timeout=60).status == "cancelled"


def test_a_cancelled_run_ends_with_1(cli, shop_url):
    """Cancelled is not done: a script that waited must notice."""
    key = "cancelled-once"
    run_id = cli("run", "shop-endless", "--idempotency-key", key).stdout.strip()
    Client(redis_url=shop_url).run(run_id).cancel("the test is over")

    assert cli("run", "shop-endless", "--idempotency-key", key, "--wait").exit_code == 1


@pytest.mark.full
def test_input_comes_from_a_file_or_from_standard_input(cli, tmp_path):
    """`@file` and `-` are other ways to pass the same JSON."""
    (tmp_path / "order.json").write_text('{"order": 7}')

    from_file = cli(
        "run", "shop-echo", "--json", "--wait", "--input", f"@{tmp_path / 'order.json'}"
    )
    from_stdin = cli(
        "run", "shop-echo", "--json", "--wait", "--input", "-", stdin='{"order": 7}'
    )

    assert json.loads(from_file.stdout)["task"] == {"order": 7}
    assert json.loads(from_stdin.stdout)["task"] == {"order": 7}


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "nope"], 4, "'nope'"),
        (
            ["run", "shop-echo", "--input", "yes"],
            2,
            """Hint: Text needs its own quotes: --input '"yes"'\n""",
        ),
        (
            ["run", "shop-echo", "--input", "it's"],
            2,
            "--input " + shlex.quote('"it\'s"') + "\n",
        ),
        (["run", "shop-echo", "--input", '{"a": 1, "a": 2}'], 2, "same key twice"),
        (["run", "shop-echo", "--input", "@/nowhere.json"], 2, "can't be read"),
        (["run", "shop-echo", "--tag", "team"], 2, "'team' is not KEY=VALUE."),
        (["run", "shop-echo", "--tag", "a=1", "--tag", "a=2"], 2, "'a=2' repeats a key."),
        (["run", "shop-echo", "--timeout", "3"], 2, "use both"),
        (["run"], 2, "Missing argument 'GRAPH'"),
        (["rnu"], 2, "'run'"),
        (["runs", "show", "nope"], 4, "no run 'nope'"),
        (["interrupts", "show", "nope"], 4, "'nope'"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(cli, arguments, code, message):
    """Each mistake has one line, at most one hint, its own code and no traceback."""
    done = cli(*arguments)

    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("number", ["1" * 50, "1e999"])
def test_a_number_that_is_refused_needs_no_quotes(cli, number):
    """The error is one line: quotes would make it a text, and it was meant as a number."""
    done = cli("run", "shop-echo", "--input", number)

    assert (done.exit_code, done.stderr.count("\n"), "quotes" in done.stderr) == (2, 1, False)


def test_a_store_that_is_not_there_ends_with_7(cli):
    """Without a store nothing is started, and the error has the address that was tried."""
    done = cli("runs", "list", url="redis://127.0.0.1:1/0")

    assert done.exit_code == 7
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_debug_shows_where_an_error_came_from(cli):
    """With `--debug`, before or after the command, the traceback comes first."""
    for arguments in (["--debug", "runs", "show", "nope"], ["runs", "show", "nope", "--debug"]):
        assert "Traceback" in cli(*arguments).stderr


def test_a_setting_that_makes_no_sense_is_a_usage_error(cli, monkeypatch):
    """A bad value in the environment is named, in one line."""
    monkeypatch.setenv("RUNNER_RETENTION", "soon")

    done = cli("runs", "list")

    assert done.exit_code == 2
    assert "RUNNER_RETENTION" in done.stderr
    assert "soon" in done.stderr


# -- list and show ----


@pytest.mark.full
def test_runs_are_listed_newest_first(cli):
    """A line is a run: id, graph, status, time of start, tags."""
    older, newer = (
        cli("run", "shop-echo", "--input", "1", "--wait", "--json") for _ in range(2)
    )

    listed = [
        line.split("\t") for line in cli("runs", "list", "--limit", "2").stdout.splitlines()
    ]

    assert [cells[0] for cells in listed] == [
        json.loads(run.stdout)["run_id"] for run in (newer, older)
    ]
    assert listed[0][1:3] == ["shop-echo", "completed"]


def test_runs_are_listed_by_status(cli, waiting):
    """`--status` filters the list."""
    listed = read(cli, "runs", "list", "--status", "interrupted")["runs"]

    assert waiting[0] in [run["run_id"] for run in listed]
    assert {run["status"] for run in listed} == {"interrupted"}


def test_the_document_of_a_run_has_its_nodes_and_questions(cli, waiting):
    """`runs show --json` has task, times, nodes with outputs, and the open questions."""
    run = read(cli, "runs", "show", waiting[0])

    nodes = {node["id"]: node for node in run["nodes"]}
    assert (run["status"], run["task"], run["ended_at"]) == ("interrupted", 1042, None)
    assert nodes["stock"]["output"] == "in stock"
    assert nodes["approve"]["status"] == "waiting"
    assert run["interrupts"][0]["id"] == waiting[1]


def test_an_error_is_in_the_document_whole(cli):
    """A failed node has the type, the message and the traceback of its error."""
    run = read(cli, "run", "shop-fail", "--input", "7", "--wait")

    error = run["nodes"][0]["error"]
    assert (error["type"], error["message"]) == ("ValueError", "order 7 is not there")
    assert "raise ValueError" in error["traceback"]
    assert error["location"].endswith("tests/cli/shop.py:45 in fail")
    (line,) = [
        line
        for line in cli("runs", "show", run["run_id"]).stdout.splitlines()
        if line.startswith("node\t")
    ]
    assert line.split("\t")[-2:] == [run["nodes"][0]["worker"], error["location"]]
    assert run["nodes"][0]["worker"].startswith("celery@")
    assert run["reason"]


def test_an_error_is_located_in_the_user_s_code():
    """Where a library raised, it is the line that called the library; also in a group's last error."""

    def broken():
        return json.loads("{")

    with pytest.raises(ValueError, match="Expecting") as raised:
        broken()
    for error in (raised.value, ExceptionGroup("two", [raised.value])):
        found = error_of({"error": asdict(failures.record(error))})
        assert found.location.endswith(" in broken")
        assert found.location.startswith(__file__)


def test_a_graph_inside_a_graph_is_shown_inside_its_node(cli):
    """The child run is part of its parent, and its question is among the parent's."""
    done = cli("run", "shop-outer", "--input", "1", "--wait")
    run_id = done.stdout.split("\t")[1]
    run = read(cli, "runs", "show", run_id)

    inner = next(node for node in run["nodes"] if node["id"] == "inner")["run"]
    assert done.exit_code == 3
    assert "node\tinner/stock\tcompleted" in done.stdout
    assert inner["graph"] == "shop-outer/inner"
    assert [question["run_id"] for question in run["interrupts"]] == [inner["run_id"]]


def test_control_characters_of_users_stay_inside_their_cell(cli):
    """What a node returns can't add a line, a cell or a colour to the output."""
    done = cli("run", "shop-echo", "--input", '"\\u202eabc"', "--wait")

    node = done.stdout.splitlines()[-1].split("\t")
    assert len(done.stdout.splitlines()) == 3
    assert node[6] == r"\u202eabc\x1b[31m\tand\nmore"


def test_json_is_ascii_whatever_is_in_it(cli):
    """No terminal and no encoding can misread the JSON."""
    done = cli("run", "shop-echo", "--input", '"\\u202eä\\u001b"', "--wait", "--json")

    assert done.stdout.isascii()
    assert json.loads(done.stdout)["task"] == "\u202eä\x1b"


def work(ctx):
    if ctx.task == "bad":
        raise ValueError("no such invoice")
    return ctx.interrupt("ok?", assignees=["ana"]) if ctx.task == "ask" else ctx.task


def run_of(items):
    store, builder = MemoryStore(), GraphBuilder()
    builder.add_map(work, "invoices", on_error="continue", concurrency=2)
    result = builder.set_store(store).build()(items)
    return read_run(store, result.run_id)


@pytest.mark.full
def test_a_queued_run_is_not_drawn_as_an_error(fake_store):
    """What it waits for is no error; control: why another was cancelled is in red."""
    registry, rules = Registry(), Admission(concurrency=Concurrency(1, by="tag:team"))
    registry.add("sync", lambda: wired({"work": work}).build(), rules)
    store, shown = fake_store.open(), {}
    client = Client(store=store, dispatcher=SweeperDispatcher(), registry=registry)
    first, _, third = (client.start("sync", "ask", tags={"team": "shop"}) for _ in range(3))
    first.cancel("too late")
    for run in (third, first):
        view, console = (
            read_run(store, run.id),
            Console(file=io.StringIO(), force_terminal=True),
        )
        console.print(draw(view, view.created_at))
        shown[view.reason] = "\x1b[31m  " in console.file.getvalue()
    assert list(shown.values()) == [False, True], shown


def test_a_map_is_one_line_with_counts():
    """The tree shows a map as one line, and below it the items that wait or have failed."""
    run = run_of(["a", "ask", "b", "bad"])
    console = Console(file=io.StringIO(), width=200)
    console.print(draw(run, run.created_at))
    lines = [line.strip(" ├└─│") for line in console.file.getvalue().splitlines()]

    assert "1 failed, 2 of 4 items done, 1 waiting" in lines[1]
    assert [line.split()[1] for line in lines[2:] if " invoices[" in line] == [
        "invoices[1]",
        "invoices[3]",
    ]
    assert any("asks ok? of ana" in line for line in lines)
    assert not any("invoices[0]" in line for line in lines)


def drawn(run, now, columns=80):
    console = Console(file=io.StringIO(), width=columns)
    console.print(draw(run, now))
    return [line.strip(" ├└─│") for line in console.file.getvalue().splitlines()]


def of_status(**numbers):
    return [
        NodeView("", Status(status), 1, 1)
        for status, number in numbers.items()
        for _ in range(number)
    ]


@pytest.mark.full
def test_what_runs_long_has_a_bar_with_its_rate_and_the_rest():
    """A map, a node that reports it, a graph of many nodes; control: a map that waits for people."""
    run, now = run_of(["a"]), 1_700_000_000_000
    items = tuple(of_status(completed=500, failed=28, running=3))
    invoices = NodeView(
        "invoices" * 5, Status.WAITING, 1, 1, now - 10_000, 0, total=2000, items=items
    )
    pack = NodeView("pack", Status.RUNNING, 1, 1, now - 10_000, 0, progress="40% half of it")
    asks = replace(invoices, items=tuple(of_status(waiting=1)))
    run = replace(run, status=Status.EXECUTING, created_at=now - 10_000)

    lines = drawn(replace(run, nodes=(invoices,)), now)
    assert "28 failed, 5" in lines[1]
    assert lines[2].strip("━╸╺ ").split() == ["26%", "53/s", "27.9", "s", "left"]
    lines = drawn(replace(run, nodes=(pack,)), now)
    assert lines[2].strip("━╸╺ ").split() == ["40%", "15.0", "s", "left"]
    nodes = tuple(of_status(completed=3, skipped=1, pending=4))
    assert not any("━" in line for line in drawn(replace(run, nodes=(*nodes, asks)), now))
    lines = drawn(replace(run, nodes=(*nodes, asks, asks)), now)
    assert lines[1].strip("━╸╺ ").split() == ["40%", "0.4/s", "15.0", "s", "left"]


def test_the_time_of_a_map_is_that_of_all_its_items():
    """Not only that of the map's own code, which stores the list; also once the run is archived."""
    clock, builder = ManualClock(), GraphBuilder()
    store = MemoryStore(clock=clock)
    builder.add_map(lambda ctx: clock.advance(7), "each", concurrency=1)
    result = builder.set_store(store).build()([1, 2])
    assert result.status == Status.COMPLETED

    view = read_run(store, result.run_id)
    archived = archived_run(json.loads(json.dumps(document(read_export(store, result.run_id)))))
    assert (view.nodes[0].execution_ms, archived.nodes[0].execution_ms) == (14_000, 14_000)
    assert "14.0 s" in drawn(view, clock())[1]


def test_neither_errors_nor_questions_are_cut_off_in_80_columns():
    """They continue on the next line, as do the people who are asked."""

    def work(ctx):
        if ctx.task == "bad":
            raise ValueError("no such invoice in the ledger of the year " * 3)
        return ctx.interrupt(
            "pay this invoice of a customer, whose limit is used up?", assignees=["ana" * 12]
        )

    builder = GraphBuilder()
    builder.add_map(work, "invoices", on_error="continue")
    store = MemoryStore()
    run = read_run(store, builder.set_store(store).build()(["bad", "ask"]).run_id)
    text = " ".join(" ".join(drawn(run, run.created_at)).split())
    assert text.count("no such invoice in the ledger of the year") == 3
    assert "".join(text.split()).count("ana") == 12
    assert "…" not in text


def test_the_document_of_a_map_has_its_items():
    """In JSON a map has its items inside, and the run has their questions."""
    run = document(run_of(["a", "ask"]))

    (node,) = run["nodes"]
    assert (node["total"], [item["id"] for item in node["items"]]) == (
        2,
        ["invoices[0]", "invoices[1]"],
    )
    assert [question["node"] for question in run["interrupts"]] == ["invoices[1]"]


# -- watch, events, export ----


def cells(text):
    return [line.split("\t") for line in text.splitlines()]


def test_watching_a_run_ends_when_it_waits_only_for_people(cli, waiting):
    """Without a terminal a line is an event: time since the start, kind, node, details."""
    run_id, question = waiting
    done = cli("runs", "watch", run_id)

    assert done.exit_code == 3
    event = next(line for line in cells(done.stdout) if line[1] == "interrupt.asked")
    assert event[2] == "approve"
    assert event[3].startswith(f"{question} ")
    assert json.loads(event[3].partition(" ")[2])["assignees"] == ["ana", "ben"]


@pytest.mark.slow
def test_following_a_run_lasts_until_it_has_ended(cli, shop_url, waiting):
    """`--follow` watches while people think; each event is a line of JSON as soon as it happens."""
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
    assert (events[0]["kind"], events[-1]["kind"]) == ("run.started", "run.ended")
    answered = next(event for event in events if event["kind"] == "interrupt.answered")
    assert answered["data"] == {"response": {"decision": "approve"}, "responder": "ana"}


@pytest.mark.slow
def test_watching_has_an_end(cli, shop_url):
    """`--timeout` ends with 8, and the run continues; no such run is 4."""
    run_id = cli("run", "shop-endless", "--input", "1").stdout.strip()

    done = cli("runs", "watch", run_id, "--timeout", "0.3")

    assert (done.exit_code, cli("runs", "watch", "00none").exit_code) == (8, 4)
    Client(redis_url=shop_url).run(run_id).cancel()
    assert cli("runs", "watch", run_id).exit_code == 1


@pytest.mark.full
def test_a_run_is_exported_whole(cli, waiting):
    """The document has visits, questions with their answers, events, and the child runs."""
    run_id = cli("run", "shop-outer", "--input", "1", "--wait").stdout.split("\t")[1]
    run = json.loads(cli("runs", "export", run_id).stdout)
    (inner,) = run["runs"]

    assert (run["v"], run["task"], run["parent"], inner["parent"]) == (1, 1, None, run_id)
    assert {visit["node"]: visit["status"] for visit in inner["visits"]} == {
        "approve": "waiting",
        "look_up": "completed",
        "stock": "completed",
    }
    assert inner["interrupts"][0]["assignees"] == ["ana", "ben"]
    assert run["events"][0]["kind"] == "run.started"
    assert cli("runs", "export", "00none").exit_code == 4


@pytest.mark.slow
def test_ctrl_c_ends_the_watching_and_not_the_run(shop_url):
    """After Ctrl-C, `run --wait` prints that the run is still running."""
    key = "watched"
    client = Client(redis_url=shop_url)
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "runner.cli",
            "run",
            "shop-endless",
            "--wait",
            "--idempotency-key",
            key,
        ],
        env={**os.environ, "RUNNER_REDIS_URL": shop_url},
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        try:
            run = client.run(watching.stderr.readline().strip().split("\t")[1])
            wait_until(lambda: "node.started" in watching.stderr.readline(), "the run goes")

            watching.send_signal(signal.SIGINT)

            assert watching.wait(timeout=60) == 130
            assert f"run {run.id} is still running" in watching.stderr.read()
        finally:
            watching.kill()
    assert run.status == "executing"
    run.cancel("the test is over")


@pytest.mark.full
def test_what_agents_have_spent_is_shown(call, fake_store):
    """With the bound that holds now: for people, for pipes, and in JSON."""
    url = fake_store.url
    store = RedisStore(url, push=False)
    run_id = ManualWorker(store).start(shape("a"))
    raises = {"q": ("model_calls", 1)}
    amounts = {"tokens": 1200, "model_calls": 3, "cost": 12_500}
    store.do(SpendBudget(run_id, None, Spending("a", "1", amounts, {"model_calls": 4}, raises)))
    lines = call("runs", "show", run_id, url=url).stdout.splitlines()
    shown = json.loads(call("runs", "show", run_id, "--json", url=url).stdout)

    assert lines[1:4] == [
        "spent\ttokens\t1,200",
        "spent\tmodel_calls\t3 of 5",
        "spent\tcost\t0.0125",
    ]
    assert shown["spent"]["model_calls"] == {"spent": 3, "bound": 4, "raised": 1}
