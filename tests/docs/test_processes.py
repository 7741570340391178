from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient

from runner import Client, Status
from runner.dev.embedded import embedded_store
from runner.dev.supervised_process import SupervisedProcess
from runner.server import create_app
from runner.settings import Settings
from runner.store.redis.store import RedisStore
from runner.store.redis.workers import WorkerRegistry
from tasks.login import login
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


@pytest.fixture
def procfile():
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def programs(compose):
    """The services that run the image of this repository."""
    return {
        name: service
        for name, service in compose["services"].items()
        if service["image"] == "celery-graph-runner"
    }


def test_procfile_and_compose_start_the_same_programs(compose, procfile):
    """Both have the same processes, by the same commands; a container's server can be reached."""
    commands = {name: service["command"] for name, service in programs(compose).items()}
    reached = " --host 0.0.0.0 --auth tasks.login:login"

    assert commands == {**procfile, "server": procfile["server"] + reached}


def test_every_process_names_the_app_by_attribute(procfile):
    """Celery would guess otherwise, and may guess wrong."""
    celery = [command for command in procfile.values() if command.startswith("celery ")]

    assert len(celery) == 3
    assert all(" --app tasks.app:app " in command for command in celery)


def test_compose_sets_only_settings_that_exist(compose):
    """A variable of the compose file is one that the program reads."""
    known = {f"RUNNER_{name}".upper() for name in Settings.model_fields}
    used = {
        name
        for service in compose["services"].values()
        for name in service.get("environment", {})
    }

    assert {name for name in used if name.startswith("RUNNER_")} <= known
    assert "RUNNER_REDIS_URL" in used


def test_the_store_of_compose_forgets_nothing(compose):
    """Runs that wait for people outlive a restart, and are never thrown away for space."""
    redis = compose["services"]["redis"]

    assert "--appendonly yes --appendfsync always" in redis["command"]
    assert "--maxmemory-policy noeviction" in redis["command"]
    assert redis["volumes"] == ["redis-data:/data"]


def test_compose_lets_a_worker_finish_its_nodes(compose):
    """Docker kills after ten seconds unless it is told otherwise; a worker needs its whole grace."""
    minutes = {
        re.fullmatch(r"(\d+)m", service["stop_grace_period"])[1]
        for service in programs(compose).values()
    }

    assert min(map(int, minutes)) * 60 > Settings.model_fields["shutdown_grace"].default


def test_compose_builds_one_image_once(compose):
    """All run the same code. Several services that build one image at once are refused by the builder."""
    builds = [name for name, service in programs(compose).items() if "build" in service]
    others = [service for name, service in programs(compose).items() if name not in builds]

    assert (len(builds), len(others)) == (1, 5)
    assert {service["pull_policy"] for service in others} == {"never"}


def test_the_image_has_what_runs_and_no_more(compose):
    """It has no tools for development, and its user is not root."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    final = lines[max(at for at, line in enumerate(lines) if line.startswith("FROM ")) :]

    assert [each["build"] for each in programs(compose).values() if "build" in each] == ["."]
    assert not [line for line in final if "pip" in line or "COPY . " in line]
    assert final[-1] == "USER 10001"
    assert {service["read_only"] for service in programs(compose).values()} == {True}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_steps_of_the_image_can_be_run(tmp_path):
    """Without Docker: the first stage's copies and commands, in a folder, make a `runner` that works."""
    first = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1]
    build, target = tmp_path / "build", tmp_path / "opt"
    build.mkdir()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "base"], check=True)
    path = f"{tmp_path / 'base' / 'bin'}:{os.environ['PATH']}"
    for line in first.splitlines():
        verb, _, rest = line.partition(" ")
        if verb == "COPY":
            *sources, into = rest.split()
            for source in sources:
                place = build / into / (Path(source).name if into.endswith("/") else "")
                place.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place)
                else:
                    shutil.copy(ROOT / source, place)
        elif verb == "RUN":
            command = rest.replace("/opt/runner", str(target)).replace("--no-cache-dir ", "")
            environment = {**os.environ, "PATH": path, "PIP_NO_COMPILE": "1"}
            subprocess.run(["sh", "-c", command], check=True, cwd=build, env=environment)

    version = subprocess.run(
        [target / "bin" / "runner", "--version"], check=True, capture_output=True, text=True
    )
    assert version.stdout.startswith("runner ")


def test_only_this_machine_reaches_the_containers(compose):
    """Every port is bound to the loopback address, and Redis asks for a password."""
    ports = [
        port for service in compose["services"].values() for port in service.get("ports", ())
    ]

    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert (
        "--requirepass ${REDIS_PASSWORD:-local-only}" in compose["services"]["redis"]["command"]
    )


def test_the_health_of_a_worker_is_the_age_of_its_file(compose, tmp_path):
    """The check succeeds with a young file, and fails with an old one or none."""
    file = tmp_path / "alive"
    path = compose["services"]["worker"]["environment"]["RUNNER_ALIVE_FILE"]
    (check,) = {
        programs(compose)[name]["healthcheck"]["test"][1]
        for name in ("worker", "letters", "keeper")
    }

    def healthy():
        command = check.replace("$$", "$").replace(path, str(file))
        return (
            subprocess.run(["sh", "-c", command], check=False, capture_output=True).returncode
            == 0
        )

    assert not healthy()
    file.touch()
    assert healthy()
    os.utime(file, (0, 0))
    assert not healthy()


