"""Bounds on requests that only read, so that decisions and probes never wait behind pages.

Pages are most of the work of a server: unbounded, the pages of a full inbox take all threads, and the
processor that decisions need.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from weakref import WeakKeyDictionary

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.problems import RETRY_AFTER, Problem, prefix, respond

EVENTS = "text/event-stream"

SLOTS = {"read": 3, "question": 2, "ready": 1}
"""Requests of a kind that a process serves at the same time; the others wait in order.

One question costs two thirds of a list, and a person who decides waits for it: so it needs its own slots.
"""

QUESTIONS = ("/q/", "/v1/questions/")
"""Paths that show one question."""

MOST_WAITING = 300
"""Maximum requests of a kind that wait; more are refused."""


FREE = ("/healthz", "/static/")
"""Paths that cost next to nothing."""


def kind_of(request: Request) -> str:
    """Return the kind of a request; "" if it is cheap, changes something, is a stream or waits for a run."""
    path = request.url.path.removeprefix(prefix(request))
    if request.method not in {"GET", "HEAD"} or path.startswith(FREE):
        return ""
    if path == "/readyz":
        return "ready"
    if "wait" in request.query_params or EVENTS in request.headers.get("accept", ""):
        return ""
    return "question" if path.startswith(QUESTIONS) else "read"


class Gate(asyncio.Semaphore):
    """The slots of a kind, in one event loop."""

    waiting = 0


class Slots:
    """Middleware that gives each request a slot of its kind, which is free again when the response begins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Gate]] = (
            WeakKeyDictionary()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        kind = kind_of(Request(scope)) if scope["type"] == "http" else ""
        if not kind:
            await self._app(scope, receive, send)
            return
        gates = self._gates.setdefault(asyncio.get_running_loop(), {})
        gate = gates.setdefault(kind, Gate(SLOTS[kind]))
        if gate.waiting >= MOST_WAITING:
            detail = "Too many people read at this moment. Nothing was done; try again."
            problem = Problem(503, detail, headers={"Retry-After": str(RETRY_AFTER)})
            await respond(Request(scope), problem)(scope, receive, send)
            return
        gate.waiting += 1
        try:
            await gate.acquire()
        finally:
            gate.waiting -= 1
        with ExitStack() as slot:
            slot.callback(gate.release)

            async def released_first(message: Message) -> None:
                if message["type"] == "http.response.start":
                    slot.close()
                await send(message)

            await self._app(scope, receive, released_first)
