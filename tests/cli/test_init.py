from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from runner import Client
from runner.cli.init import FILES
from runner.cli.program import runner
from tests.processes import is_alive

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A fresh project, as the command writes it."""
    folder = tmp_path / "My Shop"
    done = CliRunner().invoke(runner, ["init", str(folder)])
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_project_s_own_tests_pass(project):
    """What is written works as it is, without Redis and without a worker."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=project, env=path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


@pytest.mark.slow
def test_the_project_runs_with_the_commands_of_its_readme(project):
    """`runner dev` in the folder, a run, and its answer: nothing else has to be set."""
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "runner.cli"]

    def call(*arguments: str, url: str) -> subprocess.CompletedProcess[str]:
        known = {**path, "RUNNER_REDIS_URL": url}
        words = [*command, *arguments, "--json"]
        return subprocess.run(words, cwd=project, env=known, capture_output=True, text=True, check=False)

    with subprocess.Popen(
        [*command, "dev", "--json"],
        cwd=project,
        env=path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as dev:
        try:
            said = "".join(iter(lambda: dev.stdout.readline() or "}", "}\n")) + "}"
            url = json.loads(said)["redis_url"]
            done = call("run", "refund", "--input", '{"order": 1042}', "--wait", "--timeout", "30", url=url)
            assert done.returncode == 3, done.stderr
            (question,) = json.loads(done.stdout)["interrupts"]
            given = ("--response", '{"decision": "approve"}', "--responder", "ana")
            assert call("interrupts", "respond", question["id"], *given, url=url).returncode == 0

            result = Client(redis_url=url).run(question["run_id"]).wait(30)
            assert result.results["pay"].output.startswith("paid by transfer")
            assert call("doctor", url=url).returncode == 0
        finally:
            dev.terminate()
            dev.wait(20)
    assert not is_alive(json.loads(said)["worker_pid"])


def test_the_files_are_well_formed_and_name_the_project(project):
    """The name comes from the folder; Procfile and compose file start the same programs."""
    about = tomllib.loads((project / "pyproject.toml").read_text())
    compose = yaml.safe_load((project / "docker-compose.yml").read_text())
    lines = (project / "Procfile").read_text().splitlines()

    assert about["project"]["name"] == "my-shop"
    assert about["tool"]["runner"]["graphs"] == ["refunds"]
    assert "# my-shop" in (project / "README.md").read_text()
    assert {
        name: service["command"] for name, service in compose["services"].items() if "build" in service
    } == dict(line.split(": ", 1) for line in lines)


def test_nothing_is_overwritten(project):
    """Where a file is there already, the command writes none and says which."""
    kept = {name: (project / name).read_text() for name in FILES}
    (project / "refunds.py").write_text("mine\n")
    (project / "README.md").unlink()
    done = CliRunner().invoke(runner, ["init", str(project)])

    assert done.exit_code == 5
    assert "refunds.py" in done.stderr
    assert (project / "refunds.py").read_text() == "mine\n"
    assert not (project / "README.md").exists()
    assert (project / "Procfile").read_text() == kept["Procfile"]


def test_what_is_written_keeps_to_our_own_style(project):
    """Newcomers learn from it: it is formatted, and has no fault that our linter knows."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "E,F,I,B,UP",
        "--line-length",
        "110",
        ".",
    ]

    assert subprocess.run(command, cwd=project, capture_output=True, check=False).returncode == 0
