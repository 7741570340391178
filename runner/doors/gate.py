"""The gate: one process between an MCP client and an MCP server, which holds calls that need approval.

It relays every message as it is, except calls of tools for which the policy returns a rule. Such a
call is a run of the graph in `gated_call.py`; it is made in the server's session with this process.
The client waits for it by a task (extension `io.modelcontextprotocol/tasks`) or for some seconds, and
then gets the question's id: the same call again continues the wait, and gets the outcome.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import logging
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

from runner.approvals.rules import Principal
from runner.doors.gated_call import Calls, read_policy, refused, waiting_text
from runner.errors import RunnerError, StoreError, needs_extra
from runner.integrations.framework import strict
from runner.operations.views import read_run
from runner.records.codec import JSON, JSONObject
from runner.settings import Settings

with needs_extra("mcp", "the gate"):
    import anyio
    import mcp_types as types
    import uvicorn
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.message import ClientMessageMetadata, SessionMessage
    from starlette.datastructures import Headers
    from starlette.responses import PlainTextResponse

log = logging.getLogger(__name__)

TASKS = "io.modelcontextprotocol/tasks"
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"

NAME_KEY = "celery-graph-runner/idempotency-key"
"""The key in `_meta` by which a client tells calls with the same arguments apart."""

OURS = "gate:"
"""Prefix of the ids of the gate's own requests to the server."""

SHORTEST, LONGEST = 0.1, 2.0
"""Seconds between two looks at a call that waits."""

LEAVE_WITHIN = 5.0
"""Seconds that the server has to answer calls that were begun, when the client leaves."""

TASK_POLL = 2000
"""Milliseconds after which a client should ask for a task again."""

LIST_WITHIN = 30.0
"""Seconds that the server may take to list its tools."""

THREADS = 32
"""Maximum number of calls that are made at the same time."""


class NoAnswer(RunnerError):
    """The server has ended, has not answered in time, or its answer can't be read."""


