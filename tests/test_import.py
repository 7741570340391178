"""What `import runner` costs: programs that only build graphs or send answers start quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import runner

HEAVY = {
    "ag_ui",
    "agents",
    "celery",
    "click",
    "fastapi",
    "jsonschema_rs",
    "kombu",
    "langchain_core",
    "langgraph",
    "mcp",
    "openai",
    "pydantic_ai",
    "pydantic_settings",
    "redis",
    "rich",
    "slack_sdk",
    "strands",
}
"""Packages that only those pay for who use what needs them."""

MEASURE = """
import json, sys
{statement}
print(json.dumps([name.partition(".")[0] for name in sys.modules]))
"""
EVERY_NAME = f"from runner import {', '.join(runner.__all__)}"


def packages(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter, and return the packages that it loads."""
    command = [sys.executable, "-c", MEASURE.format(statement=statement)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.mark.full
@pytest.mark.parametrize(
    "statement", ["import runner", EVERY_NAME], ids=["package", "every name"]
)
def test_importing_loads_nothing_heavy(statement):
    """Neither the package nor its public names load a client, a framework or an extra."""
    assert packages(statement) & HEAVY == set()


def modules_of(*arguments: str) -> tuple[int, str]:
    """Run a fresh interpreter; count the modules that it imports, and return what it writes."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stderr.count("import time:"), done.stdout


@pytest.mark.full
def test_the_version_is_shown_without_the_commands():
    """`runner --version` imports what `import runner` does; control: `runner version` does more."""
    package, _ = modules_of("-c", "import runner")
    least, shown = modules_of("-m", "runner.cli", "--version")
    most, also_shown = modules_of("-m", "runner.cli", "version")

    assert version("celery-graph-runner") in shown
    assert version("celery-graph-runner") in also_shown
    assert least <= package + 20
    assert most > package + 100


@pytest.mark.full
@pytest.mark.parametrize(
    ("door", "unused"),
    [
        (
            "gate",
            {"celery", "fastapi", "httpx2", "mcp", "mcp_types", "starlette"},
        ),
        ("gate_hook", {"celery", "fastapi", "mcp", "mcp_types", "starlette"}),
        ("mcp", {"celery", "httpx", "jinja2", "joserfc", "markdown_it", "rich", "strands"}),
    ],
)
def test_a_door_that_clients_start_loads_only_its_own(door, unused):
    """A client waits for these programs: they leave out an SDK, pages and logins that they don't use."""
    assert packages(f"import runner.doors.{door}") & unused == set()


@pytest.mark.slow
def test_what_is_heavy_would_be_seen():
    """Control: a module that needs one of those packages shows up."""
    assert packages("import runner.store.redis.store") & HEAVY == {"redis"}


def test_importing_is_quick():
    """`import runner` imports few modules beside Python's."""
    assert modules_of("-c", "import runner")[0] <= modules_of("-c", "")[0] + 60
