"""The gate's transports: standard streams to the client; a process or a URL as the server.

A transport yields each message, and None for an unreadable one. A process needs no MCP SDK, whose
import takes longer than the rest of the gate's start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from runner.doors.gated_call import own_output
from runner.errors import RunnerError, UsageError, needs_extra
from runner.records import codec
from runner.records.codec import JSON, JSONObject

END_WITHIN = 2.0
"""Seconds that a server may take to end when its input is closed, and again after it was terminated."""


class Transport(Protocol):
    """Sends messages to a client or a server, and receives its own."""

    def messages(self) -> AsyncIterator[JSONObject | None]:
        """Yield each message, None in place of a line that isn't one."""

    async def send(self, message: JSONObject, headers: Mapping[str, str]) -> None:
        """Send a message; the headers are for HTTP."""


class Lines:
    """Messages as lines of two pipes, each with a thread."""

    def __init__(self, source: IO[bytes], target: int, read: Callable[[bytes], JSON]) -> None:
        """Parse the lines of `source` by `read`."""
        self._source = source
        self._target = target
        self._parse = read
        self._writer = ThreadPoolExecutor(1)

    async def messages(self) -> AsyncIterator[JSONObject | None]:
        """Yield each message, None in place of a line that isn't one."""
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes](1)

        def give(line: bytes) -> None:
            asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

        def read() -> None:
            with suppress(RuntimeError, CancelledError):  # the loop has ended
                with suppress(OSError):
                    while line := self._source.readline():
                        give(line)
                give(b"")

        threading.Thread(target=read, daemon=True).start()
        while line := await lines.get():
            message = None
            with suppress(ValueError, RecursionError, RunnerError):
                message = self._parse(line)
            yield message if _is_message(message) else None

    async def send(self, message: JSONObject, headers: Mapping[str, str]) -> None:
        """Write a message as a line."""
        del headers
        line = json.dumps(message).encode() + b"\n"
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write, line)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._target, rest) :]


def _is_message(value: JSON) -> bool:
    return (
        isinstance(value, dict)
        and (value.get("id") is None or type(value["id"]) in {int, str})
        and isinstance(value.get("method", ""), str)
        and all(
            isinstance(value.get(name) or {}, dict) for name in ("params", "result", "error")
        )
    )


def standard_streams() -> Lines:
    """Return the transport to the client that started this process; its JSON is read strictly."""
    return Lines(sys.stdin.buffer, own_output(), codec.load_json)


@asynccontextmanager
async def process(command: Sequence[str]) -> AsyncIterator[Lines]:
    """Start a server, which gets no `RUNNER_` variables; at the end, stop it.

    Raises:
        UsageError: it can't be started.
    """
    server = _start(command)
    try:
        yield Lines(server.stdout, server.stdin.fileno(), json.loads)
    finally:
        server.stdin.close()
        for stop in (0, signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(server.pid, stop)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(server.wait, END_WITHIN)
                break


def _start(command: Sequence[str]) -> Any:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=env, start_new_session=True
        )
    except OSError as error:
        raise UsageError(f"The server can't be started: {error}.") from error


@asynccontextmanager
async def at_url(url: str) -> AsyncIterator[Transport]:
    """Connect to a server over HTTP."""
    with needs_extra("mcp", "a server at a URL"):
        from mcp.client.streamable_http import (  # noqa: PLC0415 - slow, and only for URLs
            streamable_http_client,
        )
        from mcp.shared.message import (  # noqa: PLC0415 - as above
            ClientMessageMetadata,
            SessionMessage,
        )
        from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415 - as above

    def wrapped(message: JSONObject, headers: Mapping[str, str]) -> SessionMessage:
        return SessionMessage(
            jsonrpc_message_adapter.validate_python(message),
            ClientMessageMetadata(headers={**headers}),
        )

    async with streamable_http_client(url) as (incoming, outgoing):
        yield _Url(incoming, outgoing, wrapped)


@dataclass
class _Url:
    _incoming: Any
    _outgoing: Any
    _wrapped: Callable[..., Any]

    async def messages(self) -> AsyncIterator[JSONObject | None]:
        async for item in self._incoming:
            is_lost = isinstance(item, Exception)
            yield (
                None
                if is_lost
                else item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
            )

    async def send(self, message: JSONObject, headers: Mapping[str, str]) -> None:
        await self._outgoing.send(self._wrapped(message, headers))
