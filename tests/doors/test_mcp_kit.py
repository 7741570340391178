"""The MCP server before the conformance kit of the protocol, whose tools are graphs here."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from runner import NodeContext
from tests.doors.conftest import LiveSite
from tests.graphs import wired
from tests.integrations.extras import need
from tests.ports import free_port
from tests.server.conftest import Served

need("mcp", "mcp")

ROOT = Path(__file__).parents[2] / "build/mcp-kit"
KIT = ROOT / "node_modules/@modelcontextprotocol/conformance/dist/index.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (KIT.is_file() and shutil.which("node")),
        reason="needs Node.js and the conformance kit of MCP: make mcp-kit",
    ),
]

FIELDS = {
    "name": {"type": "string"},
    "color": {"type": "string"},
    "confirm": {"type": "boolean"},
}


def ask(*names):
    """Make a node that asks such questions, one after another."""

    def asking(task: dict, ctx: NodeContext) -> dict:
        schema = {"type": "object", "properties": FIELDS}
        return {name: ctx.interrupt(name, response_schema=schema) for name in names}

    return asking


def wait(task: dict, ctx: NodeContext) -> dict:
    ends_at = time.monotonic() + task["seconds"]
    while time.monotonic() < ends_at:
        ctx.check()
        time.sleep(0.05)
    return {"seconds": task["seconds"]}


def fail(task: dict) -> dict:
    raise ValueError("no")


def text(task: dict) -> str:
    return "This is a simple text response for testing."


def one(node):
    return lambda: wired({"node": node}).build()


def begin(task: dict) -> dict:
    return task


def several():
    nodes = {"begin": begin, "left": ask("left"), "right": ask("right")}
    return wired(nodes, "begin left", "begin right").build()


ASKING = "test_input_required_result_"

GRAPHS = {
    "greet": one(text),
    "slow_compute": one(wait),
    "failing_job": one(fail),
    "protocol_error_job": one(fail),
    "confirm_delete": one(ask("confirm")),
    "multi_input": several,
    "test_simple_text": one(text),
    "test_error_handling": one(fail),
    f"{ASKING}elicitation": one(ask("user_name")),
    f"{ASKING}tampered_state": one(ask("name")),
    f"{ASKING}multi_round": one(ask("name", "color")),
}

ALL_ARE_TASKS = "for a client with tasks every graph is one"
NO_TOOL = "the tool that the kit asks for does what a graph can't"

EXPECTED = {
    "server-initialize": {},
    "ping": {},
    "tools-list": {},
    "tools-call-simple-text": {},
    "tools-call-error": {},
    "http-header-validation": {},
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability": NO_TOOL,
        "sep-2575-missing-capability-http-400": NO_TOOL,
        "sep-2575-http-server-no-independent-requests-on-stream": NO_TOOL,
        "sep-2575-server-no-log-without-loglevel": NO_TOOL,
    },
    "tasks-lifecycle": {
        "tasks-sync-tool-call": ALL_ARE_TASKS,
        "sep-2663-tasks-get-status-failed": "a run that failed is a result of the tool",
    },
    "tasks-capability-negotiation": {},
    "tasks-wire-fields": {},
    "tasks-request-state-removal": {},
    "tasks-mrtr-input": {},
    "tasks-request-headers": {"tasks-headers-tolerate-mcp-method-on-tools-call": ALL_ARE_TASKS},
    "tasks-dispatch-and-envelope": {
        "sep-2663-legacy-task-param-ignored": ALL_ARE_TASKS,
        "tasks-result-type-complete-on-non-task-responses": ALL_ARE_TASKS,
    },
    "input-required-result-multi-round": {},
    "input-required-result-missing-input-response": {},
    "input-required-result-result-type": {},
    "input-required-result-unsupported-methods": {},
    "input-required-result-tampered-state": {},
    "input-required-result-validate-input": {},
}
"""The checks of each scenario that fail, and why they do."""


@pytest.fixture
def checks(redis_url, monkeypatch):
    """Return what runs a scenario and returns its checks by their status."""
    monkeypatch.setattr(
        "runner.doors.mcp.PREFIX", ""
    )  # the kit's tools have names of their own
    site = LiveSite(
        redis_url,
        GRAPHS,
        mcp_graphs=[*GRAPHS],
        mcp_keys="k" * 32,
        server_url="https://runner.example",
    )

    def run(scenario):
        with Served(site.app, port := free_port()):
            address = f"http://127.0.0.1:{port}/mcp"
            command = ["node", str(KIT), "server", "--url", address, "--scenario", scenario]
            ended = subprocess.run(
                [*command, "--verbose"], capture_output=True, text=True, check=False
            )
        begin = ended.stdout.index("[\n")
        items, _ = json.JSONDecoder().raw_decode(ended.stdout[begin:])
        return {
            status: {
                item["id"]: item.get("errorMessage")
                for item in items
                if item["status"] == status
            }
            for status in ("SUCCESS", "FAILURE")
        }

    yield run
    site.pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("scenario", EXPECTED)
def test_the_kit_finds_what_is_said(checks, scenario):
    """All checks of a scenario pass but those of the list."""
    found = checks(scenario)

    assert found["SUCCESS"]
    assert found["FAILURE"].keys() == EXPECTED[scenario].keys(), found["FAILURE"]
