"""A real MCP server over stdio, for tests."""

from __future__ import annotations

import os

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tests")


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


if __name__ == "__main__":
    server.run()
