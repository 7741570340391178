from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SHOP = """
from runner import GraphBuilder, graph

@graph("shop")
def shop():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: ctx.interrupt("how many?", reason=ctx.task), "ask")
    return builder.build()
"""
TESTS = """
from runner import Status
from runner.testing import answer
from shop import shop

def test_in_process(run_graph, clock):
    assert run_graph(shop, "tea").answer(3).results["ask"].output == 3
    assert run_graph("shop", "tea").interrupts[0].reason == "tea"

def test_on_a_worker(runner_worker):
    run = runner_worker("shop").start("shop", "tea")
    asked = run.wait(60)
    assert asked.status is Status.INTERRUPTED
    assert run.respond(answer(asked, 3))[0].status == "accepted"
    assert run.wait(60).results["ask"].output == 3

def test_the_worker_is_shared(runner_worker, runner_store):
    assert runner_worker("shop") is runner_worker("shop")
    assert runner_store.pid
"""
FORGOTTEN = """
from shop import shop

def test_nothing_crashes(run_graph, crash_at):
    crash_at("akk", "start")
    run_graph(shop)
"""


def run_pytest(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user does, in a folder of theirs."""
    paths = os.pathsep.join([str(ROOT), str(folder)])
    # The plugin is named for a checkout that is not installed; where it is, this changes nothing.
    settings = {
        "PYTEST_PLUGINS": "runner.testing.plugin",
        "PYTEST_ADDOPTS": "",
        "PYTHONPATH": paths,
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:valkey",
    ]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.mark.slow
def test_users_test_their_graphs_in_process_and_on_a_worker(tmp_path):
    """In a project of one's own the fixtures are there; a module's tests share one worker.

    A node's name misspelled in `crash_at` is an error, and does not pass for a test.
    """
    for name, text in {"shop": SHOP, "test_shop": TESTS, "test_forgotten": FORGOTTEN}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    done = run_pytest(tmp_path)

    assert "4 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "akk at start" in done.stdout
    assert done.returncode == 1


def test_pytest_finds_the_plugin():
    """The package says to pytest where the plugin is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert project["entry-points"]["pytest11"] == {
        "runner.testing.plugin": "runner.testing.plugin"
    }


@pytest.mark.full
def test_the_plugin_costs_a_session_next_to_nothing():
    """A session that uses no fixture of ours imports no more because of it than `import runner` does."""
    seen = """
import sys, runner, pytest
before = set(sys.modules)
import runner.testing.plugin
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", seen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stdout == "['runner.testing', 'runner.testing.plugin']\n"
