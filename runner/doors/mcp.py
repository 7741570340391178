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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from pydantic import Field, ValidationError

from runner.approvals.rules import Principal
from runner.definition.model import Definition
from runner.doors.elicitations import (
    Caller,
    Elicitation,
    elicitation_of,
    request_of,
)
from runner.doors.mcp_exchange import Exchange, JsonRpcRoute, readable
from runner.doors.mcp_operations import OPERATIONS, check, operate
from runner.doors.mcp_results import complete, failed, result, result_form, task_head
from runner.doors.questions import (
    GOOD,
    MOST_ASKED,
    open_questions,
    permit,
)
from runner.errors import DefinitionError, RunnerError, UsageError, needs_extra
from runner.execution.functions import task_schema
from runner.operations.views import RunView, read_run
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Receipt
from runner.records.run import Status
from runner.records.shown_text import shown
from runner.settings import DAY, Settings

with needs_extra("server", "the MCP server"):
    from fastapi import APIRouter, Request, Response
    from fastapi.concurrency import run_in_threadpool

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
    from mcp.shared.exceptions import MCPError
    from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

log = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]

NAME = "celery-graph-runner"

TASKS = "io.modelcontextprotocol/tasks"

WAIT = 25.0
"""Seconds for which a call waits for its run; proxies and clients end longer calls."""

STATE_AGE = 7 * DAY
"""Seconds for which a client may continue a call in which it was asked something."""

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
        person = self._caller(ctx).person
        return await run_in_threadpool(self._tools, person)

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
        caller, arguments = self._caller(ctx), params.arguments or {}
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
        services, graph = self._services, self._services.graph_of(run_id)
        person = permit(caller.person, "see", graph)
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


if __name__ == "__main__":
    try:
        asyncio.run(serve_stdio(Settings()))
    except RunnerError as problem:
        print(f"Error: {problem}", file=sys.stderr)  # noqa: T201 - a program
        sys.exit(2)
