from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import sys
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from runner import Client, Status
from runner.dev.embedded import embedded_store
from runner.dev.supervised_process import SupervisedProcess
from runner.settings import Settings
from runner.store.redis.store import RedisStore
from runner.store.redis.workers import WorkerRegistry
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


def test_procfile_and_compose_start_the_same_programs(compose, procfile):
    """Whoever moves from one to the other gets the same processes, by the same commands."""
    programs = {
        name: service["command"] for name, service in compose["services"].items() if "build" in service
    }

    assert programs == procfile


def test_every_process_names_the_app_by_attribute(procfile):
    """Celery would guess otherwise, and may guess wrong."""
    celery = [command for command in procfile.values() if command.startswith("celery ")]

    assert len(celery) == 3
    assert all(" --app tasks.app:app " in command for command in celery)


def test_compose_sets_only_settings_that_exist(compose):
    """A variable of the compose file is one that the program reads."""
    known = {f"RUNNER_{name}".upper() for name in Settings.model_fields}
    used = {name for service in compose["services"].values() for name in service.get("environment", {})}

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
    services = {name: service for name, service in compose["services"].items() if "build" in service}
    minutes = {re.fullmatch(r"(\d+)m", service["stop_grace_period"])[1] for service in services.values()}

    assert min(map(int, minutes)) * 60 > Settings.model_fields["shutdown_grace"].default


def test_compose_has_one_image_for_all_programs(compose):
    """All run the same code: one image, which is built once."""
    images = [service["image"] for service in compose["services"].values() if "build" in service]

    assert len(images) == 6
    assert len(set(images)) == 1


def test_the_image_has_no_local_settings():
    """A file of passwords, the environment of this machine and caches don't get into the image."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert {".env", ".venv", ".runner", "**/__pycache__"} <= set(ignored)


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

    def __init__(self, procfile, url: str, folder: Path, stack: ExitStack) -> None:
        self.ports = {name: free_port() for name in ("flower", "approvals")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        known = {"RUNNER_REDIS_URL": url, "PATH": path, "PYTHONPATH": str(ROOT)}
        for name, command in procfile.items():
            words = shlex.split(command.replace("5555", self.port(name)).replace("8000", self.port(name)))
            log = folder / f"{name}.log"
            log.touch()
            started = SupervisedProcess(words, log=log, environment=known)
            stack.callback(started.end)
        self.roster, self.client = WorkerRegistry(url), Client(store=RedisStore(url))

    def port(self, name: str) -> str:
        return str(self.ports.get(name, 0))

    def get(self, name: str, path: str = "", **form: str) -> str:
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
    wait_until(lambda: "refund" in site.client.engine.store.graphs(), "a worker has published its graphs")
    wait_until(lambda: site.get("flower", "healthcheck") == "OK", "Flower answers")
    run = site.client.start("refund", {"order": 1042, "amount": 120})

    wait_until(lambda: run.id in site.get("approvals"), "the question is on the page")
    (question,) = run.interrupts()
    answer = {"response": '{"decision": "approve"}', "responder": "ana"}
    site.get("approvals", "answer", id=question.id, digest=question.digest, **answer)

    wait_until(lambda: "accepted" in site.get("approvals"), "the receipt is on the page")
    assert run.wait(60).status is Status.COMPLETED
    assert run.result().results["letter"].output.startswith("Dear customer, we have paid")
    wait_until(lambda: "No open questions." in site.get("approvals"), "the question is shown no more")
    workers = [worker for worker in site.roster.all() if not worker.is_keeper]
    letters, others = sorted(workers, key=lambda worker: len(worker.queues))
    assert "runner/letters" in letters.queues
    assert "runner/refund" in others.queues
    assert not set(letters.queues) & set(others.queues)
    wait_until(lambda: 'task="refund/approve"' in site.get("flower", "metrics"), "Flower has seen the node")
