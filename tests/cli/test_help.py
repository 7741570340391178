from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from runner.cli.program import WORDS, runner

pytestmark = pytest.mark.full

HEAVY = (
    "celery",
    "fakeredis",
    "kombu",
    "pydantic_settings",
    "redis",
    "rich",
    "runner.execution.engine",
    "tasks",
)
COUNT = "print(len(sys.modules), file=sys.stderr)"
BARE = f"import sys, click, pydantic; pydantic.BaseModel; {COUNT}"
HELP = f"""
import runpy, sys
sys.argv = ["runner", "--help"]
try:
    runpy.run_module("runner.cli", run_name="__main__")
except SystemExit:
    {COUNT}
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def modules(program: str) -> tuple[int, str]:
    """Run a program and return how many modules it has imported, and what else it printed."""
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stderr
    count, _, rest = printed.partition("\n")
    return int(count), rest.strip()


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def groups(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield (*path, name)
            yield from groups(command, (*path, name))


DEFAULT = re.compile(r"\(default: |^The answer: ")  # an answer has none: it is asked for


def test_help_imports_nothing_heavy():
    """Help imports the two libraries it stands on, and few modules more."""
    count, heavy = modules(HELP)

    assert heavy == "[]"
    assert count < modules(BARE)[0] + 120


@pytest.mark.parametrize("command", list(commands(runner)), ids=" ".join)
def test_every_command_helps_and_can_write_json(command):
    """Every command says what it does in one line first, and has the shared options."""
    done = CliRunner().invoke(runner, [*command, "--help"])

    assert done.exit_code == 0
    assert done.stdout.splitlines()[2].strip().endswith(".")
    for option in ("--json", "--redis-url", "--graphs", "--debug"):
        assert option in done.stdout


@pytest.mark.parametrize("group", [(), *groups(runner)], ids=" ".join)
def test_no_help_is_cut_off_in_a_list_of_commands(group):
    """The first line of every command fits beside its name."""
    assert (
        "..." not in CliRunner().invoke(runner, [*group, "--help"]).stdout.split("Commands:")[1]
    )


@pytest.mark.parametrize("command", list(commands(runner)), ids=" ".join)
def test_every_word_in_capitals_is_explained(command):
    """The help of one command alone says where to find the id or the name that it needs."""
    text = CliRunner().invoke(runner, [*command, "--help"]).stdout
    usage = text.splitlines()[0]

    assert all(f"{word} is the " in text for word in WORDS if re.search(rf"\b{word}\b", usage))


@pytest.mark.parametrize("command", list(commands(runner)), ids=" ".join)
def test_every_option_names_its_default(command):
    """An option that takes a value names its default, is required, or is one of many that narrow a list."""
    own = runner
    for name in command:
        own = own.commands[name]
    silent = [
        option.opts[-1]
        for option in own.params
        if isinstance(option, click.Option) and not option.is_flag and not option.multiple
        if not (option.show_default or option.required or DEFAULT.search(option.help))
    ]

    assert silent == []


def test_version_names_what_is_installed():
    """`runner version` has the distribution, Python, and what it stands on."""
    lines = dict(
        line.split("\t") for line in CliRunner().invoke(runner, ["version"]).stdout.splitlines()
    )

    assert set(lines) == {"celery-graph-runner", "python", "celery", "kombu", "redis"}
