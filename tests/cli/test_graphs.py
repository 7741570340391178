from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import jsonschema_rs
import pytest
from click.testing import Result

from runner.definition.registry import registry
from runner.settings import Settings
from runner.store.shared import open_store
from tests.cli.conftest import read
from tests.cli.schemas import schema
from tests.contract.store.manual_worker import ManualWorker, shape

HERE = Path(__file__).parent


@pytest.fixture
def graphs(cli, monkeypatch):
    """Call `runner graphs` in a folder with the modules there, as a program would that imports them anew."""

    def call(*arguments: str, modules: str = "shop", folder: Path = HERE) -> Result:
        with monkeypatch.context() as there:
            there.chdir(folder)
            there.syspath_prepend(str(folder))
            registry._factories.clear()
            registry._plans.clear()
            for name in ("shop", modules):  # as another test of this process may have left it
                sys.modules.pop(name, None)
            before = set(sys.modules)
            try:
                return cli("--graphs", modules, "graphs", *arguments)
            finally:
                for name in set(sys.modules) - before:
                    if name in {"shop", modules}:
                        del sys.modules[name]

    return call


def test_the_workers_graphs_are_listed(cli):
    """A program without the code sees what the workers have; graphs inside graphs are not listed."""
    listed = read(cli, "graphs", "list")["graphs"]

    shop = [graph for graph in listed if graph["name"].startswith("shop-")]
    assert [graph["name"] for graph in shop] == [
        "shop-count",
        "shop-desk",
        "shop-echo",
        "shop-endless",
        "shop-fail",
        "shop-outer",
        "shop-print",
        "shop-refund",
    ]
    assert {graph["place"] for graph in shop} == {"store"}


def test_a_folder_with_the_same_code_is_the_same(graphs):
    """With `--graphs` the graphs of this folder are compared with those of the workers."""
    done = graphs("list")

    assert [line.split("\t")[1] for line in done.stdout.splitlines()] == ["same"] * 8


def test_a_graph_is_shown_with_its_nodes_and_edges(graphs):
    """Nodes come first, then edges; in JSON an edge says whether it has a condition."""
    lines = graphs("show", "shop-refund").stdout.splitlines()
    document = read(graphs, "show", "shop-refund")

    assert lines[0] == "node\tlook_up\tfunction\tall\tshop-refund"
    assert lines[-1] == "edge\tapprove\tsend\tforward"
    assert [edge["condition"] for edge in document["edges"]] == [False, False, False, True]


def test_modules_that_are_not_there_are_named(graphs):
    """A wrong `--graphs` is one line that names the module."""
    done = graphs("list", modules="nowhere")

    assert done.exit_code == 2
    assert "'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_graph_that_is_not_here_is_not_found(graphs):
    """`graphs show` needs the code, and says what it knows."""
    done = graphs("show", "nope")

    assert done.exit_code == 4
    assert "shop-refund" in done.stderr


def test_a_graph_is_drawn(graphs):
    """`graphs draw` writes the picture alone; with `--json` it is a field of a document."""
    drawn = graphs("draw", "shop-refund").stdout
    svg = read(graphs, "draw", "shop-refund", "-o", "svg")

    assert drawn.splitlines()[2] == "●    look_up  function, starts here"
    assert svg["drawing"].startswith("<svg ")


def test_a_drawing_shows_look_alikes_as_escapes(graphs, tmp_path):
    """Also into a pipe; the control is JSON, whose text is the name itself."""
    (tmp_path / "twins.py").write_text(
        "from runner import GraphBuilder, graph\n\n\n"
        "@graph('twins')\ndef twins():\n    builder = GraphBuilder()\n"
        "    builder.add_node(lambda task: task, 'p\\u0430y')\n    return builder.build()\n"
    )
    drawn, document = (
        graphs("draw", "twins", *option, modules="twins", folder=tmp_path).stdout
        for option in ((), ("--json",))
    )

    assert ("p\\u0430y" in drawn, "p\u0430y" in drawn) == (True, False)
    assert "p\u0430y" in json.loads(document)["drawing"]


def test_graphs_are_checked(graphs):
    """`graphs check` reports a line for each problem, and exits with 0 while none is an error."""
    done = graphs("check")
    document = read(graphs, "check", "shop-refund")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert document == {"problems": [], "held": None}


def test_a_check_of_nothing_does_not_pass(tmp_path, monkeypatch, cli):
    """A deploy whose settings name no graphs fails with the reason."""
    monkeypatch.chdir(tmp_path)
    done = cli("graphs", "check")

    assert done.exit_code == 2
    assert "nothing was checked" in done.stderr


LATER = """
from runner import GraphBuilder, graph


@graph("shop-refund")
def refund():
    builder = GraphBuilder()
    for name in ("look_up", "stock", "approve"):
        builder.add_node(lambda ctx: 1, name)
    builder.add_edge("look_up", "stock")
    builder.add_edge("look_up", "approve")
    return builder.build()
"""


