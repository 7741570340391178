"""Our command line below an existing app's: `celery -A yourapp runner …`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery
from click.shell_completion import ShellComplete
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

    def invoke(*words):
        return CliRunner().invoke(commands, words, obj=context)

    invoke.context = context
    yield invoke
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
        "celery -b 'redis://***@h/1' -A shop runner",
        "celery --app runner -q runner",
        "celery --app=shop runner",
    ],
)
@pytest.mark.parametrize("option", ["", " --redis-url 'redis://x/1?a=b'"])
def test_a_printed_command_begins_as_this_one_was_called(words, option, call, monkeypatch):
    """Without these options it would act on another store; no password is printed."""
    given = [*shlex.split(option), "runs", "list"]
    called = shlex.split(words.replace("***", "ann:secret"))
    monkeypatch.setattr(sys, "argv", ["/usr/bin/celery", *called[1:], *given])
    with click.Context(celery, obj=call.context) as parent:
        output = commands.make_context("runner", given, parent=parent).obj.output
    assert output.advice("`runner runs list` and: runner api GET") == (
        f"`{words}{option} runs list` and: {words}{option} api GET"
    )
    assert output.advice("`runner dev`") == "`runner dev`"
    assert output.advice("`runner worker` and `runner workers list`") == (
        f"`{words.removesuffix(' runner')} worker` and `{words}{option} workers list`"
    )


def test_a_shell_can_complete_its_commands(monkeypatch):
    """Celery has no app then."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/celery"])
    words = ["runner", "interrupts"]
    completed = ShellComplete(celery, {}, "celery", "_").get_completions(words, "res")
    assert [item.value for item in completed] == ["respond"]


def test_options_before_the_command_hold(call):
    """Also those of the store, before the command and behind it."""
    assert '"runs": []' in call("--json", "runs", "list").stdout
    away = "redis://:secret@127.0.0.1:1/0"
    done = [
        call("--redis-url", away, "runs", "list"),
        call("runs", "list", "--redis-url", away),
    ]
    for each in done:
        assert (each.exit_code, "127.0.0.1:1" in each.stderr) == (7, True)
        assert "secret" not in each.stderr
    assert call("--redis-url", "redis://[", "runs", "list").exit_code == 2


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
