"""Tools of a real MCP server over stdio, used by our agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.agent import Agent
from runner.agent.models.scripted import ScriptedModel
from runner.errors import DefinitionError
from tests.integrations.extras import need
from tests.waiting import wait_until

need("mcp", "mcp")

from mcp import StdioServerParameters  # noqa: E402 - only where the extra is installed

from runner.integrations.mcp import McpServer, mcp_tools  # noqa: E402 - likewise

SERVER = Path(__file__).with_name("mcp_server.py")
PARAMETERS = StdioServerParameters(command=sys.executable, args=[str(SERVER)])


@pytest.fixture(scope="module")
def server():
    return McpServer(PARAMETERS, call_timeout=60)


def call(name, **arguments):
    return {"toolUse": {"toolUseId": "t1", "name": name, "input": arguments}}


def run(server, *calls):
    """Let an agent make these calls, one a turn, and return what each gave it."""
    agent = Agent(
        name="a", model=ScriptedModel([*([each] for each in calls), "done"]), tools=server.tools()
    )
    result = agent("go")
    assert str(result).strip() == "done"
    found = [
        part["toolResult"]
        for message in agent.messages
        for part in message["content"]
        if "toolResult" in part
    ]
    return [(each["status"], each["content"][0]["text"]) for each in found]


def test_a_tool_is_told_to_the_model_and_called(server):
    """The model sees name, description and schema; its call reaches the server."""
    spec = next(tool.tool_spec for tool in server.tools() if tool.tool_name == "add")

    assert spec["description"] == "Add two numbers."
    assert set(spec["inputSchema"]["json"]["properties"]) == {"first", "second"}
    assert run(server, call("add", first=2, second=3)) == [("success", "5")]


def test_an_error_of_the_tool_is_an_error_result(server):
    """What the server's tool raises becomes a result that the model can read."""
    [(status, text)] = run(server, call("refuse"))

    assert status == "error"
    assert "not today" in text


def test_a_server_that_died_is_started_again(server):
    """The call in which it died is an error and is not repeated; the next one has a new server."""
    [(first, _)] = run(server, call("die"))
    [(second, text)] = run(server, call("add", first=1, second=1))

    assert (first, second, text) == ("error", "success", "2")


def test_one_session_serves_a_process(server):
    """Several calls meet the same server process."""
    [(_, first)] = run(server, call("process"))
    [(_, second)] = run(server, call("process"))

    assert first == second


def test_only_the_tools_that_are_wanted():
    """Names choose; one that the server lacks is an error where the agent is built."""
    assert [tool.tool_name for tool in mcp_tools(PARAMETERS, ["add"])] == ["add"]
    with pytest.raises(DefinitionError, match="no tool \\['other'\\]"):
        mcp_tools(PARAMETERS, ["other"])


def test_a_server_that_can_not_start_is_a_definition_error():
    """A command that does not exist is reported when the tools are asked for."""
    with pytest.raises(DefinitionError, match="can't be used"):
        mcp_tools(StdioServerParameters(command="no-such-program"))


@pytest.mark.slow
def test_a_server_ends_with_its_process():
    """When the process that uses it is killed, no server stays behind."""
    program = (
        "import sys, os, signal, asyncio; from mcp import StdioServerParameters; "
        "from runner.integrations.mcp import McpServer; "
        f"server = McpServer(StdioServerParameters(command=sys.executable, args=[{str(SERVER)!r}])); "
        "print(asyncio.run(server.call('process', {}))['content'][0]['text'], flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=150
    )

    pid = int(done.stdout)
    wait_until(lambda: not alive(pid), "the server has ended")


def alive(pid):
    """Tell whether a process runs; one that has ended and was not yet collected does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
