"""Our command line below an existing app's: `celery -A yourapp runner …`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery
from click.testing import CliRunner

import runner.celery
from runner.celery.command import commands

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(fake_store, monkeypatch):
    """Call the group as Celery's program does, with the app of the user's option `-A`."""
    monkeypatch.setenv("RUNNER_REDIS_URL", fake_store.url)
    app = Celery("other_team", broker="memory://", set_as_current=False)
    runner.celery.install(app)
    context = CLIContext(app=app, no_color=True, workdir=None)
    yield lambda *words: CliRunner().invoke(commands, words, obj=context)
    app.close()


def test_celery_finds_the_command():
    """The package declares it as Celery's plugins are declared."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert about["project"]["entry-points"]["celery.commands"] == {
        "runner": "runner.celery.command:commands"
    }


def test_celery_has_no_command_of_that_name():
    """Celery's own command would hide ours, as its `graph` does."""
    assert celery.commands.get("runner", commands) is commands


def test_the_commands_work_on_the_app_s_store(call):
    """They need no address: it is the app's."""
    done = call("runs", "list", "--json")

    assert done.exit_code == 0, done.output
    assert '"runs": []' in done.stdout


def test_an_error_is_one_line_and_a_code(call):
    """Errors look as those of `runner` do, and so do the exit codes."""
    done = call("runs", "show", "nothing")

    assert done.exit_code == 4
    assert done.stderr.startswith("Error: there is no run 'nothing'")


def test_help_lists_what_makes_sense_below_an_app(call):
    """Celery's own commands are not doubled."""
    done = call("--help")

    assert done.exit_code == 0
    assert "interrupts" in done.stdout
    assert "  worker " not in done.stdout
