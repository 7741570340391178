"""Requests of MCP clients: over HTTP each in a separate session, over stdio in lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from runner.errors import needs_extra

with needs_extra("server", "the MCP server"):
    import anyio
    from fastapi import Request, Response
    from fastapi.responses import JSONResponse
    from fastapi.routing import APIRoute
    from starlette.types import Message, Receive, Scope, Send

    from runner.server.problems import Problem

with needs_extra("mcp", "the MCP server"):
    import mcp_types as types
    from mcp.server.lowlevel.server import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared.message import SessionMessage


class Exchange(Response):
    """The response to one request, in a separate session so that any process may serve the next."""

    def __init__(self, server: Server[Any], body: bytes) -> None:
        super().__init__()
        self._server, self._request_body = server, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, whose body was read for checking, until the client is gone."""
        messages: asyncio.Queue[Message] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": self._request_body})
        manager = StreamableHTTPSessionManager(
            self._server,
            json_response=True,
            stateless=True,
            max_request_body_size=sys.maxsize,  # the application has already limited it
        )
        async with manager.run(), anyio.create_task_group() as tasks:

            async def watch() -> None:
                # The SDK doesn't watch: a call would hold its resources for as long as it may wait.
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await manager.handle_request(scope, messages.get, send)
            tasks.cancel_scope.cancel()


class JsonRpcRoute(APIRoute):
    """A route that refuses an unreadable body in the form of JSON-RPC."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except Problem as problem:
                if problem.status != HTTPStatus.BAD_REQUEST:
                    raise
                error = {"code": types.PARSE_ERROR, "message": problem.detail}
                return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)

        return handled


UNREADABLE = SessionMessage(
    types.JSONRPCError(
        jsonrpc="2.0",
        id=None,
        error=types.ErrorData(
            code=types.PARSE_ERROR,
            message="The line is not a JSON-RPC message. Nothing was done.",
        ),
    )
)


@asynccontextmanager
async def readable(incoming: Any, outgoing: Any) -> AsyncIterator[Any]:
    """Yield the readable messages; refuse others, which the SDK would leave unanswered."""
    sender, messages = anyio.create_memory_object_stream[Any](0)

    async def relay() -> None:
        async with sender:
            async for item in incoming:
                if isinstance(item, Exception):
                    await outgoing.send(UNREADABLE)
                else:
                    await sender.send(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay)
        yield messages
