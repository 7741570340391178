"""Tools of MCP servers for agents, through the official SDK (extra `mcp`).

Each process has one session with a server, opened at first use on the process's loop and reopened
when it broke. A call that broke is not repeated: it may have had its effect, so the model gets
an error result. Servers over stdio end with the process, however it ends: their input closes.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from runner import async_loop
from runner.errors import DefinitionError, needs_extra

with needs_extra("mcp", "tools of MCP servers"):
    from mcp import Client, StdioServerParameters

Result = TypeVar("Result")

START_WITHIN = 30.0
"""Seconds that a server may take to start and to introduce itself."""

CLOSE_WITHIN = 5.0
"""Seconds that a server may take to end when the process ends."""


class McpServer:
    """One MCP server: `server` is what the SDK's Client takes (stdio parameters, a URL …).

    `call_timeout` is in seconds; a call that takes longer gives the model an error result.
    """

    def __init__(self, server: StdioServerParameters | str, *, call_timeout: float = 60.0) -> None:
        """Nothing is started before the first use."""
        self._server, self._call_timeout = server, call_timeout
        self._pid = 0
        self._client: Client | None = None
        self._done: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    def tools(self, only: Sequence[str] | None = None) -> list[McpTool]:
        """List the server's tools; `only` names those to return.

        Raises:
            DefinitionError: the server can't be started, or lacks one of the names.
        """
        try:
            definitions = async_loop.run(self._listed())
        except Exception as error:
            raise DefinitionError(
                f"the MCP server {self._server!r} can't be used: {error!r}."
            ) from error
        names = sorted(tool.name for tool in definitions)
        missing = set(only or ()) - set(names)
        if missing:
            raise DefinitionError(f"the MCP server has no tool {sorted(missing)}; it has {names}.")
        return [McpTool(self, tool) for tool in definitions if only is None or tool.name in only]

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool and return its result as status and content; any fault is an error result."""
        try:
            # The session lives on the process's loop, and the caller may be on another one.
            return await async_loop.in_thread(async_loop.run, self._called(name, arguments))
        except Exception as error:  # noqa: BLE001 - any error is a result that the model reads
            return {
                "status": "error",
                "content": [{"text": f"Error: {type(error).__name__} - {error}"}],
            }

    async def _listed(self) -> list[Any]:
        tools: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self._guarded((await self._session()).list_tools(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools

    async def _called(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        client = await self._session()
        answer = await self._guarded(
            client.call_tool(name, arguments, read_timeout_seconds=self._call_timeout)
        )
        status = "error" if answer.is_error else "success"
        return {"status": status, "content": [_content(item) for item in answer.content]}

    async def _guarded(self, request: Coroutine[Any, Any, Result]) -> Result:
        """Send a request in the session; a session in which it failed is not used again."""
        try:
            async with asyncio.timeout(self._call_timeout + CLOSE_WITHIN):
                return await request
        except Exception:
            await self._close()
            raise

    async def _session(self) -> Client:
        async with self._opening:
            if self._client is None or self._pid != os.getpid():
                await self._open()
            assert self._client is not None  # noqa: S101 - just opened
            return self._client

    async def _open(self) -> None:
        """Open a session in a task of its own: it must end in the task that began it."""
        connection: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._pid, self._done = os.getpid(), asyncio.Event()
        self._task = asyncio.create_task(self._hold(connection, self._done))
        self._client = await asyncio.wait_for(connection, START_WITHIN)
        atexit.register(self._end)

    async def _hold(self, connection: asyncio.Future[Client], close_event: asyncio.Event) -> None:
        try:
            async with Client(self._server) as client:
                connection.set_result(client)
                await close_event.wait()
        except Exception as error:  # noqa: BLE001 - raised where the session is awaited
            if not connection.done():
                connection.set_exception(error)

    async def _close(self) -> None:
        task, close_event = self._task, self._done
        self._client = self._task = self._done = None
        if task is not None and close_event is not None:
            close_event.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(task, CLOSE_WITHIN)

    def _end(self) -> None:
        if self._pid == os.getpid() and self._client is not None:
            async_loop.run(self._close())


class McpTool:
    """One tool of an MCP server, as an agent calls it."""

    tool_type = "mcp"

    def __init__(self, server: McpServer, definition: Any) -> None:
        """`definition` is the tool as the server listed it."""
        self._server, self._name = server, str(definition.name)
        self.tool_name = self._name
        self.tool_spec: dict[str, Any] = {
            "name": self.tool_name,
            "description": definition.description or self.tool_name,
            "inputSchema": {"json": dict(definition.input_schema)},
        }

    async def stream(
        self,
        tool_use: dict[str, Any],
        invocation_state: dict[str, Any],  # noqa: ARG002 - the protocol of tools
        **_: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Call the server; the one thing it yields is the result."""
        result = await self._server.call(self._name, dict(tool_use["input"]))
        yield {"toolUseId": tool_use["toolUseId"], **result}


def mcp_tools(
    server: StdioServerParameters | str,
    only: Sequence[str] | None = None,
    *,
    call_timeout: float = 60.0,
) -> list[McpTool]:
    """Return the tools of an MCP server for an agent: `Agent(tools=mcp_tools(StdioServerParameters(...)))`.

    Raises:
        DefinitionError: the server can't be started, or lacks one of the names.
    """
    return McpServer(server, call_timeout=call_timeout).tools(only)


def _content(item: Any) -> dict[str, Any]:
    """Write a part of an MCP result in the shape that models take."""
    if item.type == "text":
        return {"text": item.text}
    if item.type == "image":
        kind = item.mime_type.partition("/")[2]
        return {"image": {"format": kind, "source": {"bytes": base64.b64decode(item.data)}}}
    return {"json": item.model_dump(mode="json", by_alias=True)}
