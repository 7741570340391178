from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from runner.cli.program import runner

HEAVY = ("celery", "fakeredis", "kombu", "pydantic_settings", "redis", "rich", "runner.engine", "tasks")
SPENT = (
    "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime, file=sys.stderr)"
)
BARE = f"import resource, sys, click, pydantic; pydantic.BaseModel; {SPENT}"
HELP = f"""
import resource, runpy, sys
sys.argv = ["runner", "--help"]
try:
    runpy.run_module("runner.cli", run_name="__main__")
except SystemExit:
    {SPENT}
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def spent(program: str) -> tuple[float, str]:
    """Run a program and return its seconds of CPU, and what else it said."""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    seconds, _, rest = said.partition("\n")
    return float(seconds), rest.strip()


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def test_help_imports_nothing_heavy():
    """Help answers at once, in 0.2 seconds of CPU: not much more than the two libraries it stands on.

    Measured against them, in turns, because a busy machine makes everything slower.
    """
    bare, helped = zip(*((spent(BARE), spent(HELP)) for _ in range(3)), strict=True)

    assert {rest for _, rest in helped} == {"[]"}
    assert min(seconds for seconds, _ in helped) < 2 * min(seconds for seconds, _ in bare)


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