@pytest.mark.full
def test_a_deploy_is_checked_against_the_runs_that_wait(graphs, waiting, tmp_path):
    """`--against-waiting` names what this code would set aside, and exits with 5."""
    run_id, _ = waiting
    (tmp_path / "later_shop.py").write_text(LATER)

    def call(*arguments):
        return graphs("check", *arguments, modules="later_shop", folder=tmp_path)

    checked = call("--against-waiting")
    document = read(call, "--against-waiting")
    same = graphs("check", "--against-waiting", "--json")

    mine = [line.split("\t") for line in checked.stdout.splitlines() if run_id in line]
    assert checked.exit_code == 5
    assert [cells[:1] + cells[2:6] for cells in mine] == [
        ["held", "shop-refund", "approve", "1", "waiting"],
        ["held", "shop-refund", "send", "0", "pending"],
    ]
    assert mine[0][6] == "the edge from approve to send is gone"
    assert jsonschema_rs.is_valid(schema("graphs check"), document)
    assert (same.exit_code, json.loads(same.stdout)) == (0, {"problems": [], "held": []})
    assert call().exit_code == 0


BROKEN = """
from runner import GraphBuilder, graph


def build(condition):
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.interrupt("sure?"), "ask")
    builder.add_node(lambda ctx: 1, "go")
    builder.add_edge("ask", "go", condition)
    return builder.build()


@graph("typo")
def typo():
    return build(lambda state: state.results["aks"].output)


@graph("loose")
def loose():
    return build(None)


@graph("unbuilt")
def unbuilt():
    return GraphBuilder().build()
"""


def test_errors_of_graphs_fail_the_check(graphs, tmp_path):
    """Errors exit with 1, warnings only with `--strict`; a graph that can't be built is one, too."""
    (tmp_path / "broken_graphs.py").write_text(BROKEN)

    def call(*arguments):
        return graphs("check", *arguments, modules="broken_graphs", folder=tmp_path)

    every = call("--json")

    assert every.exit_code == 1
    problems = json.loads(every.stdout)["problems"]
    assert [(problem["graph"], problem["code"], problem["node"]) for problem in problems] == [
        ("loose", "question-without-schema", "ask"),
        ("typo", "unknown-node", "ask"),
        ("typo", "question-without-schema", "ask"),
        ("unbuilt", "not-built", ""),
    ]
    assert [
        call("loose").exit_code,
        call("loose", "--strict").exit_code,
        call("nope").exit_code,
    ] == [
        0,
        1,
        4,
    ]


@pytest.fixture
def two(call, redis_url):
    """A store of two partitions with the graph `old`, and the command line on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNNER_PARTITIONS", "2")
        store = open_store(Settings(redis_url=redis_url), push=False)
        store.publish(
            [shape("a", name="old"), shape("a", name="old/inner"), shape("a", name="new")]
        )
        yield store, functools.partial(call, url=redis_url)
        store.close()


@pytest.mark.full
def test_a_graph_that_nothing_needs_is_removed(two):
    """It goes from every partition with the graphs inside it, until a program publishes it again."""
    store, cli = two
    assert "no worker has new, old: new runs would wait\tStart" in cli("doctor").stdout
    assert "`runner graphs remove`" in cli("doctor").stdout

    removed = cli("graphs", "remove", "old")

    assert (removed.exit_code, removed.stdout) == (0, "removed\told\n")
    assert [list(one.graphs()) for one in store._partitions] == [["new"], ["new"]]
    assert [cli("graphs", "remove", name).exit_code for name in ("old", "nowhere")] == [4, 4]
    assert ManualWorker(store).start(shape("a", name="old"))


@pytest.mark.full
def test_a_graph_that_is_needed_is_not_removed(two, cli):
    """Neither while a worker has it, nor while a schedule names it, nor while there are runs of it."""
    store, command = two
    worker = ManualWorker(store)
    run_ids = [worker.start(shape("a", name="old"), beside=number) for number in ("00", "01")]

    refused = command("graphs", "remove", "old")
    assert (refused.exit_code, store.graphs().keys()) == (5, {"old", "old/inner", "new"})
    assert "runs of it are in the store (1)" in refused.stderr
    for run_id in reversed(run_ids):
        worker.settle(worker.token(run_id, "a"))
        assert command("graphs", "remove", "old").exit_code == 5
        assert all(one.graphs() == store.graphs() for one in store._partitions)
        assert command("runs", "remove", run_id, "--yes").exit_code == 0
        worker.store.sweep()
    schedule = '{"id": "nightly", "graph": "old", "interval": 300}'
    assert command("api", "POST", "/v1/schedules", "--data", schedule).exit_code == 0
    assert "the schedule 'nightly' starts it" in command("graphs", "remove", "old").stderr
    assert command("api", "DELETE", "/v1/schedules/nightly").exit_code == 0
    assert command("graphs", "remove", "old").exit_code == 0

    served = cli("graphs", "remove", "shop-echo")
    assert served.exit_code == 5
    assert "has it and would publish it again" in served.stderr
