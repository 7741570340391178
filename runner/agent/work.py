"""What runs beside the machine: the model, the tools and the callbacks, each ending in one happening."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from runner import codec, failures, hooks, loops
from runner.agent.context import AgentView
from runner.agent.desk import Desk
from runner.agent.model_call import ModelCall
from runner.agent.occasions import TYPES, Occasions
from runner.agent.recipe import Recipe
from runner.agent.state import AgentState
from runner.agent.tool_call import ToolCall
from runner.agent.values import Broke, CallModel, Cancelled, Fire, Fired, Happening, RunTool, Waited
from runner.asking import Asker
from runner.errors import ConflictError

JSON = Any
Emit = Callable[[dict[str, Any]], None]
Post = Callable[[Happening], Awaitable[None]]

CANCEL_SEEN_WITHIN = 0.1  # seconds, while waiting for a throttled model


class Work:
    """The hands of one execution; the state is given to every piece of work as it then was."""

    def __init__(
        self,
        recipe: Recipe,
        desk: Desk,
        occasions: Occasions,
        view: AgentView,
        *,
        cancel: threading.Event,
        emit: Emit,
        post: Post,
    ) -> None:
        self._recipe, self._desk, self._occasions, self._view = recipe, desk, occasions, view
        self._cancel, self._emit, self._post = cancel, emit, post
        self._turn = asyncio.Lock()

    async def wait(self, seconds: float) -> Happening:
        """Let time pass, unless it is no longer wanted."""
        self._emit({"event_loop_throttled_delay": seconds})
        left = seconds
        while left > 0 and not self._cancel.is_set():
            await asyncio.sleep(min(left, CANCEL_SEEN_WITHIN))
            left -= CANCEL_SEEN_WITHIN
        return Waited()

    async def call_model(self, request: CallModel, state: AgentState, messages: list[JSON]) -> Happening:
        """Call the model once."""
        await self._desk.check()
        call = ModelCall(self._recipe, state, messages, cancel=self._cancel, emit=self._emit)
        happening = await call.run(self._desk.invocation_state, forced=request.forced)
        if not isinstance(happening, Cancelled):
            self._occasions.remember(happening.reply.exception, call.error)
        return happening

    async def run_tool(self, request: RunTool, state: AgentState) -> Happening:
        """Run one attempt of a tool call."""
        await self._desk.check()
        key = str(request.use["toolUseId"])
        call = ToolCall(
            replace(request, use=codec.unpack(request.use)),
            self._occasions.tool_for(key, request.attempt, request.tool),
            desk=self._desk,
            post=self._post,
            view=self._view,
            questions=state.questions,
            emit=self._emit,
        )
        happening = await call.told()
        stored = getattr(happening, "error", None) or getattr(happening, "exception", None)
        self._occasions.remember(stored, call.error)
        return happening

    def fire(
        self, request: Fire, state: AgentState, messages: list[JSON]
    ) -> Happening | Coroutine[Any, Any, Happening]:
        """Fire an event: what comes of it where nobody listens, else the work of the callbacks."""
        try:
            event = self._event(request, state, messages)
            callbacks = self._recipe.hooks.callbacks_for(type(event))
            if callbacks:
                return self._called(request, state, event, callbacks)
            return Fired(request.event, request.key, self._occasions.changes(request, event, state))
        except Exception as error:  # noqa: BLE001 - a state that no event can be made of ends the invocation
            return self._broke(request, error)

    def _event(self, request: Fire, state: AgentState, messages: list[JSON]) -> hooks.AgentEvent:
        fields = self._occasions.fields(request, state, messages)
        asker = Asker(self._desk.address, request.scope, request.number, state.questions)
        return TYPES[request.event](
            **fields,
            agent=self._view,
            invocation_state=self._desk.invocation_state,
            is_replay=request.replay,
            attempt=request.number,
            asker=asker,
        )

    async def _called(
        self, request: Fire, state: AgentState, event: hooks.AgentEvent, callbacks: list[hooks.Callback]
    ) -> Happening:
        try:
            asked = await hooks.fire(event, callbacks, self._turn)
            if asked:
                return Fired(request.event, request.key, asked=asked)
            return Fired(request.event, request.key, self._occasions.changes(request, event, state))
        except ConflictError:
            raise
        except BaseException as error:
            if loops.is_cancelled():
                raise
            return self._broke(request, error)

    def _broke(self, request: Fire, error: BaseException) -> Broke:
        stored = failures.record(error)
        self._occasions.remember(stored, error)
        return Broke(request.event, request.key, stored)
