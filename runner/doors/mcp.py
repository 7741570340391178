"""The MCP server: to MCP clients, graphs are tools, runs are tasks, open questions elicitations.

It stores nothing. A task's id is its run's id. An elicitation's key contains the question's id and
the shown digest, so that an answer through any process counts for exactly that. Routes of the API
do the work, with their permissions. `auth` finds the caller from the request; over stdio it is the
user of the process.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import json
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from pydantic import Field, ValidationError

from runner.approvals.rules import Principal
from runner.definition.model import Definition
from runner.doors import flat_forms
from runner.doors.flat_forms import decision_of
from runner.doors.mcp_operations import OPERATIONS, check, operate
from runner.doors.questions import (
    GOOD,
    MOST_ASKED,
    failure,
    message,
    open_questions,
    page_message,
    page_of,
    permit,
)
from runner.errors import DefinitionError, RunnerError, UsageError, needs_extra
from runner.execution.functions import result_schema, task_schema
from runner.immutable import immutable
from runner.operations.questions import QuestionView
from runner.operations.views import RunView, read_run
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Decision, Receipt
from runner.records.json_form import pretty, stamp
from runner.records.run import Status
from runner.records.shown_text import shown
from runner.settings import DAY, Settings

with needs_extra("server", "the MCP server"):
    import anyio
    from fastapi import APIRouter, Request, Response
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse
    from fastapi.routing import APIRoute
    from starlette.types import Message, Receive, Scope, Send

    from runner.server.access import GRANTS, Known, Permission, Person
    from runner.server.answers import seen_by
    from runner.server.api import runs
    from runner.server.browser import origin_of
    from runner.server.deciding import cancelled_by, decide, start_for
    from runner.server.problems import Problem, prefix, problem_of
    from runner.server.services import Services

with needs_extra("mcp", "the MCP server"):
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server
    from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared.exceptions import MCPError
    from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
    from mcp.shared.message import SessionMessage
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

log = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]

NAME = "celery-graph-runner"

TASKS = "io.modelcontextprotocol/tasks"

WAIT = 25.0
"""Seconds for which a call waits for its run; proxies and clients end longer calls."""

STATE_AGE = 7 * DAY
"""Seconds that a client has to continue a call after it was asked something."""

PREFIX = "graph_"

REPEAT_KEY = f"{NAME}/idempotency-key"
"""The key in `_meta` that makes a repeated call, as after a lost response, start only one run."""

ENDS = {
    Status.COMPLETED: "completed",
    Status.FAILED: "completed",
    Status.CANCELLED: "cancelled",
}
"""The status of a task whose run has ended: in MCP a failed run has a result, which is an error."""


class TaskRequest(types.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str = Field(alias="taskId")


class TaskUpdate(TaskRequest):
    """The parameters of `tasks/update`."""

    input_responses: JSONObject = Field(alias="inputResponses")


class Door:
    """The MCP server of an application, or of a process over stdio with `person` as the caller."""

    def __init__(self, services: Services, person: Person | None = None) -> None:
        """Create the server; raise `UsageError` if a setting can't be used."""
        self._services, self._person = services, person
        self._graphs = services.settings.mcp_graphs
        self._operations = {
            name: operation
            for name, operation in OPERATIONS.items()
            if services.settings.mcp_write or not operation.writes
        }
        self.server = self._make_server()

    def _make_server(self) -> Server[Any]:
        server: Server[Any] = Server(
            NAME,
            version=version(NAME),
            instructions="Each graph_ tool starts a run. A run may wait for people for days; call the same "
            "tool again to start another one, runs_show to see a run's state.",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        server.extensions[TASKS] = {}
        for name, params, handler in (
            ("tasks/get", TaskRequest, self._get_task),
            ("tasks/update", TaskUpdate, self._update_task),
            ("tasks/cancel", TaskRequest, self._cancel_task),
        ):
            server.add_request_handler(name, params, self._of_tasks(handler))
        security = RequestStateSecurity(
            keys=keys_of(self._services.settings),
            ttl=STATE_AGE,
            bind_principal=lambda ctx: self._caller(ctx).person.principal.key,
        )
        server.middleware.append(RequestStateBoundary(security, default_audience=NAME))
        return server

    def _caller(self, ctx: Context) -> Caller:
        request: Any = ctx.request
        address = self._services.settings.server_url
        if request is not None:
            address = origin_of(request) + prefix(request)
        person: Person = self._person or request.state.person
        capabilities = ctx.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        return Caller(
            person,
            address,
            forms=elicitation is not None
            and (elicitation.form is not None or elicitation.url is None),
            links=elicitation is not None and elicitation.url is not None,
        )

    # Tools

    async def _list_tools(
        self, ctx: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return await run_in_threadpool(self._tools, self._caller(ctx).person)

    def _tools(self, person: Person) -> types.ListToolsResult:
        may_call = person.within  # roles of one graph count for its tools
        tools = [
            types.Tool(
                name=PREFIX + graph,
                description=f"Run the graph {graph}. People may be asked before it ends.",
                input_schema=self._task_form(graph)[0],
                output_schema=result_form(self._definition(graph))
                if may_call(graph).may("read")
                else None,
                annotations=types.ToolAnnotations(read_only_hint=False),
            )
            for graph in self._graphs
            if may_call(graph).may("operate")
        ]
        granted = [may_call(graph) for graph in ("", *person.graphs)]
        tools += [
            types.Tool(
                name=name,
                description=operation.description,
                input_schema=operation.form,
                annotations=types.ToolAnnotations(
                    read_only_hint=not operation.writes, destructive_hint=operation.writes
                ),
            )
            for name, operation in self._operations.items()
            if any(role.may(operation.permission) for role in granted)
        ]
        return types.ListToolsResult(tools=tools)

    def _definition(self, graph: str) -> Definition | None:
        try:
            plan = self._services.plan(graph)
        except DefinitionError as error:
            log.warning("mcp.graph: %s The tool %s%s takes any task.", error, PREFIX, graph)
            return None
        return plan.definition if plan else None

    def _task_form(self, graph: str) -> tuple[JSONObject, bool]:
        """Return the schema of a tool's arguments, and whether the task is in one field of them."""
        definition = self._definition(graph)
        schema = definition and task_schema(definition)
        task = dict(schema or {"description": "what to do, as text or JSON"})
        if task.get("type") == "object":
            return task, False
        return {
            "type": "object",
            "properties": {"task": task},
            "required": ["task"],
            "additionalProperties": False,
            "$defs": task.pop("$defs", {}),
        }, True

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        caller = self._caller(ctx)
        arguments = params.arguments or {}
        graph = params.name.removeprefix(PREFIX)
        is_graph = params.name.startswith(PREFIX) and graph in self._graphs
        if not (is_graph or params.name in self._operations):
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r:.80}.")
        try:
            if is_graph:
                return await self._run_graph(ctx, params, caller, graph)
            operation = self._operations[params.name]
            value = await run_in_threadpool(
                operate, self._services, caller.person, operation, arguments
            )
            return complete(value)
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - any error is a result that the model reads
            return failed(problem_of(error).detail)

    async def _run_graph(
        self, ctx: Context, params: types.CallToolRequestParams, caller: Caller, graph: str
    ) -> Any:
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        is_task = params.request_state is None and is_modern and _has_tasks(ctx)
        # Refuse before anything starts: a client that got no run would start another one.
        leave = self._services.hub.take_seats(caller.person, not is_task)
        try:
            if params.request_state is None:
                run_id = await run_in_threadpool(
                    self._start, caller, graph, params.arguments or {}, params.meta or {}
                )
            else:
                run_id = json.loads(params.request_state)["run"]
            try:
                if is_task:
                    view = await run_in_threadpool(read_run, self._services.store, run_id)
                    return {"resultType": "task", **task_head(view), "status": "working"}
                receipts = await run_in_threadpool(
                    self._answer, caller, run_id, _responses(params.input_responses)
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(WAIT):
                        await runs.settled(self._services, run_id)
                return await run_in_threadpool(
                    self._outcome, caller, run_id, receipts, is_modern=is_modern
                )
            except RunnerError as error:
                detail = problem_of(error).detail
                return failed(f"Run {run_id} was started and won't be started again. {detail}")
        finally:
            leave()

    def _start(
        self, caller: Caller, graph: str, arguments: JSONMapping, meta: JSONMapping
    ) -> str:
        person = permit(caller.person, "operate", graph)
        form, is_field = self._task_form(graph)
        check(form, arguments)
        task = arguments["task"] if is_field else dict(arguments)
        key = meta.get(REPEAT_KEY)
        if key is not None:  # the key counts only for this call by this caller
            text = json.dumps([person.principal.key, graph, task, key], sort_keys=True)
            key = f"mcp:{hashlib.sha256(text.encode()).hexdigest()}"
        return start_for(self._services, person, graph, task, key=key).id

    def _outcome(
        self, caller: Caller, run_id: str, receipts: Mapping[str, Receipt], *, is_modern: bool
    ) -> Any:
        """Return a run's result, its questions, or its state."""
        view, asked, note = self._view(caller, run_id)
        if Status(view.status) in ENDS:
            return result(view)
        if is_modern and (caller.forms or caller.links) and (asked or not note):
            requests = {key: item.request for key, item in asked.items()}
            for key in requests.keys() & receipts.keys():
                message = f"Not accepted: {receipts[key].detail}\n\n{requests[key]['message']}"
                requests[key] = {**requests[key], "message": message}
            return {
                "resultType": "input_required",
                "inputRequests": {key: request_of(item) for key, item in requests.items()},
                "requestState": json.dumps({"run": run_id}),
            }
        text = f"Run {run_id} is {view.status}. {note}".strip()
        return complete({"run_id": run_id, "status": view.status}, text)

    # Questions

    def _view(self, caller: Caller, run_id: str) -> tuple[RunView, dict[str, Elicitation], str]:
        """Read a run, the caller's elicitations by key, and a text about other reasons to wait."""
        services = self._services
        person = permit(caller.person, "see", self._services.graph_of(run_id))
        view = seen_by(person, read_run(services.store, run_id))
        asked: dict[str, Elicitation] = {}
        notes = [text for text in (view.reason, view.frozen) if text]
        for question, may_decide in open_questions(services, person, view):
            item = elicitation_of(caller, question) if may_decide else None
            if item is None or len(asked) >= MOST_ASKED:
                page = caller.page(question.id) or f"runner interrupts show {question.id}"
                title = shown(seen_by(person, question).title)
                notes.append(f"waits for an answer to {title:.200}: {page}")
            else:
                asked[f"{question.id}#{question.digest}"] = item
        return view, asked, "; ".join(notes)

    def _answer(
        self, caller: Caller, run_id: str, responses: JSONMapping
    ) -> dict[str, Receipt]:
        """Count the answers to current elicitations as shown, and return receipts of refused ones.

        Other answers are ignored.
        """
        if not responses:
            return {}
        _, asked, _ = self._view(caller, run_id)
        person = permit(caller.person, "see", self._services.graph_of(run_id))
        receipts = {}
        for key in asked.keys() & responses.keys():
            try:
                response = types.ElicitResult.model_validate(responses[key])
            except ValidationError as error:
                raise MCPError(
                    types.INVALID_PARAMS, f"{key!r:.80}: not an ElicitResult."
                ) from error
            decision = asked[key].decision(response)
            if decision is not None:
                receipts[key] = (
                    decision
                    if isinstance(decision, Receipt)
                    else decide(self._services, person, decision)
                )
        return {key: receipt for key, receipt in receipts.items() if receipt.status not in GOOD}

    # Tasks

    def _of_tasks(
        self, handler: Callable[[Caller, Any], Any]
    ) -> Callable[[Context, Any], Awaitable[Any]]:
        """Make a method's handler, for clients with the extension and its protocol version."""

        async def handle(ctx: Context, params: Any) -> Any:
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
            named = ctx.request and decode_header_value(
                ctx.request.headers.get(MCP_NAME_HEADER)
            )
            if named not in {None, params.task_id}:  # for other methods the SDK checks this
                detail = f"the header {MCP_NAME_HEADER} names another task."
                raise MCPError(types.HEADER_MISMATCH, detail)
            if not _has_tasks(ctx):
                raise MCPError(
                    types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                    f"{ctx.method} needs a client with the extension {TASKS}.",
                    {"requiredCapabilities": {"extensions": {TASKS: {}}}},
                )
            try:
                return await run_in_threadpool(handler, self._caller(ctx), params)
            except (RunnerError, Problem) as error:
                problem = problem_of(error)
                code = types.INTERNAL_ERROR if problem.status >= 500 else types.INVALID_PARAMS
                raise MCPError(code, problem.detail) from error

        return handle

    def _check_task(self, caller: Caller, run_id: str, permission: Permission) -> None:
        graph = self._services.graph_of(run_id)
        if graph not in self._graphs or not caller.person.within(graph).may("see"):
            raise MCPError(types.INVALID_PARAMS, f"there is no task {run_id!r:.80}.")
        permit(caller.person, permission, graph)

    def _get_task(self, caller: Caller, params: TaskRequest) -> JSONObject:
        self._check_task(caller, params.task_id, "see")
        view, asked, note = self._view(caller, params.task_id)
        status = ENDS.get(Status(view.status), "input_required" if asked else "working")
        task = {"resultType": "complete", **task_head(view), "status": status}
        if note:
            task["statusMessage"] = note
        if status == "input_required":
            task["inputRequests"] = {
                key: request_of(item.request) for key, item in asked.items()
            }
        if status == "completed":
            task["result"] = result(view).model_dump(
                mode="json", by_alias=True, exclude_none=True, exclude={"result_type"}
            )
        return task

    def _update_task(self, caller: Caller, params: TaskUpdate) -> JSONObject:
        self._check_task(caller, params.task_id, "see")
        refused = self._answer(caller, params.task_id, params.input_responses)
        if refused:
            details = "; ".join(
                receipt.detail or receipt.status for receipt in refused.values()
            )
            raise MCPError(types.INVALID_PARAMS, f"not accepted: {details}", [*refused])
        return {"resultType": "complete"}

    def _cancel_task(self, caller: Caller, params: TaskRequest) -> JSONObject:
        self._check_task(caller, params.task_id, "operate")
        self._services.client.run(params.task_id).cancel(cancelled_by(caller.person))
        return {"resultType": "complete"}


def _has_tasks(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return TASKS in ((capabilities and capabilities.extensions) or {})


def _responses(responses: JSONMapping | None) -> JSONObject:
    return {
        key: response
        for key, response in (responses or {}).items()
        if isinstance(response, types.ElicitResult)
    }


def keys_of(settings: Settings) -> Sequence[str]:
    """Return the keys for the sealed state that clients send back: the first key seals.

    They come from RUNNER_MCP_KEYS; without these, one key is derived from RUNNER_SERVER_SECRET, or
    is random for this process.

    Raises:
        UsageError: a key is too short.
    """
    keys = [key.strip() for key in settings.mcp_keys.split(",") if key.strip()]
    if any(len(key) < 32 for key in keys):
        raise UsageError("each of RUNNER_MCP_KEYS must have 32 random characters or more.")
    secret = settings.server_secret or secrets.token_hex(32)
    return keys or [hashlib.sha256(f"mcp\n{secret}".encode()).hexdigest()]


# HTTP and stdio


def router(services: Services) -> APIRouter:
    """Return the route of the door."""
    # The SDK would log a started session manager for each request.
    logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)
    server = Door(services).server
    routes = APIRouter(include_in_schema=False, route_class=JsonRpcRoute)

    @routes.post("/mcp")
    async def serve(request: Request, _: Known) -> Response:
        return Exchange(server, await request.body())

    return routes


async def serve_stdio(settings: Settings) -> None:
    """Serve the client that started this process, until it closes the input."""
    person = Person(Principal(getpass.getuser()), frozenset(GRANTS))
    server = Door(
        Services(settings), person
    ).server  # raised below, an error would be in a group
    async with stdio_server() as (incoming, outgoing), readable(incoming, outgoing) as messages:
        await server.run(messages, outgoing, server.create_initialization_options())


# -- results ---------------------------------------------------------------------------------------


POLL = 2000
"""Milliseconds between a client's requests for a task's state."""

OPEN_RUN = {
    "type": "object",
    "properties": {"run_id": {"type": "string"}, "status": {"type": "string"}},
    "required": ["run_id", "status"],
    "description": "A run that continues: runs_show returns its state.",
}
"""The schema of a result returned before the run has ended."""


def task_head(view: RunView) -> JSONObject:
    """Return the common fields of every answer about a task."""
    changed = max(view.created_at, view.ended_at, *(node.since for node in view.nodes))
    return {
        "taskId": view.run_id,
        "createdAt": stamp(view.created_at),
        "lastUpdatedAt": stamp(changed),
        "ttlMs": None,
        "pollIntervalMs": POLL,
    }


def result_form(definition: Definition | None) -> JSONObject | None:
    """Return the schema of a graph tool's result; None if the graph doesn't declare an object."""
    schema = definition and result_schema(definition)
    if not schema or schema.get("type") != "object":
        return None
    return {"type": "object", "anyOf": [schema, OPEN_RUN], "$defs": schema.pop("$defs", {})}


def complete(value: Any, text: str = "") -> types.CallToolResult:
    """Return a tool's result; only an object is structured, which all protocol versions accept."""
    content = types.TextContent(type="text", text=text or pretty(value))
    return types.CallToolResult(
        content=[content], structured_content=value if isinstance(value, dict) else None
    )


def failed(text: str) -> types.CallToolResult:
    """Return a tool's error result, which the model reads."""
    return complete(text).model_copy(update={"is_error": True})


def result(view: RunView) -> types.CallToolResult:
    """Return the result of a run that has ended."""
    if view.status == Status.COMPLETED:
        return complete(view.output)
    return failed(failure(view))


# -- exchanges -------------------------------------------------------------------------------------


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


# -- questions to clients --------------------------------------------------------------------------


@immutable
class Caller:
    """A caller, the address where they open pages, and the elicitations their client can show."""

    person: Person
    address: str
    forms: bool = False
    links: bool = False

    def page(self, question_id: str) -> str:
        """Return the address of a question's page, or "" if no address is known."""
        return page_of(self.address, question_id)


@immutable
class Elicitation:
    """A question to a client, as a form or a link to its page."""

    question: QuestionView
    request: JSONObject

    def decision(self, response: types.ElicitResult) -> Decision | Receipt | None:
        """Return a person's decision, None if they made none, or the receipt of an unusable one."""
        if self.request["mode"] == "url" or response.action == "cancel":
            return None
        if response.action == "accept":
            return decision_of(self.question, response.content or {})
        if "reject" not in (self.question.rule or {}).get("decisions", ()):
            return None  # a question that no one can reject stays open
        return decision_of(self.question, {"decision": "reject", "reason": "declined"})


def request_of(params: JSONMapping) -> JSONObject:
    """Wrap an elicitation's parameters in a request for a client."""
    return {"method": "elicitation/create", "params": params}


def elicitation_of(caller: Caller, question: QuestionView) -> Elicitation | None:
    """Return a question as a form or a link for a client; None if it can show neither."""
    form = flat_forms.form(question)
    text = message(question)
    page = caller.page(question.id)
    if form is not None and caller.forms:
        text += f"\n\nMore: {page}" if page else ""
        return Elicitation(question, {"mode": "form", "message": text, "requestedSchema": form})
    if not (page and caller.links):
        return None
    return Elicitation(
        question, {"mode": "url", "message": page_message(question), "url": page}
    )


if __name__ == "__main__":
    try:
        asyncio.run(serve_stdio(Settings()))
    except RunnerError as problem:
        print(f"Error: {problem}", file=sys.stderr)  # noqa: T201 - a program
        sys.exit(2)
