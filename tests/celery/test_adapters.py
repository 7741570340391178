"""Agents of other frameworks on real workers: killed while they wait, gone on with elsewhere."""

from __future__ import annotations

import json

import pytest

from runner import Status
from tests.integrations.extras import need
from tests.waiting import wait_until

need("strands", "strands")
need("pydantic_ai", "pydantic-ai")
need("mcp", "mcp")
need("langchain", "dev")
need("agents", "openai-agents")

GRAPHS = {
    "strands_agent": ("blue", "sky is blue"),
    "pydantic_agent": (True, "paint is north painted"),
    "mcp_agent": ({"day": "Friday"}, "booked"),
    "openai_agent": (True, "north painted"),
    "langgraph_graph": ("blue", "blue"),
    "langchain_agent": ({"type": "approve"}, "7 is paid, done"),
}


@pytest.mark.slow
def test_another_worker_goes_on_with_an_agent_of_another_framework(databases, tmp_path):
    """Its state lies in Redis: the worker is killed while it waits, and another one takes the answer.

    A call in which an MCP server has asked goes on with the server's state, and is not made again.
    """
    site, calls = next(databases), tmp_path / "calls"
    settings = {"RUNNER_GRAPHS": "tests.integrations.worker_graphs", "MCP_CALLS": str(calls)}
    site.ready(1, **settings)
    runs = {name: site.client.start(name, "go") for name in GRAPHS}
    waiting = {name: run.wait(60) for name, run in runs.items()}
    assert {result.status for result in waiting.values()} == {Status.INTERRUPTED}

    site.workers[0].kill()
    for name, (response, _) in GRAPHS.items():
        body = {"v": 1, "interrupt_id": waiting[name].interrupts[0].id, "response": response}
        site.send(json.dumps(body))
    # Control: with no worker nobody takes the answers.
    with pytest.raises(AssertionError):
        wait_until(
            lambda: runs["strands_agent"].status is not Status.INTERRUPTED, "it goes on", seconds=1
        )
    site.ready(1, **settings)

    for name, (_, text) in GRAPHS.items():
        wait_until(lambda run=runs[name]: run.status is Status.COMPLETED, f"{name} has completed")
        assert runs[name].result().results["agent"].output.strip() == text
    made = [json.loads(line) for line in calls.read_text().splitlines()]
    assert made == [["book", None], ["book", "4 guests"]]
    site.end()
