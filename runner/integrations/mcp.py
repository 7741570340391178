"""Tools of MCP servers for agents, through the official SDK (extra `mcp`).

Each process has one session with a server, opened at first use on the process's loop and reopened
if it breaks. A broken call is not repeated: it may have had its effect, so the model gets an error
result. Servers over stdio end with the process, however it ends, because their input closes.

A server may ask before it answers (`InputRequiredResult` of MCP 2026-07-28). Each of its requests
becomes a question for people; the server's state is stored in the node's document, and the call
continues with it. A server may also answer with a task (extension `io.modelcontextprotocol/tasks`):
its id is stored, and the node continues when the task is due for a check, without a slot meanwhile.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, cast

from pydantic import Field, ValidationError

from runner import async_loop
from runner.agent.effects import ToolExecution, ToolOutcome
from runner.agent.machine.protocol import SubagentSaved, ToolAsked
from runner.agent.machine.state import SubagentState
from runner.agent.models.protocol import call_name
from runner.agent.tools import check_tool_schema, whole_schema
from runner.approvals import policies
from runner.approvals.policies import Policy, ToolApprovals
from runner.approvals.rules import Rule
from runner.errors import (
    DefinitionError,
    InterruptExpired,
    InterruptRaised,
    InterruptWithdrawn,
    RetryAfter,
    UsageError,
    needs_extra,
)
from runner.records.asking import Asker
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Interrupt
from runner.settings import DAY

with needs_extra("mcp", "tools of MCP servers"):
    import mcp_types as types
    from mcp import Client, MCPError, StdioServerParameters
    from mcp.client.extension import ClientExtension, ResultClaim
    from mcp_types import ElicitRequest, ElicitResult, ErrorData, InputRequiredResult

Reply = TypeVar("Reply")

LONGEST_PAUSE = 60.0
"""Maximum seconds until a call is sent again or a task checked, unless the server says later."""

SHORT_PAUSE = 1.0
"""Maximum seconds for which a call keeps its slot if the server wants to be called again."""

ASKS, WORKS = "asks", "works"
"""The statuses of a call in which the server asks, and of a call that continues as a task."""

BROKEN = {
    types.CONNECTION_CLOSED,
    types.REQUEST_TIMEOUT,
    types.INVALID_REQUEST,
    types.PARSE_ERROR,
}
"""Errors after which a session isn't used again, also because the server no longer knows it."""

REFUSED = {
    types.INVALID_PARAMS,
    types.METHOD_NOT_FOUND,
    types.MISSING_REQUIRED_CLIENT_CAPABILITY,
}
"""Errors of a task that would recur the next time."""

LINK_ANSWERS = {"type": "string", "enum": ["accept", "decline"]}
"""The answers to a request to open a link."""

START_WITHIN = 30.0
"""Seconds that a server may take to start and introduce itself."""

CLOSE_WITHIN = 5.0
"""Seconds that a server may take to end when the process ends."""


class StartedTask(types.Result):
    """The result of a call that continues as a task."""

    result_type: Literal["task"] = Field("task", alias="resultType")
    task_id: str = Field(alias="taskId")
    poll_interval: int | None = Field(None, alias="pollIntervalMs")


class TaskParams(types.RequestParams):
    """The parameters of the methods of tasks."""

    task_id: str = Field(alias="taskId")
    input_responses: JSONObject | None = Field(None, alias="inputResponses")


class TaskCall(types.Request[TaskParams, str]):
    """A request of the tasks extension."""

    name_param: ClassVar[str | None] = "taskId"


class TaskState(types.Result):
    """The state of a task; the replies to `tasks/update` and `tasks/cancel` have no status."""

    status: Literal["working", "input_required", "completed", "failed", "cancelled"] | None = (
        None
    )
    message: str = Field("", alias="statusMessage")
    poll_interval: int | None = Field(None, alias="pollIntervalMs")
    requests: types.InputRequests = Field({}, alias="inputRequests")
    result: types.CallToolResult | None = None
    error: ErrorData | None = None


class Tasks(ClientExtension):
    """Tells servers that calls may continue as tasks."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return the claim that takes the result of a task's call unchanged."""
        return [ResultClaim(result_type="task", model=StartedTask, resolve=_left_to_the_caller)]


