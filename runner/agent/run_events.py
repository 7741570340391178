"""Writes an agent's stream events into the events of its run, for people watching the run.

Each event is a write to the store, beside the agent's work. Text is written every quarter of a
second; a reply that is complete before the first piece is due isn't written, because the node's
output holds it. A tool's end is always written, its start only if it runs for longer than that.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from runner import async_loop
from runner.agent.effects import SubagentEvent
from runner.errors import RunnerError
from runner.records.codec import JSONMapping, JSONObject
from runner.records.executors import Visit
from runner.records.run import EventKind

PIECE = 0.25  # seconds


class RunEventWriter:
    """Turns stream events of one execution into events of its run, in order."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._text: list[str] = []
        self._any_written = False
        self._since = time.monotonic()
        self._queue: asyncio.Queue[tuple[EventKind, JSONMapping] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._starts: dict[str, asyncio.TimerHandle] = {}

    def emit(self, event: JSONObject) -> None:
        """Handle a stream event; most aren't meant for people watching the run."""
        if "event" in event and "messageStart" in event["event"]:
            self._text = []
            self._any_written = False
            self._since = time.monotonic()
        elif "data" in event:
            self._text.append(event["data"])
            if time.monotonic() - self._since >= PIECE:
                self._flush()
        elif event.get("message", {}).get("role") == "assistant" and self._any_written:
            self._flush()
        elif "event_loop_throttled_delay" in event:
            self._write({"throttled": event["event_loop_throttled_delay"]})
        elif "type" in event:
            self._tool_event(event, "", "")

    def _tool_event(self, event: JSONObject, names: str, ids: str) -> None:
        """Write a tool's event; `names` and `ids` belong to the subagents around it."""
        use = (
            event["tool_use"] if "tool_use" in event else event["tool_stream_event"]["tool_use"]
        )
        path = names + use["name"]
        key = ids + use["toolUseId"]
        match event["type"]:
            case "tool_start":
                event_data = {"tool": path, "id": use["toolUseId"], "status": "started"}
                self._starts[key] = asyncio.get_running_loop().call_later(
                    PIECE, self._write, event_data
                )
            case "tool_end":
                self._starts.pop(key).cancel()
                self._write({"tool": path, "id": use["toolUseId"], "status": event["status"]})
            case "tool_progress":
                progress = {"fraction": event["fraction"], "note": event["note"], "tool": path}
                self._write(progress, EventKind.PROGRESS)
            case "tool_stream":
                data = event["tool_stream_event"]["data"]
                if isinstance(data, SubagentEvent) and "type" in data:
                    self._tool_event(data, f"{path}/", f"{key}/")

    def _flush(self) -> None:
        text = "".join(self._text)
        self._text = []
        self._since = time.monotonic()
        self._any_written = True
        if text:
            self._write({"text": text})

    def _write(self, data: JSONMapping, kind: EventKind = EventKind.AGENT) -> None:
        self._queue.put_nowait((kind, data))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        # A store outage loses some events for watchers, but mustn't fail the node.
        with suppress(RunnerError):
            while (item := await self._queue.get()) is not None:
                await async_loop.in_thread(self._visit.emit, *item)

    async def end(self) -> None:
        """Write the remaining events and return when all are written."""
        for start in self._starts.values():
            start.cancel()
        if self._task is not None:
            self._queue.put_nowait(None)
            await self._task
