"""Runs one attempt of one tool call, and turns however it ends into one happening."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import pydantic

from runner import failures, loops
from runner.agent.batch import error_result
from runner.agent.context import AgentView, ToolContext
from runner.agent.desk import Desk
from runner.agent.results import content_of, is_result
from runner.agent.tools import AgentTool, FunctionTool
from runner.agent.values import Broke, Happening, RunTool, ToolAsked, ToolEnded
from runner.asking import Asker
from runner.errors import ConflictError, InterruptRaised, UsageError
from runner.interrupts import Interrupt

JSON = Any
Emit = Callable[[dict[str, Any]], None]
Post = Callable[[Happening], Awaitable[None]]
Ending = ToolEnded | ToolAsked | Broke


class InnerEvent(dict[str, Any]):
    """A stream event of an agent that serves as a tool."""


@runtime_checkable
class OwnRun(Protocol):
    """A tool that is run in a way of its own, because it keeps state or may ask several questions."""

    async def run_in(self, call: ToolCall) -> Ending:
        """Run it to its end, or to its questions."""


class StructuredTool:
    """The tool through which a model gives the structured output."""

    tool_type = "structured_output"

    def __init__(self, model: type[pydantic.BaseModel]) -> None:
        self.model = model
        self.tool_name = model.__name__
        self.tool_spec = {
            "name": self.tool_name,
            "description": (model.__doc__ or "").strip() or "Give the final answer in this form.",
            "inputSchema": {"json": model.model_json_schema()},
        }

    async def stream(
        self, tool_use: dict[str, Any], invocation_state: dict[str, Any], **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Check the input; this is all that it does."""
        del invocation_state, kwargs
        self.model.model_validate(tool_use["input"])
        yield {"status": "success", "content": [{"text": "Accepted."}], "toolUseId": tool_use["toolUseId"]}


class ToolCall:
    """What a running call has at hand: its request, the tool, and the agent around it."""

    def __init__(
        self,
        request: RunTool,
        tool: AgentTool,
        *,
        desk: Desk,
        post: Post,
        view: AgentView,
        questions: Mapping[str, Interrupt],
        emit: Emit,
    ) -> None:
        self.request, self.tool, self.desk, self.view = request, tool, desk, view
        self.post = post
        self.questions = questions
        self.emit = emit
        self.error: BaseException | None = None

    @property
    def id(self) -> str:
        """The tool use id."""
        return str(self.request.use["toolUseId"])

    @property
    def idempotency_key(self) -> str:
        """The same text at every start of this attempt."""
        again = f".{self.request.attempt}" if self.request.attempt > 1 else ""
        return f"{self.desk.idempotency_key}.{self.id}{again}"

    def tell(self, data: Any) -> None:
        """Stream what the tool says while it works."""
        self.emit({"type": "tool_stream", "tool_stream_event": {"tool_use": self.request.use, "data": data}})

    def _teller(self) -> Callable[[float, str], object]:
        """Sync tools run on threads, and events go out on the loop."""
        loop, use = asyncio.get_running_loop(), self.request.use

        def tell(fraction: float, note: str) -> None:
            event = {"type": "tool_progress", "tool_use": use, "fraction": fraction, "note": note}
            loop.call_soon_threadsafe(self.emit, event)

        return tell

    async def told(self) -> Ending:
        """Run the tool and tell those who watch when it starts and how it ends."""
        self.emit({"type": "tool_start", "tool_use": self.request.use})
        ending = await self.run()
        status = "interrupt" if isinstance(ending, ToolAsked) else "error"
        if isinstance(ending, ToolEnded):
            status = ending.result["status"]
        self.emit({"type": "tool_end", "tool_use": self.request.use, "status": status})
        return ending

    async def run(self) -> Ending:
        """Run the tool; what it raises becomes its result.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
        """
        if isinstance(self.tool, OwnRun):
            return await self.tool.run_in(self)
        asker = Asker(self.desk.address, f"tool:{self.id}", self.request.attempt, self.questions, repeat=True)
        started = time.monotonic()
        ending: Ending
        try:
            ending = self._returned(await self._value(asker), time.monotonic() - started)
        except InterruptRaised:
            ending = ToolAsked(self.id, asker.asked)
        except ConflictError:
            raise
        except BaseException as error:
            if loops.is_cancelled():
                raise
            ending = self.failed(error, time.monotonic() - started)
        return self._judged(asker, ending)

    def _judged(self, asker: Asker, ending: Ending) -> Ending:
        """A question counts even where the tool swallowed it, and so does one that was refused."""
        if asker.refused is not None:
            return self.broke(asker.refused)
        return ToolAsked(self.id, asker.asked) if asker.asked else ending

    def broke(self, error: BaseException) -> Broke:
        """End the invocation in an error."""
        self.error = error
        return Broke("tool", self.id, failures.record(error))

    def failed(self, error: BaseException, duration: float | None = None) -> ToolEnded:
        """Tell the model what the tool raised."""
        self.error = error
        text = f"Error: {type(error).__name__} - {error}"
        return ToolEnded(self.id, error_result(self.id, text), failures.record(error), duration)

    def _returned(self, value: Any, duration: float) -> ToolEnded:
        result = {**content_of(value, self.tool.tool_name), "toolUseId": self.id}
        structured = None
        if isinstance(self.tool, StructuredTool):
            checked = self.tool.model.model_validate(self.request.use["input"])
            structured = checked.model_dump(mode="json")
        return ToolEnded(self.id, result, None, duration, structured)

    async def _value(self, asker: Asker) -> Any:
        context = ToolContext(
            self.request.use,
            self.view,
            asker,
            invocation_state=self.desk.invocation_state,
            idempotency_key=self.idempotency_key,
            attempt=self.request.attempt,
            is_replay=self.request.replay,
            check=self.desk.check_now,
            tell=self._teller(),
        )
        if isinstance(self.tool, FunctionTool):
            returned = await self.tool.invoke(self.request.use["input"], context)
            return await self._last(returned) if hasattr(returned, "__aiter__") else returned
        state = {**self.desk.invocation_state, "agent": self.view}
        last = await self._last(self.tool.stream(self.request.use, state, tool_context=context))
        found = last.get("tool_result", last) if isinstance(last, Mapping) else last
        if not is_result(found):
            raise UsageError(f"tool {self.tool.tool_name} ended without a result; yield one last.")
        return found

    async def _last(self, stream: AsyncIterable[Any]) -> Any:
        """Read a stream: what it yields last is the result."""
        last: Any = None
        async for last in stream:
            self.tell(last)
        return last