async def _left_to_the_caller(task: StartedTask, context: object) -> types.CallToolResult:
    raise NotImplementedError(
        f"{task.task_id} is checked by the call that started it: {context}"
    )


class McpServer:
    """One MCP server; `server` is passed to the SDK's Client (stdio parameters, a URL …).

    `call_timeout` and `task_timeout` are in seconds; a call or task that takes longer gives the
    model an error result.
    """

    def __init__(
        self,
        server: StdioServerParameters | str,
        *,
        call_timeout: float = 60.0,
        task_timeout: float = 7 * DAY,
    ) -> None:
        """Keep the settings; the server starts at first use."""
        self._server, self._call_timeout = server, call_timeout
        self.task_timeout = task_timeout
        self._pid = 0
        self._client: Client | None = None
        self._done: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        atexit.register(self._end)

    def tools(
        self,
        only: Sequence[str] | None = None,
        approval: ToolApprovals = None,
    ) -> list[McpTool]:
        """List the server's tools, or those in `only`; for `approval`, see `mcp_tools`.

        Raises:
            DefinitionError: the server can't be started, or lacks one of the names.
        """
        gates = policies.by_tool(approval, "the tools of an MCP server")
        try:
            definitions = async_loop.run(self._listed())
        except Exception as error:
            raise DefinitionError(
                f"the MCP server {self._server!r} can't be used: {error!r}."
            ) from error
        names = sorted(tool.name for tool in definitions)
        gated_names = {*gates} if isinstance(gates, Mapping) else set()
        missing = ({*(only or ())} | gated_names) - {*names}
        if missing:
            raise DefinitionError(
                f"the MCP server has no tool {sorted(missing)}; it has {names}."
            )
        return [
            McpTool(self, tool, policies.of_tool(gates, tool.name))
            for tool in definitions
            if only is None or tool.name in only
        ]

    async def call(self, name: str, arguments: JSONObject, **round_: Any) -> JSONObject:
        """Call a tool and return its result as status and content; any fault is an error result.

        If the server asks, the status is "asks", with its `requests` by key and its `state`: call
        again with `state` and `responses`, the answers by key. If the call continues as a task, the
        status is "works".
        """
        try:
            # The session lives on the process's loop, and the caller may be on another loop.
            return await async_loop.in_thread(
                async_loop.run, self._called(name, arguments, **round_)
            )
        except Exception as error:  # noqa: BLE001 - any error is a result that the model reads
            return _failed(f"{type(error).__name__} - {error}")

    async def of_task(
        self, method: str, task_id: str, responses: JSONMapping | None = None
    ) -> TaskState:
        """Send `tasks/get`, `tasks/update` or `tasks/cancel`.

        Raises:
            Exception: from the SDK or the transport.
        """
        return await async_loop.in_thread(
            async_loop.run, self._of_task(method, task_id, responses)
        )

    async def _of_task(
        self, method: str, task_id: str, responses: JSONMapping | None
    ) -> TaskState:
        client = await self._session()
        request = TaskCall(
            method=method, params=TaskParams(taskId=task_id, inputResponses=responses)
        )
        sent = client.session.send_request(
            request, TaskState, request_read_timeout_seconds=self._call_timeout
        )
        return await self._guarded(client, sent)

    async def _listed(self) -> list[Any]:
        tools: list[Any] = []
        cursor: str | None = None
        while True:
            client = await self._session()
            page = await self._guarded(client, client.list_tools(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools

    async def _called(
        self,
        name: str,
        arguments: JSONObject,
        responses: Mapping[str, JSONMapping] | None = None,
        state: str | None = None,
    ) -> JSONObject:
        client = await self._session()
        answer = await self._guarded(
            client,
            client.session.call_tool(
                name,
                arguments,
                read_timeout_seconds=self._call_timeout,
                input_responses={
                    key: ElicitResult(**response) for key, response in (responses or {}).items()
                }
                or None,
                request_state=state,
                allow_input_required=True,
                allow_claimed=True,
            ),
        )
        if isinstance(answer, StartedTask):
            return {"status": WORKS, "task": answer.task_id, "poll": answer.poll_interval}
        if isinstance(answer, InputRequiredResult):
            requests = {
                key: _request(request) for key, request in (answer.input_requests or {}).items()
            }
            return {"status": ASKS, "requests": requests, "state": answer.request_state}
        return _result(cast("types.CallToolResult", answer))

    async def _guarded(self, client: Client, request: Coroutine[Any, Any, Reply]) -> Reply:
        """Send a request in a session; a broken session isn't used again.

        A session in which the server answered stays open, with the other calls waiting in it.
        """
        try:
            async with asyncio.timeout(self._call_timeout + CLOSE_WITHIN):
                return await request
        except (RuntimeError, ValueError):
            raise  # the answer doesn't fit
        except Exception as error:
            if not isinstance(error, MCPError) or error.code in BROKEN:
                await self._close(client)
            raise

    async def _session(self) -> Client:
        async with self._opening:
            if self._client is None or self._pid != os.getpid():
                await self._open()
            assert self._client is not None  # noqa: S101 - just opened
            return self._client

    async def _open(self) -> None:
        """Open a session in a new task, because it must end in the task that began it."""
        connection: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._pid = os.getpid()
        self._client = None
        self._done = asyncio.Event()
        self._task = asyncio.create_task(self._hold(connection, self._done))
        self._client = await connection

    async def _hold(
        self, connection: asyncio.Future[Client], close_event: asyncio.Event
    ) -> None:
        start = asyncio.timeout(START_WITHIN)
        try:
            client = Client(self._server, elicitation_callback=_refuse, extensions=[Tasks()])
            async with contextlib.AsyncExitStack() as stack:
                async with start:
                    await stack.enter_async_context(client)
                connection.set_result(client)
                await close_event.wait()
        except BaseException as error:  # noqa: BLE001 - raised where the session is awaited
            if not connection.done():
                # A cancelled start may end in any error.
                is_late = start.expired() or not isinstance(error, Exception)
                late = TimeoutError("the server has not introduced itself in time")
                connection.set_exception(late if is_late else error)

    async def _close(self, client: Client | None) -> None:
        """End a session, unless another call has ended it and the next may already be open."""
        if client is not self._client:
            return
        task = self._task
        close_event = self._done
        self._client = self._task = self._done = None
        if task is not None and close_event is not None:
            close_event.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(task, CLOSE_WITHIN)

    def _end(self) -> None:
        if self._pid == os.getpid() and self._client is not None:
            async_loop.run(self._close(self._client))


class McpTool:
    """One tool of an MCP server, callable by an agent."""

    tool_type = "mcp"

    def __init__(
        self, server: McpServer, definition: Any, approval: Rule | Policy | None = None
    ) -> None:
        """Read the `definition` listed by the server; people approve calls by `approval`."""
        self._server = server
        self._name = str(definition.name)
        self.tool_name = self._name
        check_tool_schema(self._name, definition.input_schema)
        self.tool_spec: JSONObject = {
            "name": self.tool_name,
            "description": definition.description or self.tool_name,
            "inputSchema": {"json": dict(definition.input_schema)},
        }
        properties = whole_schema(self).get("properties", {})
        self.approval = policies.checked(approval, f"tool {self.tool_name!r}", properties)

    def stream(
        self, tool_use: JSONObject, invocation_state: JSONObject, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Refuse: only this library's agents let people answer a server's questions.

        Raises:
            UsageError: always.
        """
        del tool_use, invocation_state, kwargs
        raise UsageError(f"{self.tool_name} of an MCP server is a tool of runner.Agent only.")

    async def run_in(self, execution: ToolExecution) -> ToolOutcome:
        """Call the server, or continue a call that has asked or become a task.

        Raises:
            RetryAfter: the server should be asked again at that time.
        """
        began = time.monotonic()
        past = execution.command.subagent
        document = {} if past is None else past.document
        try:
            while True:
                responses, open_questions = self._answers(execution, document)
                if open_questions:
                    return ToolAsked(
                        execution.id, open_questions, subagent=SubagentState(document, [])
                    )
                if "task" in document:
                    result = await self._look(execution, document, responses)
                else:
                    result = await self._call(execution, document, responses)
                if result["status"] not in {ASKS, WORKS}:
                    return execution.returned(result, time.monotonic() - began)
                document = result
        except (InterruptExpired, UsageError) as error:
            await self.abandon(document)
            return execution.failed(error, time.monotonic() - began)

    async def abandon(self, document: JSONMapping) -> None:
        """Tell the server that nobody waits for a call's task."""
        if "task" in document:
            with contextlib.suppress(Exception):
                await self._server.of_task("tasks/cancel", document["task"])

    async def _call(
        self, execution: ToolExecution, document: JSONObject, responses: JSONMapping
    ) -> JSONObject:
        """Call, or call again with the answers; return the result, or the document to continue."""
        going_on = {"responses": responses, "state": document["state"]} if document else {}
        arguments = dict(execution.command.use["input"])
        result = await self._server.call(self._name, arguments, **going_on)
        if result["status"] == WORKS:
            task = {**result, "round": 0, "requests": {}, "answered": [], "since": time.time()}
            await self._save(execution, task)
            raise self._later(task)
        if result["status"] == ASKS:
            result["round"] = document.get("round", 0) + 1
            if not result["requests"]:
                pause = pause_after(result["round"])
                if pause > SHORT_PAUSE:
                    await self._save(execution, result)
                    raise RetryAfter(pause, reason=f"{self._name} must be called again")
                await asyncio.sleep(pause)
                await execution.checkpointer.check()
        return result

    async def _look(
        self, execution: ToolExecution, task: JSONObject, responses: JSONMapping
    ) -> JSONObject:
        """Send answers to a task; return its result, or the document with its requests."""
        name = task["task"]
        if time.time() > task["since"] + self._server.task_timeout:
            raise UsageError(f"the task {name} didn't end in time and was cancelled.")
        if responses:
            await self._of_task("tasks/update", task, responses)
            task = {**task, "requests": {}, "answered": [*task["answered"], *responses]}
            await self._save(execution, task)
        state = await self._of_task("tasks/get", task)
        if state.status is None:
            raise UsageError("the reply to tasks/get can't be read: it has no status.")
        if state.status == "completed" and state.result is not None:
            return _result(state.result)
        if state.status in {"completed", "failed", "cancelled"}:
            why = state.error.message if state.error else state.message
            return _failed(f"the task {name} has {state.status}. {why}".strip())
        requests = {
            key: _request(request)
            for key, request in state.requests.items()
            if key not in task["answered"]
        }
        if not requests:
            raise self._later({**task, "poll": state.poll_interval or task["poll"]})
        return {**task, "requests": requests}

    async def _of_task(
        self, method: str, task: JSONObject, responses: JSONMapping | None = None
    ) -> TaskState:
        try:
            return await self._server.of_task(method, task["task"], responses)
        except Exception as error:
            if isinstance(error, MCPError) and error.code in REFUSED:
                raise UsageError(f"the server has refused {method}: {error}") from error
            if isinstance(error, ValidationError):
                raise UsageError(f"the reply to {method} can't be read: {error}") from error
            raise self._later(task, error) from error

    def _later(self, task: JSONMapping, error: Exception | None = None) -> RetryAfter:
        """Return when to check a task again: at the server's interval, or rarer for a long task."""
        rare = min(LONGEST_PAUSE, (time.time() - task["since"]) / 10)
        seconds = min(max((task["poll"] or 0) / 1000, rare, 0.1), DAY)
        why = f" ({error})" if error else ""
        return RetryAfter(seconds, reason=f"{self._name} goes on as task {task['task']}{why}")

    async def _save(self, execution: ToolExecution, document: JSONObject) -> None:
        await execution.effects.post(SubagentSaved(execution.id, SubagentState(document, [])))

    def _answers(
        self, execution: ToolExecution, document: JSONMapping
    ) -> tuple[JSONObject, list[Interrupt]]:
        """Return the answers to the server's requests in this round, and the open questions.

        Raises:
            UsageError: a question can't be asked as the server wants it.
            InterruptExpired: a question has expired.
        """
        responses: JSONObject = {}
        open_questions: list[Interrupt] = []
        call = call_name(execution.id, 1)
        for key, request in document.get("requests", {}).items():
            asker = Asker(
                execution.checkpointer.address,
                f"mcp:{call}:{document['round']}:{key}",
                execution.command.attempt,
                execution.questions,
            )
            reason = {"message": request["message"], "tool": self.tool_name}
            if "url" in request:
                schema, reason["link"] = LINK_ANSWERS, request["url"]
            else:
                schema = request["requestedSchema"]
            try:
                answer, _ = asker.decide(self.tool_name, reason, response_schema=schema)
            except InterruptRaised:
                open_questions += asker.asked
            except InterruptWithdrawn:
                responses[key] = {"action": "decline"}
            else:
                responses[key] = (
                    {"action": answer}
                    if "url" in request
                    else {"action": "accept", "content": answer}
                )
        return responses, open_questions


def mcp_tools(
    server: StdioServerParameters | str,
    only: Sequence[str] | None = None,
    *,
    call_timeout: float = 60.0,
    task_timeout: float = 7 * DAY,
    approval: ToolApprovals = None,
) -> list[McpTool]:
    """List MCP server tools for an agent: `Agent(tools=mcp_tools(StdioServerParameters(...)))`.

    `approval` is as for `@tool`, for every tool or by name: `{"refund": Rule(...)}`.

    Raises:
        DefinitionError: the server can't be started, or lacks one of the names.
    """
    mcp_server = McpServer(server, call_timeout=call_timeout, task_timeout=task_timeout)
    return mcp_server.tools(only, approval)


def pause_after(number: int) -> float:
    """Return the seconds to wait after `number` calls in which a server only asked for another."""
    return min(LONGEST_PAUSE, 0.05 * 2.0 ** min(number, 16))


def _result(answer: types.CallToolResult) -> JSONObject:
    status = "error" if answer.is_error else "success"
    return {"status": status, "content": [_content(item) for item in answer.content]}


def _failed(text: str) -> JSONObject:
    return {"status": "error", "content": [{"text": f"Error: {text}"}]}


def _content(item: Any) -> JSONObject:
    """Convert a part of an MCP result to a content block for models."""
    if item.type == "text":
        return {"text": item.text}
    if item.type == "image":
        kind = item.mime_type.partition("/")[2]
        return {"image": {"format": kind, "source": {"bytes": base64.b64decode(item.data)}}}
    return {"json": item.model_dump(mode="json", by_alias=True)}


def _request(request: Any) -> JSONObject:
    """Return a server's request as JSON data.

    Raises:
        UsageError: the request isn't for people, or lacks the flat form of an elicitation.
    """
    if not isinstance(request, ElicitRequest):
        raise UsageError(
            f"the server sent {request.method}, and only elicitation/create is supported; the call was ended."
        )
    document: JSONObject = request.params.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    if not is_flat(document.get("requestedSchema", {"properties": {}})):
        raise UsageError(
            "the server's request lacks the form of an elicitation, an object of texts, numbers, booleans "
            "and choices; the call was ended."
        )
    return document


OBJECT = {
    "$schema",
    "type",
    "title",
    "description",
    "properties",
    "required",
    "additionalProperties",
}
FIELD = {
    *("type", "title", "description", "default", "format", "pattern", "minLength", "maxLength"),
    *("minimum", "maximum", "minItems", "maxItems", "enum", "enumNames", "const"),
}
CHOICES = ("oneOf", "anyOf", "items")


def is_flat(schema: Any) -> bool:
    """Return whether a schema has an elicitation's form: an object without inner structure."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return (
        isinstance(properties, Mapping)
        and schema.keys() <= OBJECT
        and schema.get("type", "object") == "object"
        and isinstance(schema.get("additionalProperties", True), bool)
        and all(map(_is_field, properties.values()))
    )


def _is_field(schema: Any, choices: Sequence[str] = CHOICES) -> bool:
    if not isinstance(schema, Mapping) or schema.get("type") == "object":
        return False
    entries = [schema[name] for name in choices if name in schema]
    inner = [
        item for entry in entries for item in (entry if isinstance(entry, list) else [entry])
    ]
    return schema.keys() <= FIELD.union(choices) and all(
        _is_field(item, choices[:-1]) for item in inner
    )


async def _refuse(context: Any, params: Any) -> ErrorData:
    """Refuse a request in the middle of a call, which MCP 2025-11-25 servers send."""
    del context, params
    return ErrorData(
        code=types.INVALID_REQUEST,
        message="this client asks people only through input_required results (MCP 2026-07-28).",
    )
