"""What the commands that read import: modules are counted, since seconds depend on the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runner import Client
from runner.definition.registry import Registry
from tests.graphs import single

pytestmark = pytest.mark.full

NEEDLESS = {
    "ag_ui",
    "agents",
    "celery",
    "fakeredis",
    "fastapi",
    "jsonschema_rs",
    "kombu",
    "langchain_core",
    "langgraph",
    "mcp",
    "openai",
    "pydantic_ai",
    "rich",
    "runner.agent.agent",
    "runner.authoring.builder",
    "runner.celery",
    "strands",
    "tasks",
}
"""Modules that no command needs which reads the store and writes lines or JSON."""

IMPORTED = f"""
import gc, sys
from runner.cli import main
try:
    main()
except SystemExit as end:
    collections = gc.get_stats()[-1]["collections"]
    print(end.code, collections, *sorted({NEEDLESS} & set(sys.modules)), file=sys.stderr)
"""

READING = [
    "runs list",
    "runs list --json",
    "runs show RUN",
    "interrupts list",
    "interrupts list --json",
    "workers list",
    "dead list",
    "graphs list",
    "metrics",
    "config show",
]


@pytest.fixture
def run_id(redis_url):
    """The id of a run that no worker has taken."""
    graphs = Registry()
    graphs.add("one", lambda: single(lambda ctx: ctx.task))
    return Client(redis_url, registry=graphs).start("one", "task").id


def imported(command: str, url: str) -> list[str]:
    """Run a command in a process of its own; return exit code, full collections, such modules."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *command.split()],
        env={**os.environ, "RUNNER_REDIS_URL": url},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr.split()


@pytest.mark.parametrize(
    "command",
    [READING[0], *(pytest.param(other, marks=pytest.mark.slow) for other in READING[1:])],
)
def test_commands_that_read_import_nothing_needless(command, redis_url, run_id):
    """No Celery, no terminal library, no agents; and what they do import is not searched for garbage."""
    assert imported(command.replace("RUN", run_id), redis_url) == ["0", "0"]


def test_what_is_needless_would_be_seen(redis_url):
    """Control: `graphs check` imports the linter, which knows agents."""
    assert "runner.agent.agent" in imported("graphs check", redis_url)
