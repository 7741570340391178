"""Our command line below an existing app's: `celery -A yourapp graph …`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

import tasks
from runner.settings import as_broker
from tasks.command import graph

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(redis_url, monkeypatch):
    """Call the group as Celery's program does, with the app of the user's option `-A`."""
    monkeypatch.setenv("RUNNER_REDIS_URL", redis_url)
    app = Celery("theirs", broker=as_broker(redis_url), set_as_current=False)
    tasks.install(app)
    context = CLIContext(app=app, no_color=True, workdir=None)
    yield lambda *words: CliRunner().invoke(graph, words, obj=context)
    app.close()


def test_celery_finds_the_command():
    """The package declares it as Celery's plugins are declared."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert about["project"]["entry-points"]["celery.commands"] == {"graph": "tasks.command:graph"}


def test_the_commands_work_on_the_app_s_store(call):
    """They need no address: it is the app's."""
    done = call("runs", "list", "--json")

    assert done.exit_code == 0, done.output
    assert '"runs": []' in done.stdout


def test_an_error_is_one_line_and_a_code(call):
    """Errors look as those of `runner` do, and so do the exit codes."""
    done = call("runs", "show", "nothing")

    assert done.exit_code == 4
    assert "Error: There is no run 'nothing'" in done.stderr


def test_help_lists_what_makes_sense_below_an_app(call):
    """Celery's own commands are not doubled."""
    done = call("--help")

    assert done.exit_code == 0
    assert "interrupts" in done.stdout
    assert "  worker " not in done.stdout
