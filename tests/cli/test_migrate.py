from __future__ import annotations

import json

import jsonschema_rs
import pytest
from click.testing import CliRunner

from runner.cli.program import runner
from runner.cli.schemas import schema
from runner.engine import Engine
from runner.registry import Registry, registry
from runner.store.redis import RedisStore
from tests.core.graphs import Bench, ident, wired


def ask(ctx):
    return ctx.interrupt("sure?")


@pytest.fixture
def moved(redis_url, monkeypatch):
    """Two runs that wait at a node which the workers know under another name by now, and the command line."""
    bench = Bench(
        wired({"a": ident, "b": ask}, "a b").build(), lambda clock: RedisStore(redis_url, push=False)
    )
    runs = []
    for _ in range(2):
        bench.start().finish()
        runs.append(bench.run_id)
    known = Registry()
    known.add("bench", wired({"a": ident, "approval": ask}, "a approval").build)
    bench.engine = Engine(bench.store, bench, known)
    bench.engine.publish(["bench"])
    monkeypatch.setattr(registry, "_factories", {})
    monkeypatch.setattr(registry, "_plans", {})

    def call(*arguments: str):
        return CliRunner().invoke(
            runner, ["runs", "migrate", *arguments], env={"RUNNER_REDIS_URL": redis_url}
        )

    yield bench, runs, call
    bench.store.close()


def test_a_run_is_moved_and_each_node_is_told(moved):
    """The line has the node, its name today and what becomes of it; then the run goes on."""
    bench, runs, call = moved

    done = call(runs[0], "--map", "b=approval")

    assert (done.exit_code, done.stdout.rstrip("\n").split("\t")) == (
        0,
        [runs[0], "bench", "b", "approval", "is asked under its new name", "", ""],
    )
    bench.run_id = runs[0]
    bench.answer("yes")
    assert bench.finish().results["approval"].output == "yes"


def test_a_dry_run_says_the_same_and_changes_nothing(moved):
    """What `--dry-run` tells is what becomes of the nodes then; with `--json` it fits its schema."""
    bench, runs, call = moved
    before = bench.store.read(runs[0])

    dry = json.loads(call(runs[0], "--map", "b=approval", "--dry-run", "--json").stdout)

    assert bench.store.read(runs[0]) == before
    done = json.loads(call(runs[0], "--map", "b=approval", "--json").stdout)
    assert jsonschema_rs.is_valid(schema("runs migrate"), done)
    assert [each.pop("moved") for each in (*dry["runs"], *done["runs"])] == [False, True]
    assert dry == done


def test_all_waiting_runs_of_a_graph_are_moved(moved):
    """Those that can't be moved stay and are told with the reason; those that need nothing are left out."""
    _, runs, call = moved

    refused = call("--graph", "bench", "--json")
    done = call("--graph", "bench", "--map", "b=approval", "--json")
    again = call("--graph", "bench")

    assert refused.exit_code == 5
    assert {each["run_id"] for each in json.loads(refused.stdout)["runs"]} == set(runs)
    assert all("b waits" in each["error"] for each in json.loads(refused.stdout)["runs"])
    assert done.exit_code == 0
    assert [each["moved"] for each in json.loads(done.stdout)["runs"]] == [True, True]
    assert (again.exit_code, again.stdout) == (0, "")


def test_what_can_not_be_moved_is_refused_with_the_way_out(moved):
    """The message names the flags; a wrong mapping or name, and neither a run nor a graph, are told."""
    _, runs, call = moved

    unsaid, odd, neither = call(runs[0]), call(runs[0], "--map", "b"), call()
    twice, nowhere = call(runs[0], "--map", "b=approval", "--map", "b=c"), call("--graph", "bnech")

    assert unsaid.exit_code == 5
    assert "--map OLD=NEW" in unsaid.stderr
    assert "OLD=NEW" in odd.stderr
    assert [odd.exit_code, neither.exit_code, call("00none").exit_code] == [2, 2, 4]
    assert [twice.exit_code, nowhere.exit_code] == [2, 4]
