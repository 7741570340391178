"""Tells those who watch a run what an agent says while it works.

Each event is a write to the store, so text goes out in pieces of a quarter of a second, and a reply
that is complete before the first piece is due isn't told at all: the node's output holds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runner import loops
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
        self._queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

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

    def _flush(self) -> None:
        text, self._text = "".join(self._text), []
        self._since = time.monotonic()
        self._told = True
        if text:
            self._send({"text": text})

    def _send(self, data: Mapping[str, Any]) -> None:
        self._queue.put_nowait(data)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        # Whoever watches sees less when the store is away; that is no reason to fail the node.
        with suppress(RunnerError):
            while (data := await self._queue.get()) is not None:
                await loops.in_thread(self._visit.emit, EventKind.AGENT, data)

    async def end(self) -> None:
        """Return when everything was told."""
        if self._task is not None:
            self._queue.put_nowait(None)
            await self._task
