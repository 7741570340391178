"""The chart for Kubernetes, rendered by Helm: what it creates is valid and fits its programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import yaml
from celery.bin.celery import celery
from fastapi.testclient import TestClient

from runner import Client, Status
from runner.approvals import Principal
from runner.celery.application import make_app
from runner.celery.doorbells import make_template
from runner.cli.program import runner
from runner.definition.registry import Registry
from runner.dev.embedded import embedded_store
from runner.dev.worker_process import worker_process
from runner.server import Person, create_app
from runner.settings import Settings
from runner.store.redis.partitions import open_store
from tests.graphs import ident, wired
from tests.waiting import wait_until

validation = pytest.importorskip("kubernetes_validate")
CHART = Path(__file__).parents[2] / "docs" / "kubernetes"
HELM = shutil.which(
    "helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(HELM is None, reason="the wheel of Helm is for Linux on x86-64"),
]

SERVER = {"replicas": 2, "secret": "runner-server"}
SCALE = {"queues": ["refund"], "min": 0, "max": 20, "length": 50}
"""The example in values.yaml."""
SCALED = {
    "server": SERVER,
    "workers": {
        "default": {"scale": SCALE},
        "gpu": {"pool": "solo", "concurrency": 1, "queues": ["gpu", "cpu"], "replicas": 2},
    },
}
EVERYTHING = {
    **SCALED,
    "redis": {"secret": "redis"},
    "app": "tasks.app:app",
    "env": [{"name": "SSL_CERT_FILE", "value": "/etc/ca/ca.pem"}],
    "settings": {"RUNNER_PARTITIONS": "4", "RUNNER_DECISION_KEYS": "/etc/keys/decisions.json"},
    "volumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "server": {**SERVER, "auth": "tasks.app:login", "trusted": ["10.0.0.0/8"]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "rules": {"enabled": True},
    "dashboard": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "from": [{"podSelector": {"matchLabels": {"app": "ingress"}}}],
        "egress": [{"ports": [{"port": 6379}]}],
    },
    "serviceAccount": {"name": "shop"},
}
RABBITMQ = {
    "redis": {"url": "sentinel://one:26379,two:26379/shop?db=0"},
    "broker": {"secret": "rabbitmq"},
    "server": SERVER,
    "serviceAccount": {"annotations": {"example.com/role": "shop"}},
}
SETS = pytest.mark.parametrize(
    "values",
    [None, SCALED, EVERYTHING, RABBITMQ],
    ids=["defaults", "scaled", "everything", "rabbitmq"],
)
OPERATORS = ("keda.sh/", "monitoring.coreos.com/")
"""Kinds that Kubernetes has only where these are installed."""


def helm(*arguments, values=None):
    """Run Helm without a cluster; `values` are those of a user's file."""
    file = ["--values", "-"] if values is not None else []
    return subprocess.run(
        [str(HELM), *arguments, *file],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )


def render(values=None):
    """Return the objects that the chart creates."""
    done = helm("template", "shop", str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def containers(objects):
    pods = [
        entry["spec"]["template"]["spec"] for entry in objects if entry["kind"] == "Deployment"
    ]
    return {container["name"]: container for pod in pods for container in pod["containers"]}


@pytest.mark.slow
@SETS
def test_the_chart_is_valid(values):
    """Helm finds no fault, and Kubernetes knows every field of every object."""
    linted = helm("lint", "--strict", str(CHART), values=values)
    assert linted.returncode == 0, linted.stdout

    for entry in render(values):
        if not entry["apiVersion"].startswith(OPERATORS):
            validation.validate(entry, "1.29", strict=True)


def test_only_what_is_asked_for_needs_an_operator():
    """A release installs where KEDA and the Prometheus operator are not, also with a password for Redis."""
    values = {"redis": {"secret": "redis"}, "server": SERVER}
    kinds = {entry["kind"]: entry["apiVersion"] for entry in render(EVERYTHING)}

    assert not [entry for entry in render(values) if entry["apiVersion"].startswith(OPERATORS)]
    assert {kind for kind, version in kinds.items() if version.startswith(OPERATORS)} == {
        "ScaledObject",
        "TriggerAuthentication",
        "ServiceMonitor",
        "PrometheusRule",
    }


def test_alerts_and_dashboard_are_those_of_the_docs():
    """The objects hold the files that the monitoring page describes."""
    objects = {entry["kind"]: entry for entry in render(EVERYTHING)}
    alerts = yaml.safe_load(
        (CHART.parent / "monitoring" / "alerts.yml").read_text(encoding="utf-8")
    )
    dashboard = json.loads(
        (CHART.parent / "monitoring" / "grafana.json").read_text(encoding="utf-8")
    )

    assert objects["PrometheusRule"]["spec"] == alerts
    assert json.loads(objects["ConfigMap"]["data"]["runner.json"]) == dashboard


@SETS
def test_its_programs_exist(values):
    """Each container starts a command that exists, with options that it has, and sets settings that exist."""
    known = {f"RUNNER_{name}".upper() for name in Settings.model_fields} | {"SSL_CERT_FILE"}

    for container in containers(render(values)).values():
        command = container["command"]
        program, *options = command[4:] if command[0] == "sh" else command
        group = runner if program == "runner" else celery
        with group.make_context(
            program, options, resilient_parsing=program == "runner"
        ) as context:
            name, *rest = [*context._protected_args, *context.args]
            group.commands[name].make_context(
                name, rest, parent=context, resilient_parsing=True
            )
        assert {variable["name"] for variable in container["env"]} <= known


@pytest.mark.parametrize("grace", [None, 3600.0], ids=["default", "longer"])
def test_a_worker_has_time_to_finish_its_nodes(grace):
    """Kubernetes kills after the time of the setting and a reserve."""
    values = {"settings": {"RUNNER_SHUTDOWN_GRACE": str(int(grace))}} if grace else None
    pods = [
        entry["spec"]["template"]["spec"]
        for entry in render(values)
        if entry["kind"] == "Deployment"
    ]
    worker = next(pod for pod in pods if pod["containers"][0]["name"] == "worker-default")

    assert (
        worker["terminationGracePeriodSeconds"]
        == (grace or Settings.model_fields["shutdown_grace"].default) + 60
    )


class Server:
    """The server as KEDA asks it: for what a trigger of the rendered chart names."""

    def __init__(self, url):
        app = create_app(
            Settings(redis_url=url),
            auth=lambda _: Person(Principal("keda"), frozenset({"viewer"})),
        )
        self._http = TestClient(app, base_url="https://runner.example")
        (scaled,) = (entry for entry in render(SCALED) if entry["kind"] == "ScaledObject")
        (self.trigger,) = scaled["spec"]["triggers"]

    def ask(self, location=""):
        """Return the trigger's number, or another one of the same answer."""
        metadata = self.trigger["metadata"]
        path = urlsplit(metadata["url"])._replace(scheme="", netloc="").geturl()
        return self._http.get(path).json()[location or metadata["valueLocation"]]


def test_keda_counts_the_doorbell_of_a_run(redis_url):
    """A start on a store without a worker asks for one; a run of another queue does not."""
    settings = Settings(redis_url=redis_url)
    registry, app = Registry(), make_app(settings)
    registry.add("refund", wired({"pay": ident}).build)
    registry.add("other", wired({"pay": ident}).build)
    try:
        open_store(settings).install_doorbell(make_template(app))
    finally:
        app.close()
    server, client = Server(redis_url), Client(redis_url=redis_url, registry=registry)
    client.start("other", None)
    assert server.ask() == 0
    client.start("refund", None)

    assert server.ask() == 1
    assert server.trigger["type"] == "metrics-api"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**SCALED, "keeper": {"replicas": 0}}, "set keeper.replicas to 1 or more"),
        ({**SCALED, "server": {"replicas": 0}}, "set server.replicas to 1 or more"),
        ({"server": {"replicas": 1}}, "server.secret is empty"),
        ({"server": {**SERVER, "auth": "local"}}, "auth"),
        ({"rules": {"enabled": True}}, "set server.replicas to 1 or more"),
        ({**SCALED, "broker": {"secret": "rabbitmq"}}, "use KEDA's trigger for RabbitMQ"),
        (
            {"workers": {"default": {"pool": "gevent", "concurrency": 1}}},
            'one of the following: "threads"',
        ),
        ({"settings": {"RUNNER_REDIS_URL": "redis://elsewhere"}}, "RUNNER_REDIS_URL"),
        ({"worker": {}}, "worker is not allowed"),
    ],
    ids=[
        "no-keeper",
        "no-server",
        "no-secret",
        "local",
        "no-metrics",
        "rabbitmq",
        "pool",
        "setting",
        "unknown",
    ],
)
def test_values_that_can_not_work_are_refused(values, message):
    """Helm stops with a message that names the value."""
    refused = helm("template", "shop", str(CHART), values=values)

    assert refused.returncode != 0
    assert message in refused.stderr


@pytest.mark.slow
def test_the_probes_find_a_worker_that_is_ready_and_one_that_hangs(redis_url, tmp_path):
    """The probes fail before the start, succeed while the worker lives, and fail once it is frozen."""
    file = tmp_path / "alive"
    container = containers(render())["worker-default"]
    path = next(
        entry["value"] for entry in container["env"] if entry["name"] == "RUNNER_ALIVE_FILE"
    )

    def probe(name):
        command = [part.replace(path, str(file)) for part in container[name]["exec"]["command"]]
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0

    assert not probe("startupProbe")
    settings = {
        "RUNNER_REDIS_URL": redis_url,
        "RUNNER_ALIVE_FILE": str(file),
        "RUNNER_GRAPHS": "tasks.graphs",
    }
    with worker_process(settings, concurrency=1) as worker:
        worker.wait_ready()
        wait_until(
            lambda: probe("startupProbe") and probe("readinessProbe"), "the worker is ready"
        )
        assert probe("livenessProbe")
        long_ago = time.time() - 120
        os.utime(file, (long_ago, long_ago))
        wait_until(lambda: probe("livenessProbe"), "the worker touches the file again")
        os.kill(worker.pid, signal.SIGSTOP)
        os.utime(file, (long_ago, long_ago))
        assert not probe("livenessProbe")
        os.kill(worker.pid, signal.SIGCONT)
    assert not file.exists()


