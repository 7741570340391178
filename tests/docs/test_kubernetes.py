"""The chart for Kubernetes, rendered by Helm: what it creates is valid and fits its programs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from runner.celery.application import make_app
from runner.celery.doorbells import make_template
from runner.cli.program import runner
from runner.cli.workers import worker_process
from runner.settings import Settings
from tests.waiting import wait_until

validation = pytest.importorskip("kubernetes_validate")
CHART = Path(__file__).parents[2] / "docs" / "kubernetes"
HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
pytestmark = pytest.mark.skipif(HELM is None, reason="the wheel of Helm is for Linux on x86-64")

SCALED = {
    "redis": {"host": "redis", "secret": "redis"},
    "priorities": list(range(10)),
    "workers": {
        "gpu": {
            "pool": "solo",
            "concurrency": 1,
            "queues": ["gpu", "refund"],
            "scale": {"queues": ["gpu", "refund"], "min": 0, "max": 4, "length": 1},
        }
    },
}


def helm(*arguments: str, values: dict | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm without a cluster; `values` are those of a user's file."""
    file = ["--values", "-"] if values is not None else []
    return subprocess.run(
        [str(HELM), *arguments, *file], input=json.dumps(values), capture_output=True, text=True, check=False
    )


def render(values: dict | None = None) -> list[dict]:
    """Return the objects that the chart creates."""
    done = helm("template", "shop", str(CHART), values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def containers(objects: list[dict]) -> dict[str, dict]:
    pods = [entry["spec"]["template"]["spec"] for entry in objects if entry["kind"] == "Deployment"]
    return {container["name"]: container for pod in pods for container in pod["containers"]}


@pytest.mark.parametrize("values", [None, SCALED], ids=["defaults", "scaled"])
def test_the_chart_is_valid(values):
    """Helm finds no fault, and Kubernetes knows every field of every object."""
    linted = helm("lint", "--strict", str(CHART), values=values)
    assert linted.returncode == 0, linted.stdout

    own = [entry for entry in render(values) if not entry["apiVersion"].startswith("keda.sh/")]
    for entry in own:
        validation.validate(entry, "1.29", strict=True)
    assert {entry["kind"] for entry in own} == {"Deployment", "PodDisruptionBudget"}


@pytest.mark.parametrize("values", [None, SCALED], ids=["defaults", "scaled"])
def test_its_programs_exist(values):
    """Each container starts a command that exists, with options that it has, and sets settings that exist."""
    known = {f"RUNNER_{name}".upper() for name in Settings.model_fields}

    for container in containers(render(values)).values():
        program, name, *options = container["command"]
        command = runner.commands[name]
        context = command.make_context(name, [*options], resilient_parsing=True)
        assert (program, context.command) == ("runner", command)
        assert {variable["name"] for variable in container["env"]} - known <= {"REDIS_PASSWORD"}


@pytest.mark.parametrize("grace", [None, 3600.0], ids=["default", "longer"])
def test_a_worker_has_time_to_finish_its_nodes(grace):
    """Kubernetes kills after the time of the setting and a reserve."""
    values = {"settings": {"RUNNER_SHUTDOWN_GRACE": str(int(grace))}} if grace else None
    pods = [entry["spec"]["template"]["spec"] for entry in render(values) if entry["kind"] == "Deployment"]
    worker = next(pod for pod in pods if pod["containers"][0]["name"] == "worker-default")

    assert (
        worker["terminationGracePeriodSeconds"]
        == (grace or Settings.model_fields["shutdown_grace"].default) + 60
    )


def test_keda_reads_the_lists_in_which_doorbells_lie(redis_url):
    """For every priority of a node, the list that the store's scripts push to is a trigger's."""
    app = make_app(Settings(redis_url=redis_url))
    try:
        template = make_template(app)
    finally:
        app.close()
    scaled = next(entry for entry in render(SCALED) if entry["kind"] == "ScaledObject")
    lists = {trigger["metadata"]["listName"] for trigger in scaled["spec"]["triggers"]}

    assert lists == {
        template.prefix + queue + suffix
        for queue in ("gpu", "refund")
        for suffix in template.queue_keys.values()
    }
    assert scaled["spec"]["minReplicaCount"] == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**SCALED, "keeper": {"replicas": 0}}, "set keeper.replicas to 1 or more"),
        ({**SCALED, "broker": {"secret": "rabbitmq"}}, "use KEDA's trigger for RabbitMQ"),
        ({"workers": {"default": {"pool": "gevent", "concurrency": 1}}}, 'one of the following: "threads"'),
        ({"settings": {"RUNNER_REDIS_URL": "redis://elsewhere"}}, "RUNNER_REDIS_URL"),
        ({"worker": {}}, "worker is not allowed"),
    ],
    ids=["no-keeper", "rabbitmq", "pool", "setting", "unknown"],
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
    path = next(entry["value"] for entry in container["env"] if entry["name"] == "RUNNER_ALIVE_FILE")

    def probe(name: str) -> bool:
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
        wait_until(lambda: probe("startupProbe") and probe("readinessProbe"), "the worker is ready")
        assert probe("livenessProbe")
        long_ago = time.time() - 120
        os.utime(file, (long_ago, long_ago))
        wait_until(lambda: probe("livenessProbe"), "the worker touches the file again")
        os.kill(worker.pid, signal.SIGSTOP)
        os.utime(file, (long_ago, long_ago))
        assert not probe("livenessProbe")
        os.kill(worker.pid, signal.SIGCONT)
    assert not file.exists()