def test_the_server_asks_for_the_password(redis_url, monkeypatch):
    """A name with the password may do everything; without them, or where none is set, nothing."""
    monkeypatch.setenv("SERVER_PASSWORD", "local-only")
    http = TestClient(create_app(Settings(redis_url=redis_url), auth=login))
    refused = http.get("/v1/runs")

    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
    assert http.get("/v1/runs", auth=("ana", "wrong")).status_code == 401
    assert http.get("/v1/runs", auth=("", "local-only")).status_code == 401
    assert http.get("/v1/runs", auth=("ana", "local-only")).status_code == 200
    monkeypatch.delenv("SERVER_PASSWORD")
    assert http.get("/v1/runs", auth=("ana", "")).status_code == 401


def test_the_image_has_no_local_settings():
    """A file of passwords, the environment of this machine and caches don't get into the image."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert {".env", ".git", ".venv", ".runner", "**/__pycache__"} <= set(ignored)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_of_systemd_is_valid(tmp_path):
    """No fault is found in it, and it lets a worker finish its nodes."""
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```ini\n(\[Unit\].*?)```", page, re.DOTALL)
    unit = tmp_path / "runner-worker.service"
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text))
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], check=False, capture_output=True
    )

    assert (verified.returncode, verified.stderr) == (0, b"")
    assert "\nKillMode=mixed\n" in text
    assert (
        int(re.search(r"TimeoutStopSec=(\d+)", text)[1])
        > Settings.model_fields["shutdown_grace"].default
    )


def test_flower_is_installed_with_its_extra():
    """The command of the flower process exists where the extra is installed."""
    commands = importlib.metadata.entry_points(group="celery.commands")

    assert "flower" in {command.name for command in commands}


def test_compose_gives_its_workers_the_graphs_of_the_examples(compose):
    """Without a setting of one's own, they serve what a worker outside of containers does."""
    graphs = compose["services"]["worker"]["environment"]["RUNNER_GRAPHS"]

    assert graphs == "${RUNNER_GRAPHS:-tasks.graphs}"


class Site:
    """The processes of the Procfile, each as it stands there but for its port."""

    def __init__(self, procfile, url, folder, stack):
        self.ports = {name: free_port() for name in ("flower", "approvals")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        known = {"RUNNER_REDIS_URL": url, "PATH": path, "PYTHONPATH": str(ROOT)}
        for name, command in procfile.items():
            words = shlex.split(
                command.replace("5555", self.port(name)).replace("8000", self.port(name))
            )
            log = folder / f"{name}.log"
            log.touch()
            started = SupervisedProcess(words, log=log, environment=known)
            stack.callback(started.end)
        self.roster, self.client = WorkerRegistry(url), Client(store=RedisStore(url))

    def port(self, name):
        return str(self.ports.get(name, 0))

    def get(self, name, path="", **form):
        """Ask a page; "" while it is not there."""
        sent = urllib.parse.urlencode(form).encode() if form else None
        url = f"http://127.0.0.1:{self.ports[name]}/{path}"
        try:
            with urllib.request.urlopen(url, sent, timeout=60) as reply:
                return reply.read().decode()
        except OSError:
            return ""


@pytest.fixture
def site(procfile, store_server, tmp_path):
    with ExitStack() as stack:
        store = stack.enter_context(embedded_store())
        yield Site(procfile, store.url, tmp_path, stack)


@pytest.mark.slow
def test_the_processes_of_the_procfile_work_together(site):
    """A refund waits on the approval service's page; the answer given there ends it; Flower saw it."""
    wait_until(lambda: len(site.roster.all()) == 3, "both workers and the keeper are there")
    wait_until(
        lambda: "refund" in site.client.engine.store.graphs(),
        "a worker has published its graphs",
    )
    wait_until(lambda: site.get("flower", "healthcheck") == "OK", "Flower answers")
    run = site.client.start("refund", {"order": 1042, "amount": 120})

    wait_until(lambda: run.id in site.get("approvals"), "the question is on the page")
    (question,) = run.interrupts()
    answer = {"response": '{"decision": "approve"}', "responder": "ana"}
    site.get("approvals", "answer", id=question.id, digest=question.digest, **answer)

    wait_until(lambda: "accepted" in site.get("approvals"), "the receipt is on the page")
    assert run.wait(60).status is Status.COMPLETED
    assert run.result().results["letter"].output.startswith("Dear customer, we have paid")
    wait_until(
        lambda: "No open questions." in site.get("approvals"), "the question is shown no more"
    )
    workers = [worker for worker in site.roster.all() if not worker.is_keeper]
    letters, others = sorted(workers, key=lambda worker: len(worker.queues))
    assert "runner/letters" in letters.queues
    assert "runner/refund" in others.queues
    assert not set(letters.queues) & set(others.queues)

    def is_seen():
        # Flower answers before it listens: it may have missed the first ones.
        another = site.client.start("refund", {"order": 1042, "amount": 120})
        wait_until(another.interrupts, "the node asks again")
        return 'task="refund/approve"' in site.get("flower", "metrics")

    wait_until(is_seen, "Flower has seen the node")