def test_a_container_removes_the_file_of_the_one_before(tmp_path):
    """The folder outlives a container, so its program starts without the file that the probes look at."""
    file = tmp_path / "alive"
    file.touch()
    command = [*containers(render())["keeper"]["command"][:4], "test", "-e", str(file)]

    assert subprocess.run(command[4:], check=False).returncode == 0
    assert (
        subprocess.run(command, check=False, env={"RUNNER_ALIVE_FILE": str(file)}).returncode
        == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "gone"])
def test_a_store_that_is_away_restarts_no_worker(fault, tmp_path):
    """A worker touches the file of its probe well within a minute, again and again, without a store."""
    file = tmp_path / "alive"
    with embedded_store() as store, ExitStack() as stack:
        settings = {
            "RUNNER_REDIS_URL": store.url,
            "RUNNER_ALIVE_FILE": str(file),
            "RUNNER_GRAPHS": "tasks.graphs",
        }
        stack.enter_context(worker_process(settings, concurrency=1)).wait_ready()
        wait_until(file.exists, "the worker is ready")
        os.kill(store.pid, fault)
        stack.callback(os.kill, store.pid, signal.SIGCONT) if fault is signal.SIGSTOP else None
        for _ in range(3):
            os.utime(file, (0, 0))
            wait_until(lambda: file.stat().st_mtime, "the file is touched", seconds=45)


class Autoscaler:
    """Does what KEDA does with one deployment of one worker: none while a number was 0 for the cooldown."""

    COOLDOWN = 12.0
    """Seconds; longer than the time between two heartbeats, which say what runs."""

    def __init__(self, start, number):
        self._start, self._number = start, number
        self._worker = None
        self._active = 0.0

    def look(self):
        """Start a worker if one is wanted, stop it where none was for long; return whether one is there."""
        if self._worker is not None and not self._worker.alive():
            self._worker = None
        if self._number():
            self._active = time.monotonic()
            self._worker = self._worker or self._start()
        elif self._worker is not None and time.monotonic() - self._active > self.COOLDOWN:
            os.kill(self._worker.pid, signal.SIGTERM)
        return self._worker is not None


@pytest.fixture
def scaled(redis_url):
    """What starts a worker of one slot, a run whose node ends when the key "gate" is set, and the server."""
    settings = {
        "RUNNER_REDIS_URL": redis_url,
        "RUNNER_GRAPHS": "tests.docs.gated_graphs",
        "RUNNER_SHUTDOWN_GRACE": "1",
        "PYTHONPATH": str(CHART.parents[1]),
    }
    with ExitStack() as stack:
        worker = stack.enter_context(worker_process(settings, concurrency=1))
        worker.wait_ready()
        worker.stop()
        start = lambda: stack.enter_context(worker_process(settings, concurrency=1))  # noqa: E731 - one line
        yield (
            start,
            Client(redis_url=redis_url, registry=Registry()).start("refund", None),
            Server(redis_url),
        )


def kinds(run):
    return [event.kind for event in run.events()]


@pytest.mark.slow
def test_a_worker_is_not_scaled_away_while_it_runs_a_node(scaled, redis_url):
    """A node that runs for longer than the cooldown runs once; after its end there is no worker."""
    start, run, server = scaled
    autoscaler = Autoscaler(start, server.ask)
    wait_until(lambda: autoscaler.look() and "node.started" in kinds(run), "the node runs")
    wait_until(
        lambda: server.ask("executing") == 1 or not autoscaler.look(), "the heartbeat says so"
    )
    until = time.monotonic() + Autoscaler.COOLDOWN + 2
    wait_until(
        lambda: autoscaler.look() and time.monotonic() > until, "the cooldown has passed"
    )
    redis.Redis.from_url(redis_url).set("gate", 1)

    wait_until(lambda: not autoscaler.look(), "no worker is wanted", seconds=90)
    assert run.status is Status.COMPLETED
    assert (kinds(run).count("node.started"), kinds(run).count("node.left")) == (1, 0)


@pytest.mark.slow
def test_scaled_by_what_waits_alone_a_node_begins_again_and_again(scaled):
    """Control: without what runs in the number, the worker is stopped while it runs the node."""
    start, run, server = scaled
    autoscaler = Autoscaler(start, lambda: server.ask("ready"))

    wait_until(
        lambda: autoscaler.look() and kinds(run).count("node.left") == 1,
        "the node is released",
        seconds=90,
    )
    wait_until(
        lambda: autoscaler.look() and kinds(run).count("node.started") == 2, "it begins again"
    )
