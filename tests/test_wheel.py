"""The wheel in an empty environment, in the folder of a Celery project that exists."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.dev.supervised_process import SupervisedProcess
from runner.settings import as_broker
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]

TUTORIAL = """
import os
from celery import Celery

app = Celery('tasks', broker=os.environ['THEIR_BROKER'])

@app.task
def add(x, y):
    return x + y
"""

GRAPHS = """
from runner import GraphBuilder, graph

@graph("hello")
def hello():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: f"Hello {ctx.task}", "greet")
    return builder.build()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The folder of the programs of an environment that has the wheel and what it depends on."""
    environment = tmp_path_factory.mktemp("environment")
    python = environment / "bin" / "python"
    if shutil.which("uv"):
        subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, environment], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", str(python), str(wheel)]
    else:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(install, check=True)
    return environment / "bin"


class Project:
    """A folder with Celery's tutorial in `tasks.py`, and a module of graphs."""

    def __init__(self, folder: Path, programs: Path, url: str) -> None:
        self.folder, self.programs = folder, programs
        (folder / "tasks.py").write_text(TUTORIAL)
        (folder / "flows.py").write_text(GRAPHS)
        self.environment = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": "",
            "RUNNER_GRAPHS": "flows",
            "RUNNER_REDIS_URL": url,
            "THEIR_BROKER": as_broker(url),
        }

    def call(self, *words: str) -> str:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            [self.programs / words[0], *words[1:]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *words: str):
        """Run a program in the folder, and yield its log."""
        log = self.folder / "log"
        log.write_text("")
        command = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *words]
        process = SupervisedProcess(command, log=log, environment=self.environment)
        try:
            yield log
        finally:
            process.kill()
            process.end()


@pytest.fixture
def project(programs, redis_url, tmp_path):
    return Project(tmp_path, programs, redis_url)


def logged(log: Path, text: str) -> None:
    wait_until(
        lambda: text in log.read_text(encoding="utf-8", errors="replace"), f"it logs {text!r}", seconds=60
    )


def test_the_wheel_has_one_package(wheel):
    """`tasks` is the name of half the world's Celery modules: this repository's own stays at home."""
    with zipfile.ZipFile(wheel) as archive:
        packages = {name.partition("/")[0] for name in archive.namelist()}

    assert {name for name in packages if not name.endswith(".dist-info")} == {"runner"}


def test_a_project_with_its_own_tasks_runs_them(project):
    """Celery's tutorial works where the wheel is installed."""
    with project.running("celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "info") as log:
        logged(log, " ready.")
        project.call("celery", "-A", "tasks", "call", "tasks.add", "--args", "[3, 4]")
        logged(log, "succeeded in")

        assert ": 7\n" in log.read_text()


def test_the_commands_are_below_an_app_s(project):
    """`celery -A tasks runner …` is what `runner …` is, in the real program."""
    listed = json.loads(project.call("celery", "-A", "tasks", "runner", "runs", "list", "--json"))

    assert listed["runs"] == []


@pytest.mark.parametrize("command", [["runner", "worker"], ["celery", "--app", "runner.celery", "worker"]])
def test_workers_of_ours_start_beside_a_module_of_that_name(project, command):
    """A `tasks.py` in the folder is not taken for ours; a graph runs to its end."""
    with project.running(*command, "--loglevel", "info") as log:
        logged(log, "worker.ready: graphs: hello")
        run = json.loads(project.call("runner", "run", "hello", "--input", '"Ana"', "--wait", "--json"))

    assert run["status"] == "completed"
