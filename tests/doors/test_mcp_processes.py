"""The MCP server in processes of its own, with a real worker."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack, asynccontextmanager, closing

import pytest

from runner import Client as RunnerClient
from runner.dev.worker_process import worker_process
from runner.server.auth import token_of
from tests.doors.servers import server
from tests.integrations.extras import need

need("mcp", "mcp")

import httpx2  # noqa: E402 - comes with the SDK
from mcp import Client  # noqa: E402 - only where the extra is installed
from mcp.client.streamable_http import streamable_http_client  # noqa: E402 - likewise

from tests.doors.test_mcp import (  # noqa: E402 - likewise
    Tasks,
    accept,
    accepted,
    ask_user,
    call,
    only,
    task_call,
    task_that,
)

pytestmark = pytest.mark.slow

GRAPHS = """
from runner import GraphBuilder, graph


@graph("trip")
def trip():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: {"city": ctx.interrupt("where")}, "ask")
    return builder.build()
"""

SECRET = "s" * 40


@pytest.fixture
def worker(redis_url, tmp_path, monkeypatch):
    """A worker that runs, with the environment of servers of its graph."""
    (tmp_path / "trips.py").write_text(GRAPHS)
    settings = {
        "RUNNER_GRAPHS": "trips",
        "RUNNER_MCP_GRAPHS": "trip",
        "RUNNER_REDIS_URL": redis_url,
        "RUNNER_SERVER_SECRET": SECRET,
        "PYTHONPATH": str(tmp_path),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with worker_process(settings, concurrency=2) as process:
        process.wait_ready()
        yield process


@asynccontextmanager
async def client_of(url, *extensions):
    """Connect as the user of the machine, who has the token."""
    headers = {"Authorization": f"Bearer {token_of(SECRET)}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(
            streamable_http_client(f"{url}/mcp", http_client=http),
            extensions=extensions,
            elicitation_callback=ask_user,
        ) as client,
    ):
        yield client


def test_another_server_goes_on_after_one_was_killed(worker):
    """A task and a call that one server began are finished by another: no run is lost or started twice."""
    with ExitStack() as stack:
        first, url = stack.enter_context(server("mcp"))
        _, other_url = stack.enter_context(server("mcp"))

        async def begin():
            async with client_of(url, Tasks()) as client:
                started = await call(client, "graph_trip", task=1)
                await task_that(client, started.task_id, "input_required")
            async with client_of(url) as client:
                return started.task_id, await call(client, "graph_trip", task=2)

        async def finish(task_id, asked):
            async with client_of(other_url, Tasks()) as client:
                task = await task_that(client, task_id, "input_required")
                key, _ = only(task["inputRequests"])
                update = {"inputResponses": {key: accepted(answer="Rome")}}
                await task_call(client, "tasks/update", task_id, **update)
                task = await task_that(client, task_id, "completed")
                assert task["result"]["structuredContent"] == {"city": "Rome"}
            async with client_of(other_url) as client:
                responses = {only(asked.input_requests)[0]: accept(answer="Oslo")}
                done = await call(client, "graph_trip", asked.request_state, responses, task=2)
                assert done.structured_content == {"city": "Oslo"}

        task_id, asked = asyncio.run(begin())
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        asyncio.run(finish(task_id, asked))
    with closing(RunnerClient().engine.store) as store:
        assert len(store.runs().items) == 2