class McpGate:
    """One client's session with the server, through the policy."""

    decisions = ("approve", "edit", "reject")

    def __init__(self, calls: Calls, *, wait: float, timeout: float) -> None:
        """Hold calls for `wait` seconds at a time; the server has `timeout` seconds to answer a call."""
        self._calls, self._wait, self._timeout = calls, wait, timeout
        self._requester = Principal(getpass.getuser())
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gate")
        self._client: Any = None
        self._server: Any = None
        self._headers: dict[str, str] = {}
        self._meta: JSONObject = {}
        self._tools: dict[str, JSONObject] | None = None
        self._own: dict[str, asyncio.Future[JSONObject]] = {}
        self._open: dict[types.RequestId, str] = {}
        self._waits: dict[types.RequestId, asyncio.Task[None]] = {}
        self._driven: dict[str, asyncio.Task[JSONObject]] = {}
        self._metas: dict[str, JSONObject] = {}

    async def run(self, client: Any, server: Any) -> None:
        """Relay between the streams of a client and of a server until the client leaves."""
        (from_client, self._client), (from_server, self._server) = client, server
        answers = asyncio.create_task(self._read_server(from_server))
        try:
            with suppress(anyio.ClosedResourceError):  # its session was ended
                async for item in from_client:
                    if isinstance(item, Exception):
                        text = "The line is not a JSON-RPC message."
                        await self._fail(None, types.PARSE_ERROR, text)
                    else:
                        await self._served(item.message)
        finally:
            for task in (*self._waits.values(), *self._driven.values()):
                task.cancel()
            if self._own:
                await asyncio.wait([*self._own.values()], timeout=LEAVE_WITHIN)
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                await self._lost(types.CONNECTION_CLOSED, "The client has left.")
            # The outcome of a begun call is recorded before this process ends.
            await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
            answers.cancel()

    # From the client

    async def _served(self, message: Any) -> None:
        try:
            await self._from_client(message)
        except (AttributeError, TypeError, ValueError) as error:
            text = f"The parameters can't be read: {error}"
            await self._fail(getattr(message, "id", None), types.INVALID_PARAMS, text)

    async def _from_client(self, message: Any) -> None:
        method, params = getattr(message, "method", ""), getattr(message, "params", None) or {}
        if not isinstance(message, types.JSONRPCRequest):
            if method == "notifications/cancelled" and params.get("requestId") in self._waits:
                self._waits[params["requestId"]].cancel()
                return
            self._open.pop(params.get("requestId", ""), None)
            with suppress(NoAnswer):
                await self._send(message)
            return
        if method == "initialize":  # after a probe by a later version, to which it belonged
            self._meta = {}
        if VERSION in (meta := params.get("_meta") or {}):
            self._meta = {key: meta[key] for key in meta if key != "progressToken"}
        is_call = method == "tools/call"
        if is_call or (method.startswith("tasks/") and params.get("taskId") in self._driven):
            answer = self._call(message, params) if is_call else self._task(message, params)
        elif method.startswith("tasks/"):
            answer = self._earlier_task(message, params)
        else:
            await self._forward(message)
            return
        self._waits[message.id] = task = asyncio.create_task(self._answered(message.id, answer))
        task.add_done_callback(lambda _: self._waits.pop(message.id, None))

    async def _answered(self, request_id: types.RequestId, answer: Any) -> None:
        try:
            await answer
        except Exception as error:  # noqa: BLE001 - the client gets any error as its answer
            log.info("gate.error: %r", error)
            await self._reply(request_id, _text(str(error)))

    async def _call(self, message: types.JSONRPCRequest, params: JSONObject) -> None:
        name, args = params.get("name", ""), params.get("arguments") or {}
        try:
            is_free, args = await self._judged(name, args)
        except Exception as error:  # noqa: BLE001 - a policy raises anything
            await self._reply(message.id, _text(f"The call was not made: {error}"))
            return
        if is_free:
            params = {**params, "arguments": args} if args else params
            await self._forward(message.model_copy(update={"params": params}))
            return
        meta = params.get("_meta") or {}
        run_id = await self._in_thread(
            self._calls.attach, self._requester, name, args, str(meta.get(NAME_KEY, "")), self
        )
        is_told = False
        try:
            self._metas[run_id] = meta
            outcome = self._drive(run_id)
            if TASKS in ((meta.get(CAPABILITIES) or {}).get("extensions") or {}):
                head = await self._in_thread(self._task_head, run_id)
                await self._reply(
                    message.id, {"resultType": "task", **head, "status": "working"}
                )
                is_told = True
                return
            await asyncio.wait([outcome], timeout=self._wait)
            if not outcome.done():
                text = await self._in_thread(waiting_text, self._calls, run_id)
                await self._reply(message.id, _text(text))
                return
            await self._tell(message.id, outcome.result())
            is_told = True
        finally:
            self._calls.detach(run_id, told=is_told)
            await self._let_go(run_id, told=is_told)

    async def _judged(self, name: str, args: JSON) -> tuple[bool, JSON]:
        if not self._calls.has_rules(name):
            return True, args
        schema, _ = await self._listed(name, fresh=False)
        judged: tuple[bool, JSON] = await self._in_thread(
            self._calls.is_free, name, args, schema
        )
        return judged

    async def _let_go(self, run_id: str, *, told: bool) -> None:
        """Keep nothing of a call that has ended, but that its client was told."""
        if (task := self._driven.get(run_id)) and task.done():
            self._driven.pop(run_id)
            self._metas.pop(run_id, None)
            if told:
                with suppress(StoreError):
                    await self._in_thread(self._calls.tell, run_id)

    def _drive(self, run_id: str) -> asyncio.Task[JSONObject]:
        """Return the task that makes the call when it is approved, whether or not a client waits."""
        if run_id not in self._driven:
            self._driven[run_id] = asyncio.create_task(self._until_settled(run_id))
        return self._driven[run_id]

    async def _until_settled(self, run_id: str) -> JSONObject:
        pause = SHORTEST
        while True:
            try:
                outcome: JSONObject | None = await self._in_thread(self._calls.outcome, run_id)
            except StoreError as error:
                log.warning("gate.store: %s The call of run %s goes on waiting.", error, run_id)
            else:
                if outcome is not None:
                    return outcome
            await asyncio.sleep(pause := min(LONGEST, pause * 1.3))

    # Tasks

    async def _earlier_task(self, message: types.JSONRPCRequest, params: JSONObject) -> None:
        """Continue a task that an earlier process of this gate has begun; others are the server's."""
        run_id = str(params.get("taskId", ""))
        if await self._in_thread(self._calls.resume, run_id, self):
            self._drive(run_id)
            await self._task(message, params)
        else:
            await self._forward(message)

    async def _task(self, message: types.JSONRPCRequest, params: JSONObject) -> None:
        run_id = params["taskId"]
        if message.method == "tasks/cancel":
            await self._in_thread(
                self._calls.client.run(run_id).cancel, "its client cancelled the call"
            )
        if message.method != "tasks/get":
            await self._reply(message.id, {"resultType": "complete"})
            return
        task = self._driven[run_id]
        await asyncio.wait([task], timeout=SHORTEST)
        reply = await self._in_thread(self._task_head, run_id)
        if not task.done():
            text = await self._in_thread(waiting_text, self._calls, run_id)
            reply |= {"status": "working", "statusMessage": text}
        elif "error" in (outcome := task.result()):
            reply |= {"status": "failed", "error": outcome["error"]}
        else:
            reply |= {"status": "completed", "result": _result(outcome)}
        await self._reply(message.id, {"resultType": "complete", **reply})
        await self._let_go(run_id, told=True)

    def _task_head(self, run_id: str) -> JSONObject:
        view = read_run(self._calls.client.engine.store, run_id)
        times = view.created_at, max(view.created_at, view.ended_at)
        created, changed = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in times)
        head = {"taskId": run_id, "createdAt": created, "lastUpdatedAt": changed}
        return {**head, "ttlMs": None, "pollIntervalMs": TASK_POLL}

    # Calls that were approved: see `CallMaker`

    def tool(self, name: str) -> tuple[JSON, bool]:
        """Return the schema of a tool as the server lists it now, and whether a call may be repeated."""
        schema, may_repeat = self._wait_for(self._listed(name, fresh=True), LIST_WITHIN)
        return schema, may_repeat

    def make(self, name: str, args: JSON, run_id: str) -> JSONObject:
        """Make a call in the server's session, and return its outcome."""
        # Nothing else of the client's request is passed on: nobody has approved it.
        params = {"_meta": self._metas.get(run_id, self._meta), "name": name, "arguments": args}
        outcome: JSONObject = self._wait_for(self._made(params), self._timeout)
        return outcome

    async def _made(self, params: JSONObject) -> JSONObject:
        answer = await self._request("tools/call", params)
        kind = answer.get("result", {}).get("resultType", "complete")
        if kind == "input_required":
            return refused(
                "The server asks for input before it makes the call, which a call that people approve can't "
                "give: the call was not completed. Let the policy pass this tool, and answer the server."
            )
        return answer

    def _wait_for(self, answer: Any, seconds: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(answer, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise NoAnswer(f"The server has not answered within {seconds:g} s.") from None

    # The server

    async def _listed(self, name: str, *, fresh: bool) -> tuple[JSON, bool]:
        """Return the schema and the repeatability of a tool."""
        if fresh or self._tools is None or name not in self._tools:
            tools: dict[str, JSONObject] = {}
            cursor = None
            while True:
                params = {"_meta": self._meta} if self._meta else {}
                answer = await self._request(
                    "tools/list", params | ({"cursor": cursor} if cursor else {})
                )
                if "error" in answer:
                    raise NoAnswer(
                        f"The server can't list its tools: {answer['error'].get('message')}"
                    )
                result = answer["result"]
                tools |= {tool["name"]: tool for tool in result.get("tools", ())}
                if not (cursor := result.get("nextCursor")):
                    break
            self._tools = tools
        if name not in self._tools:
            raise NoAnswer(f"The server has no tool {name!r:.80}.")
        hints = self._tools[name].get("annotations") or {}
        may_repeat = hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
        return strict(self._tools[name].get("inputSchema") or {"type": "object"}), may_repeat

    async def _request(self, method: str, params: JSONObject) -> JSONObject:
        """Send a request of the gate's own, and return its `result` or `error`."""
        request_id = f"{OURS}{os.urandom(8).hex()}"
        self._own[request_id] = answer = self._loop.create_future()
        try:
            await self._send(
                types.JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=params)
            )
            outcome: JSONObject = await answer
        finally:
            self._own.pop(request_id, None)
        return outcome

    async def _forward(self, message: types.JSONRPCRequest) -> None:
        self._open[message.id] = message.method
        try:
            await self._send(message)
        except NoAnswer as error:
            self._open.pop(message.id, None)
            await self._fail(message.id, types.CONNECTION_CLOSED, str(error))

    async def _send(self, message: Any) -> None:
        method, params = getattr(message, "method", ""), getattr(message, "params", None) or {}
        headers = dict(self._headers)
        if version := (params.get("_meta") or {}).get(VERSION):
            headers = {"MCP-Protocol-Version": version, "Mcp-Method": method}
            name = params.get("name", params.get("taskId"))
            headers |= {} if name is None else {"Mcp-Name": str(name)}
        try:
            await self._server.send(
                SessionMessage(message, ClientMessageMetadata(headers=headers))
            )
        except Exception as error:
            raise NoAnswer("The server has ended: start the gate again.") from error

    async def _read_server(self, incoming: Any) -> None:
        async for item in incoming:
            if isinstance(item, Exception):
                await self._lost(
                    types.PARSE_ERROR, "The server has sent a line that is not JSON-RPC."
                )
            else:
                await self._from_server(item.message)
        await self._server.aclose()
        await self._lost(types.CONNECTION_CLOSED, "The server has ended.")

    async def _lost(self, code: int, text: str) -> None:
        """Fail the requests that are under way: nothing says which of them the answer was for."""
        for answer in self._own.values():
            if not answer.done():
                answer.set_exception(NoAnswer(text))
        requests, self._open = self._open, {}
        for request_id in requests:
            await self._fail(
                request_id, code, f"{text} The request may or may not have been served."
            )

    async def _from_server(self, message: Any) -> None:
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                self._tools = None
            await self._client.send(SessionMessage(message))
            return
        if message.id in self._own:
            is_result = isinstance(message, types.JSONRPCResponse)
            fields = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
            if not (answer := self._own[str(message.id)]).done():
                part = "result" if is_result else "error"
                answer.set_result({part: fields[part]})
            return
        method = self._open.pop(message.id, "") if message.id is not None else ""
        if method in {"initialize", "server/discover"} and isinstance(
            message, types.JSONRPCResponse
        ):
            self._note_handshake(message.result)
        await self._client.send(SessionMessage(message))

    def _note_handshake(self, result: JSONObject) -> None:
        """Offer tasks to the client, and speak the version on which both agree."""
        if version := result.get("protocolVersion"):
            self._headers = {"MCP-Protocol-Version": version}
        capabilities = result.setdefault("capabilities", {})
        capabilities["extensions"] = {**(capabilities.get("extensions") or {}), TASKS: {}}

    # To the client

    async def _tell(self, request_id: types.RequestId, outcome: JSONObject) -> None:
        if "error" in outcome:
            error = types.ErrorData.model_validate(outcome["error"])
            await self._client.send(
                SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
            )
        else:
            await self._reply(request_id, _result(outcome))

    async def _reply(self, request_id: types.RequestId, result: JSONObject) -> None:
        response = types.JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
        await self._client.send(SessionMessage(response))

    async def _fail(self, request_id: types.RequestId | None, code: int, text: str) -> None:
        error = types.ErrorData(code=code, message=text)
        await self._client.send(
            SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
        )

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await self._loop.run_in_executor(self._pool, partial(function, *args))


def _text(text: str) -> JSONObject:
    """Return an error result, which a model reads."""
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": True, "resultType": "complete"}


def _result(outcome: JSONObject) -> JSONObject:
    if "refused" in outcome:
        return _text(outcome["refused"])
    result: JSONObject = outcome["result"]
    return result


def upstream(options: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    """Open the streams of the server: a command's, or at a URL."""
    if options["url"]:
        return streamable_http_client(options["url"])
    command, *args = options["command"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
    return stdio_client(StdioServerParameters(command=command, args=args, env=env))


class GateSessions:
    """The gate over HTTP, as an ASGI application: each session of a client has one of the server."""

    def __init__(
        self, calls: Calls, options: Mapping[str, Any], tasks: anyio.abc.TaskGroup
    ) -> None:
        """Serve while the tasks may run."""
        self._calls, self._options, self._tasks = calls, options, tasks
        self._sessions: dict[str, StreamableHTTPServerTransport] = {}
        host = f"127.0.0.1:{options['port']}", f"localhost:{options['port']}"
        self._security = TransportSecuritySettings(
            allowed_hosts=[*host], allowed_origins=[f"http://{name}" for name in host]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request in its session; without one it begins one."""
        name = Headers(scope=scope).get("mcp-session-id")
        transport = self._sessions.get(name or "")
        if name is None:
            name = uuid4().hex
            transport = StreamableHTTPServerTransport(name, security_settings=self._security)
            self._sessions[name] = transport
            await self._tasks.start(self._session, name, transport)
        if transport is None:
            await PlainTextResponse("There is no such session.", 404)(scope, receive, send)
        else:
            await transport.handle_request(scope, receive, send)

    async def _session(
        self,
        name: str,
        transport: StreamableHTTPServerTransport,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        try:
            async with transport.connect() as client, upstream(self._options) as server:
                task_status.started()
                await gate_of(self._calls, self._options).run(client, server)
        except Exception:
            log.exception(
                "gate.session: a session has ended by an error; its client begins another."
            )
        finally:
            self._sessions.pop(name, None)


def gate_of(calls: Calls, options: Mapping[str, Any]) -> McpGate:
    """Return the gate of a session."""
    return McpGate(calls, wait=options["wait"], timeout=options["timeout"])


async def serve(options: Mapping[str, Any]) -> None:
    """Serve the client that started this process until it closes the input, or clients at a port."""
    place = options["name"] or options["url"] or f"{os.getcwd()} {options['command']}"  # noqa: PTH109 - a text
    calls = Calls(Settings(), read_policy(options["policy"]), place)
    if options["port"]:
        async with anyio.create_task_group() as tasks:
            app = GateSessions(calls, options, tasks)
            config = uvicorn.Config(
                app, port=options["port"], lifespan="off", log_level="warning"
            )
            await uvicorn.Server(config).serve()
            tasks.cancel_scope.cancel()
        return
    async with stdio_server() as client, upstream(options) as server:
        await gate_of(calls, options).run(client, server)


if __name__ == "__main__":
    try:
        asyncio.run(serve(json.loads(sys.argv[1])))
    except RunnerError as problem:
        print(f"Error: {problem}", file=sys.stderr)  # noqa: T201 - a program
        sys.exit(2)
