from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from click.testing import CliRunner

from runner import Client, Status
from runner.cli.init import FILES
from runner.cli.program import runner
from runner.definition.registry import Registry
from runner.dev.supervised_process import SupervisedProcess
from tests.logins import address_in, logged_in
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    """A fresh project, as the command writes it."""
    folder = tmp_path / "My Shop"
    done = CliRunner().invoke(runner, ["init", str(folder)])
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_programs_of_the_procfile_run_the_graph(project, redis_url, monkeypatch):
    """Started as the file says, in the project's folder: a worker with the graph, the inbox, and Flower."""
    port, pages = str(free_port()), str(free_port())
    monkeypatch.chdir(project)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    known = {"RUNNER_REDIS_URL": redis_url, "PATH": path, "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        for line in (project / "Procfile").read_text().splitlines():
            name, _, command = line.partition(": ")
            log = project / f"{name}.log"
            log.touch()
            started = SupervisedProcess(
                shlex.split(command.replace("5555", port).replace("8080", pages)),
                log=log,
                environment=known,
            )
            stack.callback(started.end)
        client = Client(redis_url=redis_url, registry=Registry())
        wait_until(
            lambda: "worker.ready:" in (project / "worker.log").read_text(),
            "the worker is ready",
        )

        def seen():
            """Flower sees what happens once it listens, which is not before the worker is ready."""
            assert client.start("refund", {"order": 1042}).wait(60).status is Status.INTERRUPTED
            return flower_knows("refund/look_up", port)

        wait_until(seen, "Flower has seen a node")
        wait_until(
            lambda: "approve" in inbox(project / "server.log"),
            "the inbox has the question",
        )


def inbox(log):
    """Return the inbox of a server, by the address that it has logged; "" while it does not answer."""
    with suppress(httpx.TransportError), logged_in(address_in(log)) as http:
        return http.get("/inbox", headers={"Accept": "text/html"}).text
    return ""


def flower_knows(node, port):
    return f'task="{node}"' in read(f"http://127.0.0.1:{port}/metrics")


def read(address):
    """Return a page; "" while it is not there."""
    try:
        with urllib.request.urlopen(address, timeout=60) as reply:  # noqa: S310 - our own
            return reply.read().decode()
    except OSError:
        return ""


def test_the_files_are_well_formed_and_name_the_project(project):
    """The name comes from the folder; Procfile and compose file start the same programs."""
    about = tomllib.loads((project / "pyproject.toml").read_text())
    compose = yaml.safe_load((project / "docker-compose.yml").read_text())
    lines = (project / "Procfile").read_text().splitlines()

    assert about["project"]["name"] == "my-shop"
    library = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert about["project"]["requires-python"] == library["requires-python"]
    assert about["tool"]["runner"]["graphs"] == ["refunds"]
    assert "# my-shop" in (project / "README.md").read_text()
    commands = {
        name: service["command"]
        for name, service in compose["services"].items()
        if service["image"] == "my-shop"
    }
    commands["server"] = commands["server"].removesuffix(" --host 0.0.0.0 --auth login:login")
    assert commands == dict(line.split(": ", 1) for line in lines)
    logins = (project / "login.py", ROOT / "tasks" / "login.py")
    assert len({"".join(login.read_text().split()) for login in logins}) == 1


def test_the_containers_are_built_once_and_have_no_more_than_they_need(project):
    """One service builds the image, without tools for development or root; Redis has a password."""
    compose = yaml.safe_load((project / "docker-compose.yml").read_text())["services"]
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]

    assert [name for name, service in compose.items() if "build" in service] == ["worker"]
    assert compose["flower"]["pull_policy"] == "never"
    assert "USER 10001" in compose["worker"]["build"]["dockerfile_inline"]
    assert "--find-links wheels" in compose["worker"]["build"]["dockerfile_inline"]
    assert "--requirepass" in compose["redis"]["command"]
    assert not [one for one in about["dependencies"] if "pytest" in one or "embedded" in one]


def test_nothing_is_overwritten(project):
    """Where a file is there already, the command writes none and says which."""
    texts = {name: (project / name).read_text() for name in FILES}
    (project / "refunds.py").write_text("mine\n")
    (project / "README.md").unlink()
    done = CliRunner().invoke(runner, ["init", str(project)])

    assert done.exit_code == 5
    assert "refunds.py" in done.stderr
    assert (project / "refunds.py").read_text() == "mine\n"
    assert not (project / "README.md").exists()
    assert (project / "Procfile").read_text() == texts["Procfile"]


def test_a_folder_that_can_t_be_written_is_no_fault_of_the_program(tmp_path):
    """The error says what is in the way."""
    (tmp_path / "taken").write_text("a file")
    done = CliRunner().invoke(runner, ["init", str(tmp_path / "taken" / "shop")])

    assert done.exit_code == 2
    assert "can't be written: Not a directory." in done.stderr


@pytest.mark.full
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

    assert (
        subprocess.run(command, cwd=project, capture_output=True, check=False).returncode == 0
    )
