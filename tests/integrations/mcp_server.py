"""A real MCP server over stdio, for tests."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    ListRootsRequest,
)

# With a key of its own each process would refuse what another one has asked.
server = MCPServer("tests", request_state_security=RequestStateSecurity(keys=["k" * 32]))

DAY = {
    "type": "object",
    "properties": {"day": {"type": "string", "enum": ["Monday", "Friday"]}},
    "required": ["day"],
}


@server.tool()
def add(first: int, second: int) -> str:
    """Add two numbers."""
    return str(first + second)


@server.tool()
def refuse() -> str:
    """Raise an error."""
    raise ToolError("not today")


@server.tool()
def die() -> str:
    """End the server in the middle of the call."""
    os._exit(3)


@server.tool()
def process() -> str:
    """Tell the server's process id."""
    return str(os.getpid())


def form(message):
    params = ElicitRequestFormParams(message=message, requested_schema=DAY)
    return ElicitRequest(params=params)


@server.tool()
def book(guests: int, ctx: Context, *, deposit: bool = False) -> str | InputRequiredResult:
    """Book a table: asks for the day; with a deposit also for that, and then once more."""
    note("book", ctx)
    if ctx.request_state is None:
        asked = {"day": form("Which day?")}
        if deposit:
            url = "https://pay.example/7"
            params = ElicitRequestURLParams(message="A deposit, please.", url=url)
            asked["pay"] = ElicitRequest(params=params)
        return InputRequiredResult(input_requests=asked, request_state=f"{guests} guests")
    given = {key: (each.action, each.content) for key, each in ctx.input_responses.items()}
    action, content = given["day"]
    answer = f"{ctx.request_state}: {action} {content and content['day']}"
    if "pay" in given:
        state = f"{answer}, {given['pay'][0]}"
        return InputRequiredResult(input_requests={"day": form("Sure?")}, request_state=state)
    return answer


@server.tool()
def later(ctx: Context) -> str | InputRequiredResult:
    """Ask to be called again, twice, and answer then."""
    calls = len(ctx.request_state or "")
    return "ready" if calls == 2 else InputRequiredResult(request_state="." * (calls + 1))


@server.tool()
def roots() -> str | InputRequiredResult:
    """Ask for what only a program knows."""
    return InputRequiredResult(input_requests={"roots": ListRootsRequest()})


def note(name, ctx):
    """Append to a file, where a test names one, that a tool was called, and with which state."""
    if path := os.environ.get("MCP_CALLS"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, ctx.request_state]) + "\n")


if __name__ == "__main__":
    server.run()
