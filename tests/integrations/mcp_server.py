"""A real MCP server over stdio, for tests."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    ListRootsRequest,
    RequestParams,
)
from pydantic import Field

DAY = {
    "type": "object",
    "properties": {"day": {"type": "string", "enum": ["Monday", "Friday"]}},
    "required": ["day"],
}


class TaskParams(RequestParams):
    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] = Field({}, alias="inputResponses")


class Tasks(Extension):
    """Makes each call of `cook` a task in a file, which outlives the process."""

    identifier = "io.modelcontextprotocol/tasks"

    def methods(self):
        handlers = {"get": self.get, "update": self.update, "cancel": self.cancel}
        return [
            MethodBinding(f"tasks/{name}", TaskParams, handler)
            for name, handler in handlers.items()
        ]

    async def intercept_tool_call(self, params, ctx, call_next):
        if params.name != "cook":
            return await call_next(ctx)
        dish = params.arguments["dish"]
        path = Path(os.environ["MCP_TASKS"], f"{dish}-{uuid.uuid4().hex}.json")
        self.write(path, {"dish": dish, "looks": 0, "status": "working"})
        interval = 2_000 if dish == "nothing" else 100
        return {"resultType": "task", "taskId": str(path), "pollIntervalMs": interval}

    def write(self, path, task):
        new = path.with_suffix(".new")
        new.write_text(json.dumps(task))
        new.replace(path)  # tests read it at any time

    def read(self, params):
        path = Path(params.task_id)
        if not path.exists():
            raise MCPError(INVALID_PARAMS, "no such task")
        return path, json.loads(path.read_text())

    async def get(self, ctx, params):
        path, task = self.read(params)
        task["looks"] += 1
        self.write(path, task)
        reply = {"resultType": "complete", "taskId": str(path), "status": task["status"]}
        match task:
            case {"status": "cancelled"} | {"looks": 1}:
                return reply
            case {"dish": "nothing"} if not path.with_suffix(".done").exists():
                return reply
            case {"looks": 2}:
                raise MCPError(INTERNAL_ERROR, "out of gas")
            case {"dish": "fish"} if "answers" not in task:
                asked = {"day": form("Which day?").model_dump(by_alias=True, mode="json")}
                return {**reply, "status": "input_required", "inputRequests": asked}
            case {"dish": "stones"}:
                error = {"code": INTERNAL_ERROR, "message": "too hard"}
                return {**reply, "status": "failed", "error": error}
            case {"dish": "ash"}:
                return {**reply, "status": "burnt"}
            case {"dish": "smoke"}:
                return {"resultType": "complete", "taskId": str(path)}
            case {"dish": "mash"}:
                return {**reply, "status": "completed", "result": {"content": "mash"}}
        text = " ".join([task["dish"], *map(json.dumps, task.get("answers", []))])
        result = {"content": [{"type": "text", "text": text}]}
        return {**reply, "status": "completed", "result": result}

    async def update(self, ctx, params):
        path, task = self.read(params)
        task.setdefault("answers", []).append(params.input_responses)
        self.write(path, task)
        return {"resultType": "complete"}

    async def cancel(self, ctx, params):
        path, task = self.read(params)
        self.write(path, {**task, "status": "cancelled"})
        return {"resultType": "complete"}


# With a key of its own each process would refuse what another one has asked.
server = MCPServer(
    "tests",
    request_state_security=RequestStateSecurity(keys=["k" * 32]),
    extensions=[Tasks()],
)


@server.tool()
def cook(dish: str) -> str:
    """Cook: a task that asks for the day of fish, fails with stones, and ends nothing at a sign."""
    raise AssertionError("it is a task")


@server.tool()
def broken() -> str:
    """End in an error of the protocol."""
    raise MCPError(INTERNAL_ERROR, "out of order")


@server.tool()
def forget() -> str:
    """Answer as a server that does not know the session any more."""
    raise MCPError(INVALID_REQUEST, "which session?")


begun, released = asyncio.Event(), asyncio.Event()


@server.tool()
async def hang() -> str:
    """Answer the same, when a test in this process says so."""
    begun.set()
    await released.wait()
    return forget()


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


def form(message, schema=DAY):
    params = ElicitRequestFormParams(message=message, requested_schema=schema)
    return ElicitRequest(params=params)


@server.tool()
def interrogate() -> str | InputRequiredResult:
    """Ask by a schema that is no form: it takes twice as long for each of its 40 levels."""
    levels = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {**levels, "d40": {"type": "string"}},
    }
    return InputRequiredResult(input_requests={"a": form("Name?", schema)})


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
