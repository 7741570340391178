"""The gate: one process between an MCP client and an MCP server, which holds calls that need approval.

It relays every message as it is, except calls of tools for which the policy returns a rule. Such a
call is a run of the graph in `gated_call.py`; it is made in the server's session with this process.
The client waits for it by a task (extension `io.modelcontextprotocol/tasks`) or for some seconds, and
then gets the question's id: the same call again continues the wait, and gets the outcome.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from runner.doors.gate_transports import Transport, at_url, process, standard_streams
from runner.doors.gated_call import Calls, read_policy, refused
from runner.errors import RunnerError, StoreError, UsageError
from runner.integrations.framework import strict
from runner.operations.views import read_run
from runner.records.codec import JSON, JSONMapping, JSONObject

log = logging.getLogger(__name__)

T = TypeVar("T")

RequestId = int | str | None

CONNECTION_CLOSED = -32000
INVALID_REQUEST = -32600
PARSE_ERROR = -32700

FIELDS = {"jsonrpc", "id", "method", "params", "result", "error"}
"""Fields of a message. No others are relayed: some servers would read `Method` as `method`."""

MCP = "io.modelcontextprotocol/"
TASKS = f"{MCP}tasks"
VERSION = f"{MCP}protocolVersion"
CAPABILITIES = f"{MCP}clientCapabilities"

SHORTEST, LONGEST = 0.1, 2.0
"""Seconds between two checks of a call that waits."""

TASK_POLL = 2000
"""Milliseconds after which a client should ask for a task again."""

LEAVE_WITHIN = 5.0
"""Seconds that the server has to answer calls that were begun, when the client leaves."""

LIST_WITHIN = 30.0
"""Seconds that the server may take to list its tools."""

THREADS = 32
"""Maximum number of calls that are made at the same time."""


class NoAnswer(RunnerError):
    """The server has ended, has not answered in time, or its answer can't be read."""


