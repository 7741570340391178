"""Our command line below an existing app's: `celery -A yourapp runner …`."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery
from click.testing import CliRunner

import runner.celery
from runner.celery.command import commands
from runner.cli.context import called_as

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


@pytest.mark.parametrize(
    "words",
    [
        "celery -A shop runner",
        "celery --app runner -q runner",
        "celery --app=shop runner",
        "runner",
    ],
)
def test_a_printed_command_begins_as_this_one_was_called(words, monkeypatch):
    """Without the app's option it would decide in another store."""
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{words}", *words.split()[1:], "runs", "list"])
    with click.Context(celery, info_name=words.split()[0]):
        assert called_as() == words


@pytest.mark.full
@pytest.mark.parametrize(
    "program", [["runner.cli"], ["celery", "-A", "tests.celery.other_teams_app:app", "runner"]]
)
def test_a_reader_that_leaves_is_no_error(program):
    """As in `runner runs list | head`, by both programs."""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", *program, "config", "show"],
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "RUNNER_REDIS_URL": "redis://127.0.0.1:1/0"},
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")
