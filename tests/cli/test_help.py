from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from runner.cli.program import runner

HEAVY = ("celery", "fakeredis", "kombu", "pydantic_settings", "redis", "rich", "runner.engine", "tasks")
WATCHED = f"""
import resource, runpy, sys
sys.argv = ["runner", "--help"]
try:
    runpy.run_module("runner.cli", run_name="__main__")
except SystemExit:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def test_help_costs_less_than_a_third_of_a_second():
    """Help answers at once: nothing heavy is imported for it."""
    seen = [
        subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, check=True).stderr
        for _ in range(3)
    ]

    assert {told.split(" ", 1)[1].strip() for told in seen} == {"[]"}
    assert min(float(told.split(" ", 1)[0]) for told in seen) < 0.3


@pytest.mark.parametrize("command", list(commands(runner)), ids=" ".join)
def test_every_command_helps_and_can_write_json(command):
    """Every command says what it does in one line first, and has the shared options."""
    done = CliRunner().invoke(runner, [*command, "--help"])

    assert done.exit_code == 0
    assert done.stdout.splitlines()[2].strip().endswith(".")
    for option in ("--json", "--redis-url", "--graphs", "--debug"):
        assert option in done.stdout


def test_no_help_is_cut_off_in_the_list_of_commands():
    """The first line of every command fits beside its name."""
    assert "..." not in CliRunner().invoke(runner, ["--help"]).stdout.split("Commands:")[1]


def test_version_names_what_is_installed():
    """`runner version` has the distribution, Python, and what it stands on."""
    lines = dict(line.split("\t") for line in CliRunner().invoke(runner, ["version"]).stdout.splitlines())

    assert set(lines) == {"celery-graph-runner", "python", "celery", "kombu", "redis"}