class McpGate:
    """One client's session with the server, through the policy; also the `CallMaker` of its calls."""

    decisions: tuple[str, ...] = ("approve", "edit", "reject")

    def __init__(self, options: JSONMapping) -> None:
        """Hold calls by the options of `runner gate`."""
        self._wait = options["wait"]
        self._timeout = options["timeout"]
        place = options["url"] or f"{os.getcwd()} {options['command']}"  # noqa: PTH109 - a text
        self._calls = Calls(read_policy(options["policy"]), place, self)
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(THREADS))
        self._client: Transport
        self._server: Transport
        self._has_server = True
        self._headers: dict[str, str] = {}
        self._meta: JSONObject = {}
        self._tools: dict[str, JSONObject] = {}
        self._own: dict[RequestId, asyncio.Future[JSONObject]] = {}
        self._open: dict[RequestId, str] = {}
        self._waits: dict[RequestId, asyncio.Task[None]] = {}
        self._driven: dict[str, asyncio.Task[JSONObject]] = {}

    async def run(self, client: Transport, server: Transport) -> None:
        """Relay between a client and a server until the client leaves."""
        self._client, self._server = client, server
        answers = asyncio.create_task(self._read_server())
        try:
            async for message in client.messages():
                if message is None:
                    await self._fail(None, PARSE_ERROR, "The line is not one JSON-RPC message.")
                else:
                    await self._from_client(message)
        finally:
            for task in (*self._waits.values(), *self._driven.values()):
                task.cancel()
            if self._own:
                await asyncio.wait([*self._own.values()], timeout=LEAVE_WITHIN)
            # From here on no call is made.
            await self._lost(CONNECTION_CLOSED, "The client has left.", for_good=True)
            answers.cancel()
            # `asyncio.run` waits for the threads, which record the outcomes of begun calls.

    # From the client

    async def _from_client(self, message: JSONObject) -> None:
        message = {name: message[name] for name in message.keys() & FIELDS}
        method = message.get("method", "")
        params = message.get("params") or {}
        number = message.get("id")
        if number is None or not method:
            cancelled = params.get("requestId")
            if isinstance(cancelled, int | str) and cancelled in self._waits:
                self._waits[cancelled].cancel()
            # A server might make a call that has no id.
            elif not method or method.startswith("notifications/"):
                with suppress(NoAnswer):
                    await self._send(message)
            return
        if number in self._waits or number in self._open:
            await self._fail(number, INVALID_REQUEST, f"A request {number!r:.80} is under way.")
            return
        if method == "initialize":  # it belonged to a later version's probe
            self._meta = {}
        if VERSION in (meta := _object(params, "_meta")):
            self._meta = {key: meta[key] for key in meta if key.startswith(MCP)}
        if method == "tools/call" or method.startswith("tasks/"):
            answer = self._call if method == "tools/call" else self._task
            task = asyncio.create_task(self._answered(message, answer(message, params)))
            self._waits[number] = task
            task.add_done_callback(
                lambda done: self._waits.get(number) is done and self._waits.pop(number)
            )
        else:
            await self._forward(message)

    async def _answered(
        self, message: JSONObject, answer: Coroutine[Any, Any, JSONObject | None]
    ) -> None:
        """Send a request's answer; None if the server answers it."""
        try:
            outcome = await answer
        except Exception as error:  # noqa: BLE001 - the client gets any error as its answer
            outcome = refused(str(error))
        if outcome is not None:
            await self._reply(message["id"], outcome)

    async def _call(self, message: JSONObject, params: JSONObject) -> JSONObject | None:
        try:
            name, args = _read_call(params)
            schema, _ = await self._tool(name)
            is_left = self._waits[message["id"]].cancelled
            run_id, args = await asyncio.to_thread(
                self._calls.attach, name, args, schema, is_left
            )
        except Exception as error:  # noqa: BLE001 - a policy raises anything
            return refused(f"The call was not made: {error}")
        if run_id is None:
            await self._forward({**message, "params": {**params, "arguments": args}})
            return None
        is_kept = False
        try:
            outcome = self._drive(run_id)
            if TASKS in _object(_object(_object(params, "_meta"), CAPABILITIES), "extensions"):
                head = await self._head(run_id)
                is_kept = True
                return {"result": {"resultType": "task", **head, "status": "working"}}
            await asyncio.wait([outcome], timeout=self._wait)
            if not outcome.done():
                return refused(await asyncio.to_thread(self._calls.waiting_text, run_id))
            await self._reply(message["id"], outcome.result())
            is_kept = True
            await self._tell(run_id)
            return None
        finally:
            if not is_kept:
                self._calls.claims.pop(run_id, None)

    async def _tell(self, run_id: str) -> None:
        with suppress(StoreError):
            await asyncio.to_thread(self._calls.tell, run_id)

    def _drive(self, run_id: str) -> asyncio.Task[JSONObject]:
        """Return the task that makes the call when it is approved, whether or not a client waits."""
        if run_id not in self._driven:
            self._driven[run_id] = task = asyncio.create_task(self._until_settled(run_id))
            task.add_done_callback(lambda _: self._driven.pop(run_id))
        return self._driven[run_id]

    async def _until_settled(self, run_id: str) -> JSONObject:
        pause = SHORTEST
        while True:
            try:
                outcome = await asyncio.to_thread(self._calls.outcome, run_id)
            except StoreError as error:
                log.warning("gate.store: %s The call of run %s goes on waiting.", error, run_id)
            else:
                if outcome is not None:
                    return outcome
            await asyncio.sleep(pause := min(LONGEST, pause * 1.3))

    # Tasks: of this process or an earlier one, by the run's id; others are the server's.

    async def _task(self, message: JSONObject, params: JSONObject) -> JSONObject | None:
        run_id = str(params.get("taskId", ""))
        if not await asyncio.to_thread(self._calls.is_here, run_id):
            await self._forward(message)
            return None
        task = self._drive(run_id)
        reply: JSONObject = {"resultType": "complete"}
        if message["method"] == "tasks/cancel":
            cancel = self._calls.client.run(run_id).cancel
            await asyncio.to_thread(cancel, "its client cancelled the call")
        if message["method"] != "tasks/get":
            return {"result": reply}
        await asyncio.wait([task], timeout=SHORTEST)
        reply |= await self._head(run_id)
        if not task.done() or task.exception():
            text = await asyncio.to_thread(self._calls.waiting_text, run_id)
            return {"result": {**reply, "status": "working", "statusMessage": text}}
        field, value = next(iter(_answer(task.result()).items()))
        status = "failed" if field == "error" else "completed"
        await self._reply(message["id"], {"result": {**reply, "status": status, field: value}})
        await self._tell(run_id)
        return None

    async def _head(self, run_id: str) -> JSONObject:
        view = await asyncio.to_thread(read_run, self._calls.client.engine.store, run_id)
        times = view.created_at, max(view.created_at, view.ended_at)
        created, changed = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in times)
        return {
            "taskId": run_id,
            "createdAt": created,
            "lastUpdatedAt": changed,
            "ttlMs": None,
            "pollIntervalMs": TASK_POLL,
        }

    # Calls that were approved: see `CallMaker`

    def tool(self, name: str) -> tuple[JSON, bool]:
        """Return the schema of a tool as the server lists it now, and whether a call may be repeated."""
        return self._wait_for(self._tool(name, fresh=True), LIST_WITHIN)

    def make(self, name: str, args: JSON) -> JSONObject:
        """Make a call in the server's session, and return its outcome."""
        # The rest of the client's request is not passed on, because no one approved it.
        params = {"name": name, "arguments": args}
        outcome = self._wait_for(self._request("tools/call", params), self._timeout)
        if outcome.get("result", {}).get("resultType") == "input_required":
            return refused(
                "The server asks for input before it makes the call, which a call that people approve can't "
                "give: the call was not completed. Let the policy pass this tool, and answer the server."
            )
        return outcome

    def _wait_for(self, answer: Coroutine[Any, Any, T], seconds: float) -> T:
        future = asyncio.run_coroutine_threadsafe(answer, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise NoAnswer(f"The server has not answered within {seconds:g} s.") from None

    # The server

    async def _tool(self, name: str, *, fresh: bool = False) -> tuple[JSON, bool]:
        """Return the strict schema of a tool, and whether a call may be repeated."""
        if fresh or name not in self._tools:
            try:
                async with asyncio.timeout(LIST_WITHIN):
                    self._tools = await self._list_tools()
            except TimeoutError:
                raise NoAnswer(
                    f"The server has not listed its tools within {LIST_WITHIN:g} s."
                ) from None
            except (AttributeError, KeyError, TypeError) as error:
                raise NoAnswer(
                    f"The server's list of tools can't be read: {error!r:.80}."
                ) from error
        if name not in self._tools:
            raise NoAnswer(f"The server has no tool {name!r:.80}.")
        tool = self._tools[name]
        hints = _object(tool, "annotations")
        may_repeat = hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
        return strict(tool.get("inputSchema") or {"type": "object"}), may_repeat

    async def _list_tools(self) -> dict[str, JSONObject]:
        tools: dict[str, JSONObject] = {}
        page: JSONObject = {}
        while True:
            answer = await self._request("tools/list", page)
            if "error" in answer:
                text = answer["error"].get("message")
                raise NoAnswer(f"The server can't list its tools: {text}")
            tools |= {tool["name"]: tool for tool in answer["result"]["tools"]}
            if not (cursor := answer["result"].get("nextCursor")):
                return tools
            page = {"cursor": cursor}

    async def _request(self, method: str, params: JSONObject) -> JSONObject:
        """Send a request of the gate's own, and return its `result` or `error`."""
        request_id = f"gate:{os.urandom(8).hex()}"
        params = {**params, "_meta": self._meta} if self._meta else params
        self._own[request_id] = answer = self._loop.create_future()
        answer.add_done_callback(lambda each: each.cancelled() or each.exception())  # retrieved
        try:
            message = {"id": request_id, "method": method, "params": params}
            await self._send({"jsonrpc": "2.0", **message})
            outcome: JSONObject = await answer
        finally:
            self._own.pop(request_id, None)
        return outcome

    async def _forward(self, message: JSONObject) -> None:
        number = message["id"]
        self._open[number] = message["method"]
        try:
            await self._send(message)
        except NoAnswer as error:
            self._open.pop(number, None)
            await self._fail(number, CONNECTION_CLOSED, str(error))

    async def _send(self, message: JSONObject) -> None:
        params = message.get("params") or {}
        headers = self._headers
        if version := _object(params, "_meta").get(VERSION):
            headers = {"MCP-Protocol-Version": str(version), "Mcp-Method": message["method"]}
            if name := params.get("name", params.get("taskId")):
                headers["Mcp-Name"] = str(name)
        try:
            if self._has_server:
                return await self._server.send(message, headers)
        except Exception as error:  # noqa: BLE001 - the SDK raises many
            log.warning("gate.server: %r", error)
        raise NoAnswer("The server has ended: start the gate again.")

    async def _read_server(self) -> None:
        async for message in self._server.messages():
            if message is None:
                await self._lost(
                    PARSE_ERROR, "The server has sent a line that is not JSON-RPC."
                )
            else:
                await self._from_server(message)
        await self._lost(CONNECTION_CLOSED, "The server has ended.", for_good=True)

    async def _lost(self, code: int, text: str, *, for_good: bool = False) -> None:
        """Fail all pending requests: nothing says which one the answer was for."""
        self._has_server &= not for_good
        for answer in self._own.values():
            if not answer.done():
                answer.set_exception(NoAnswer(text))
        requests = self._open
        self._open = {}
        for number in requests:
            await self._fail(
                number, code, f"{text} The request may or may not have been served."
            )

    async def _from_server(self, message: JSONObject) -> None:
        number = message.get("id")
        if "method" in message:
            if message["method"] == "notifications/tools/list_changed":
                self._tools = {}
        elif answer := self._own.get(number):
            if not answer.done():
                answer.set_result(
                    {name: message[name] for name in ("result", "error") if message.get(name)}
                    or {"result": {}}
                )
            return
        elif number is not None and number not in self._open:
            return  # of a call that was cancelled, or one that the server didn't get
        elif self._open.pop(number, "") in {"initialize", "server/discover"}:
            # Offer tasks to the client, and speak the version on which both agree.
            result = message.get("result") or {}
            if version := result.get("protocolVersion"):
                self._headers = {"MCP-Protocol-Version": str(version)}
            capabilities = result["capabilities"] = _object(result, "capabilities")
            capabilities["extensions"] = {**_object(capabilities, "extensions"), TASKS: {}}
        with suppress(OSError):  # the client has left
            await self._client.send(message, {})

    # To the client

    async def _reply(self, number: RequestId, outcome: JSONObject) -> None:
        self._waits.pop(number, None)  # the client may use the id again
        await self._client.send({"jsonrpc": "2.0", "id": number, **_answer(outcome)}, {})

    async def _fail(self, number: RequestId, code: int, text: str) -> None:
        with suppress(OSError):  # the client has left
            error = {"code": code, "message": text}
            await self._client.send({"jsonrpc": "2.0", "id": number, "error": error}, {})


def _object(values: JSONObject, name: str) -> JSONObject:
    """Return the object of a field, {} if the field has something else."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _read_call(params: JSONObject) -> tuple[str, JSONObject]:
    """Return a call's tool and arguments.

    Raises:
        UsageError: they can't be read, or a server might read something else.
    """
    name = params.get("name")
    args = params.get("arguments")
    args = {} if args is None else args
    if not isinstance(name, str) or not isinstance(args, dict):
        raise UsageError("a call has a `name`, which is a text, and `arguments`, an object.")
    for names in (params, args):
        if len({name.casefold() for name in names}) < len(names):
            raise UsageError(
                "two names in it differ only in case, which some servers don't see."
            )
    return name, args


def _answer(outcome: JSONObject) -> JSONObject:
    """Return an outcome as a `result` or an `error`: a refusal is a result, which a model reads."""
    if "refused" not in outcome:
        return outcome
    content = [{"type": "text", "text": outcome["refused"]}]
    return {"result": {"content": content, "isError": True, "resultType": "complete"}}


async def serve(options: JSONMapping) -> None:
    """Serve the client that started this process, until it closes the input."""
    gate = McpGate(options)
    url = options["url"]
    async with at_url(url) if url else process(options["command"]) as server:
        await gate.run(standard_streams(), server)


if __name__ == "__main__":
    try:
        asyncio.run(serve(json.loads(sys.argv[1])))
    except RunnerError as problem:
        print(f"Error: {problem}", file=sys.stderr)  # noqa: T201 - a program
        sys.exit(2)
