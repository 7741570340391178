"""Carries out what the agent's machine asks for, against one visit of a node.

One task at a time talks to the machine; model, tools and callbacks run beside it and report through
a queue. A checkpoint that must come first is awaited before anything after it begins; others are
written when the queue is empty, so that results which come in together share one. Nothing
sync runs on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, cast

from runner import codec
from runner.agent import loop
from runner.agent.context import AgentView, UserState
from runner.agent.desk import Desk
from runner.agent.occasions import Occasions
from runner.agent.prompts import redacted
from runner.agent.recipe import Recipe
from runner.agent.results import AgentResult
from runner.agent.state import AgentState, document, waits_for
from runner.agent.values import (
    Append,
    CallModel,
    Cancelled,
    Finish,
    Fire,
    Happening,
    Publish,
    Redact,
    Replied,
    Request,
    RunTool,
    Save,
    Started,
    Wait,
)
from runner.agent.work import Work
from runner.interrupts import Interrupt
from runner.outcomes import Saved

JSON = Any
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """How an execution ended: done, interrupt or failed, with all that is kept."""

    kind: str
    state: AgentState
    result: AgentResult
    saved: Saved
    error: BaseException | None


class Drive:
    """One execution of an agent. `emit` gets stream events, `cancel` stops it before its next call."""

    def __init__(
        self,
        recipe: Recipe,
        desk: Desk,
        state: AgentState,
        messages: list[JSON],
        *,
        stored: int,
        cancel: threading.Event | None = None,
        emit: Emit | None = None,
    ) -> None:
        """Start from a state and its conversation, of which the first `stored` messages are stored."""
        self.state, self.messages = state, list(messages)
        self._recipe, self._desk, self._stored = recipe, desk, stored
        self._cancel = cancel or threading.Event()
        self._emit = emit or _ignore
        self._user = UserState.restored(state.user)
        self._occasions = Occasions(recipe, self._result)
        view = AgentView(recipe.name, self._user, lambda: self.messages, self._cancel)
        self._work = Work(
            recipe,
            desk,
            self._occasions,
            view,
            cancel=self._cancel,
            emit=self._emit,
            post=self._post,
        )
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._unpublished: list[Interrupt] = []
        self._dirty = False
        self._finish: Finish | None = None

    async def run(self) -> Ending:
        """Go on until the agent is done, failed or waits.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
        """
        try:
            await self._take(Started(self._desk.answers))
            while self._finish is None:
                if self._heard.empty() and (self._dirty or self._unpublished):
                    await self._store()
                heard = await self._heard.get()
                await self._listen(heard)
        finally:
            await self._stop()
        return self._ending(self._finish)

    async def _listen(self, heard: Heard) -> None:
        if isinstance(heard, _Crashed):
            raise heard.error
        if not isinstance(heard, _Posted):
            await self._take(heard)
            return
        await self._take(heard.happening)
        if not heard.taken.done():
            heard.taken.set_result(None)

    async def _post(self, happening: Happening) -> None:
        """Tell the machine something from inside a tool call; return when it was dealt with."""
        if self._closed:
            raise asyncio.CancelledError
        taken = asyncio.get_running_loop().create_future()
        self._heard.put_nowait(_Posted(happening, taken))
        await taken

    async def _stop(self) -> None:
        self._closed = True
        while not self._heard.empty():
            heard = self._heard.get_nowait()
            if isinstance(heard, _Posted):
                heard.taken.cancel()
        running = [task for task in self._tasks if not task.done()]
        if running:
            # Tools that run on threads can't be ended, but they can be told.
            self._cancel.set()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _ending(self, finish: Finish) -> Ending:
        failure = self.state.failure if finish.kind == "failed" else None
        error = self._occasions.exception(failure)
        result = self._result()
        if finish.kind == "interrupt":
            # Also where AfterInvocation asks about an invocation that has its own reason already.
            result.stop_reason = "interrupt"
        return Ending(finish.kind, self.state, result, self._saved(), error)

    # -- the machine ------------------------------------------------------------------------------

    async def _take(self, happening: Happening) -> None:
        # A reply that came in whole is kept; whatever would begin after it isn't.
        late = self._cancel.is_set() and not self.state.cancelled
        if late and not isinstance(happening, (Started, Replied)):
            await self._step(Cancelled())
        await self._step(happening)

    async def _step(self, happening: Happening) -> None:
        self.state, requests = self._next(happening)
        for request in requests:
            await self._perform(request)

    def _next(self, happening: Happening) -> tuple[AgentState, list[Request]]:
        state, requests = loop.step(self._recipe.definition, self.state, happening)
        return replace(state, user=self._user.document()), requests

    async def _perform(self, request: Request) -> None:  # noqa: C901, PLR0912 - one case a request
        match request:
            case Append():
                self.messages.append(request.message)
                self._emit({"message": codec.unpack(request.message)})
            case Redact():
                self._redact(request.text)
            case Fire():
                self._begin(self._work.fire(request, self.state, self.messages))
            case CallModel():
                self._begin(self._work.call_model(request, self.state, self.messages))
            case RunTool():
                self._begin(self._work.run_tool(request, self.state))
            case Save(first=True):
                await self._store()
            case Save():
                self._dirty = True
            case Publish():
                self._unpublished.extend(request.questions)
                self._emit({"interrupts": request.questions})
            case Wait():
                self._begin(self._work.wait(request.seconds))
            case Finish():
                self._finish = request

    def _redact(self, text: str) -> None:
        if self.messages and self.messages[-1]["role"] == "user":
            last = len(self.messages) - 1
            self.messages[last] = {**self.messages[last], "content": redacted(self.messages[last], text)}
            self._stored = min(self._stored, last)

    # -- the store --------------------------------------------------------------------------------

    def _saved(self) -> Saved:
        state = replace(self.state, user=self._user.document())
        return Saved(document(state), self._stored, self.messages[self._stored :])

    async def _store(self) -> None:
        saved, questions = self._saved(), self._unpublished
        self._dirty, self._unpublished = False, []
        if questions:
            await self._desk.ask(questions, saved)
        else:
            await self._desk.save(saved)
        self._stored = saved.keep + len(saved.messages)

    # -- what runs beside the machine -------------------------------------------------------------

    def _begin(self, work: Happening | Coroutine[Any, Any, Happening]) -> None:
        if not inspect.iscoroutine(work):
            self._heard.put_nowait(cast("Happening", work))
            return
        task = asyncio.get_running_loop().create_task(self._report(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report(self, work: Coroutine[Any, Any, Happening]) -> None:
        try:
            self._heard.put_nowait(await work)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised where run() is awaited, never lost
            self._heard.put_nowait(_Crashed(error))

    # -- the result -------------------------------------------------------------------------------

    def _result(self) -> AgentResult:
        spoken = (message for message in reversed(self.messages) if message["role"] == "assistant")
        structured = self.state.structured
        if structured is not None and self._recipe.structured is not None:
            structured = self._recipe.structured.model_validate(structured)
        return AgentResult(
            stop_reason=self.state.stop_reason,
            message=codec.unpack(next(spoken, {"role": "assistant", "content": []})),
            interrupts=waits_for(self.state),
            state=self._user.get(),
            usage=dict(self.state.usage),
            structured_output=structured,
        )


@dataclass(frozen=True, slots=True)
class _Crashed:
    """Something beside the machine ended in an error that isn't the agent's."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class _Posted:
    """A happening whose sender waits until it was dealt with."""

    happening: Happening
    taken: asyncio.Future[None]


Heard = Happening | _Crashed | _Posted


def _ignore(event: dict[str, Any]) -> None:
    """Nobody listens."""
    del event
