from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from runner import Client
from runner.cli.program import runner
from runner.errors import UsageError
from runner.settings import Settings

TIMES = (
    "LEASE",
    "SWEEP_INTERVAL",
    "RETENTION",
    "ARCHIVE_HOLD",
    "SHUTDOWN_GRACE",
    "EARLY_ANSWER",
)


@pytest.mark.full
@pytest.mark.parametrize("value", ["inf", "1e12", "nan", "-1", "soon"])
@pytest.mark.parametrize("name", TIMES, ids=str.lower)
def test_times_are_set_within_a_century(monkeypatch, name, value):
    """A store can't write longer times: who sets one is told at once, not when a run ends."""
    monkeypatch.setenv(f"RUNNER_{name}", value)

    with pytest.raises(
        UsageError, match=rf"^invalid setting RUNNER_{name}: .*, not '{value}'\.$"
    ):
        Settings()


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("LEASE", "1e-9", "greater than or equal to 1, not '1e-9'"),
        ("LEASE", "1e6", "less than or equal to 86400, not '1e6'"),
        ("SWEEP_INTERVAL", "0", "greater than or equal to 0.1, not '0'"),
        ("RETENTION", "0.001", "greater than or equal to 1, not '0.001'"),
        ("MAX_RESULT", "1", "greater than or equal to 500, not '1'"),
        ("MAX_STATE", "1e99", "not '1e99'"),
        ("MAX_RUN", "10MB", "not '10MB'"),
        ("DURABILITY", "fsinc", "Input should be 'fast', 'fsync' or 'replica', not 'fsinc'"),
        ("LOG_FORMAT", "jsn", "Input should be 'text' or 'json', not 'jsn'"),
        ("EVENTS", "maybe", "not 'maybe'"),
        ("REDIS_URL", "localhost:6379", "give a URL such as redis://localhost:6379/0."),
        (
            "REDIS_URL",
            "http://:secret@localhost",
            "give a URL such as redis://localhost:6379/0.",
        ),
        (
            "ARCHIVE",
            "s3://secret",
            "give a folder, or a URL such as postgresql://localhost/runs.",
        ),
        ("BROKER_URL", "rabbit", "RabbitMQ (amqp://localhost:5672//)"),
        (
            "BROKER_URL",
            "gcpubsub://key:secret@",
            "give a URL of a Redis, Valkey (redis://, sentinel://), RabbitMQ",
        ),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(monkeypatch, name, value, says):
    """In one line that names the setting and its bounds; no value of a URL is shown, for its password."""
    monkeypatch.setenv(f"RUNNER_{name}", value)

    with pytest.raises(UsageError) as refused:
        Client()

    assert str(refused.value).startswith(f"invalid setting RUNNER_{name}: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_secret_may_be_in_a_file(monkeypatch, tmp_path):
    """A container's secret is a file: a variable names it, and the setting's own variable counts more."""
    file = tmp_path / "redis_url"
    file.write_text("redis://:secret@redis:6379/0\n")
    monkeypatch.setenv("RUNNER_REDIS_URL_FILE", str(file))

    assert Settings().redis_url == "redis://:secret@redis:6379/0"
    shown = CliRunner().invoke(runner, ["config", "show", "--origin"])
    assert "RUNNER_REDIS_URL\tredis://:***@redis:6379/0\tenvironment" in shown.stdout
    assert "not a setting" not in shown.stderr
    monkeypatch.setenv("RUNNER_REDIS_URL", "redis://other")
    assert Settings().redis_url == "redis://other/0"


def test_a_secret_s_file_that_can_not_be_read_is_named(monkeypatch, tmp_path):
    """No program goes on with the default instead."""
    monkeypatch.setenv("RUNNER_SERVER_SECRET_FILE", str(tmp_path / "none"))

    with pytest.raises(
        UsageError,
        match=r"none, which RUNNER_SERVER_SECRET_FILE names, can't be read: .*No such",
    ):
        Settings()


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [["runner.cli", "runs", "list"], ["celery", "--app", "runner.celery", "worker"]]
)
def test_the_programs_refuse_such_a_setting_in_one_line(program):
    """Neither the command line nor a worker begins with it, and neither writes a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", *program],
        env={**os.environ, "RUNNER_LEASE": "1e-9"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert done.returncode
    assert done.stderr.splitlines() == [
        "Error: invalid setting RUNNER_LEASE: Input should be greater than or equal to 1, not '1e-9'."
    ]
