"""Tells those who watch a run what an agent says while it works.

Each event is a write to the store, beside the work and not in its way. Text goes out in pieces of a
quarter of a second, and a reply that is complete before the first piece is due isn't told at all: the
node's output holds it. So with tools: the end of each is told, its start only when it runs for longer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runner import loops
from runner.agent.tool_call import InnerEvent
from runner.errors import RunnerError
from runner.events import EventKind
from runner.outcomes import Visit

PIECE = 0.25  # seconds


class Broadcast:
    """Turns stream events of one execution into events of its run, in order."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._text: list[str] = []
        self._told = False
        self._since = time.monotonic()
        self._queue: asyncio.Queue[tuple[EventKind, Mapping[str, Any]] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._starts: dict[str, asyncio.TimerHandle] = {}

    def emit(self, event: dict[str, Any]) -> None:
        """Take in a stream event; most are not for those who watch a run."""
        if "event" in event and "messageStart" in event["event"]:
            self._text, self._told, self._since = [], False, time.monotonic()
        elif "data" in event:
            self._text.append(event["data"])
            if time.monotonic() - self._since >= PIECE:
                self._flush()
        elif event.get("message", {}).get("role") == "assistant" and self._told:
            self._flush()
        elif "event_loop_throttled_delay" in event:
            self._send({"throttled": event["event_loop_throttled_delay"]})
        elif "type" in event:
            self._of_tool(event, "", "")

    def _of_tool(self, event: dict[str, Any], within: str, inside: str) -> None:
        """Tell of a tool; of an agent that serves as one, `within` are the names and `inside` the ids."""
        use = event["tool_use"] if "tool_use" in event else event["tool_stream_event"]["tool_use"]
        path, key = within + use["name"], inside + use["toolUseId"]
        match event["type"]:
            case "tool_start":
                told = {"tool": path, "id": use["toolUseId"], "status": "started"}
                self._starts[key] = asyncio.get_running_loop().call_later(PIECE, self._send, told)
            case "tool_end":
                self._starts.pop(key).cancel()
                self._send({"tool": path, "id": use["toolUseId"], "status": event["status"]})
            case "tool_progress":
                said = {"fraction": event["fraction"], "note": event["note"], "tool": path}
                self._send(said, EventKind.PROGRESS)
            case "tool_stream":
                inner = event["tool_stream_event"]["data"]
                if isinstance(inner, InnerEvent) and "type" in inner:
                    self._of_tool(inner, f"{path}/", f"{key}/")

    def _flush(self) -> None:
        text, self._text = "".join(self._text), []
        self._since = time.monotonic()
        self._told = True
        if text:
            self._send({"text": text})

    def _send(self, data: Mapping[str, Any], kind: EventKind = EventKind.AGENT) -> None:
        self._queue.put_nowait((kind, data))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        # Whoever watches sees less when the store is away; that is no reason to fail the node.
        with suppress(RunnerError):
            while (told := await self._queue.get()) is not None:
                await loops.in_thread(self._visit.emit, *told)

    async def end(self) -> None:
        """Return when everything was told."""
        for start in self._starts.values():
            start.cancel()
        if self._task is not None:
            self._queue.put_nowait(None)
            await self._task
