"""The agent as users make it: called directly, as a node of a graph, or as a tool of another agent.

As a node it is a template: an execution works on copies and never changes the object. Called
directly it keeps its conversation and its state, and waits for answers where it stopped.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import pydantic

from runner import codec, failures, inputs, loops
from runner.agent import direct, session
from runner.agent.broadcast import Broadcast
from runner.agent.context import UserState
from runner.agent.desk import VisitDesk
from runner.agent.drive import Drive, Ending
from runner.agent.inner import InnerAgent
from runner.agent.memory import opened
from runner.agent.models.port import Model
from runner.agent.prompts import as_messages
from runner.agent.recipe import Recipe
from runner.agent.results import AgentResult
from runner.agent.state import AgentState, fresh, restored, waits_for
from runner.agent.tool_call import StructuredTool
from runner.agent.tools import toolbox
from runner.agent.values import Definition
from runner.errors import DefinitionError, UsageError
from runner.hooks import HookProvider, HookRegistry
from runner.outcomes import Failed, Interrupted, Outcome, Succeeded, Visit
from runner.results import restorers

JSON = Any
Executor = Literal["concurrent", "sequential"]
SessionId = str | Callable[[Mapping[str, Any]], str | None]


class Agent:
    """A model with tools, hooks and a memory.

    `limits` bounds one invocation: turns, output_tokens and total_tokens (also as `max_turns` and
    `max_tokens`). `conversation_window` is the number of messages the model sees at most.
    A model that refuses for its rate limit is called `model_attempts` times, after `model_delay`
    seconds and then twice as long each time; `tool_attempts` bounds retries of a tool call.
    `session_id` names a conversation that a node of this agent goes on with in every run on the same
    store: a text, or a function of the invocation state (None: no session). Model providers are told it.
    """

    kind = "agent"

    def __init__(
        self,
        name: str = "agent",
        model: Model | None = None,
        tools: Iterable[Any] = (),
        system_prompt: str | list[dict[str, Any]] | None = None,
        hooks: Iterable[HookProvider] = (),
        *,
        state: Mapping[str, Any] | None = None,
        messages: list[dict[str, Any]] | None = None,
        tool_executor: Executor = "concurrent",
        description: str | None = None,
        structured_output_model: type[pydantic.BaseModel] | None = None,
        session_id: SessionId | None = None,
        conversation_window: int | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        limits: Mapping[str, int] | None = None,
        model_attempts: int = 6,
        model_delay: float = 4.0,
        tool_attempts: int | None = None,
    ) -> None:
        """Put an agent together.

        Raises:
            DefinitionError: the model, a tool or a limit can't be used.
        """
        self.name, self.description, self._session_id = name, description, session_id
        fixed = session_id if isinstance(session_id, str) else None
        self.state = UserState(state)
        self.messages: list[dict[str, Any]] = codec.unpack(as_messages(messages or []))
        self._given = self._shown = self.messages
        self.hooks = HookRegistry(tuple(hooks))
        own = [] if structured_output_model is None else [StructuredTool(structured_output_model)]
        definition = Definition(
            sequential=_is_sequential(tool_executor),
            structured=own[0].tool_name if own else None,
            model_attempts=model_attempts,
            first_delay=model_delay,
            tool_attempts=tool_attempts,
            **_limits({"turns": max_turns, "total_tokens": max_tokens, **(limits or {})}),
        )
        parts = (_usable(model, name), toolbox([*tools, *own]), self.hooks, definition, system_prompt)
        self._recipe = Recipe(name, *parts, structured_output_model, conversation_window, fixed)
        self._direct = direct.Conversation(self, fixed or uuid.uuid4().hex)

    @property
    def recipe(self) -> Recipe:
        """What this agent is made of."""
        return self._recipe

    def as_tool(self, name: str | None = None, description: str | None = None) -> InnerAgent:
        """Make a tool of this agent; its interrupts are carried up to the agent that calls it."""
        tool_name = name or re.sub(r"[^a-zA-Z0-9_-]", "_", self.name)[:64]
        messages = self._own_messages()
        recipe = replace(self._recipe, name=tool_name)
        return InnerAgent(recipe, description or self.description, messages, self.state.document())

    def show(self, messages: list[dict[str, Any]]) -> None:
        """Let `messages` be those of a run in process; the next run begins with those given before."""
        if self.messages is not self._shown:
            self._given = self.messages
        self.messages = self._shown = messages

    def _own_messages(self) -> list[JSON]:
        return as_messages(self._given if self.messages is self._shown else self.messages)

    # -- as a node --------------------------------------------------------------------------------

    def execute(self, visit: Visit) -> Outcome:
        """Run one execution of the node until it is done, failed or waits for a person.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
        """
        return loops.run(self._visit(visit))

    async def _visit(self, visit: Visit) -> Outcome:
        try:
            session_id = _chosen(self._session_id, visit.invocation_state)
        except Exception as error:  # noqa: BLE001 - raised by a user's function: the node's own failure
            return Failed(failures.record(error))
        state, messages, stored = await self._opened(visit, session_id)
        recipe = replace(self._recipe, session_id=state.session.id if state.session else session_id)
        broadcast = Broadcast(visit)
        drive = Drive(recipe, VisitDesk(visit), state, messages, stored=stored, emit=broadcast.emit)
        try:
            return _outcome(await drive.run())
        finally:
            await broadcast.end()

    async def _opened(self, visit: Visit, session_id: str | None) -> tuple[AgentState, list[JSON], int]:
        """Return the state to go on from, the conversation, and how much of that is stored."""
        own, number = self._own_messages(), visit.address.visit
        messages = own if visit.document is None else list(visit.messages)
        stored = 0 if visit.document is None else len(messages)
        past = fresh(0, {}, 0) if visit.document is None else restored(visit.document)
        if session_id is not None and past.visit != number:
            found = await loops.in_thread(visit.recall, session_id)
            made = replace(past, user=self.state.document(), length=len(own), window=0, calls=[])
            state = session.begin(session_id, found, number, own=made, prompt=_prompt(visit))
            return state, [*own, *found.messages], 0
        user = self.state.document()
        return (
            opened(visit.document, messages, number, prompt=lambda: _prompt(visit), user=user),
            messages,
            stored,
        )

    # -- called directly --------------------------------------------------------------------------

    def __call__(
        self, prompt: Any = None, *, invocation_state: Mapping[str, Any] | None = None
    ) -> AgentResult:
        """Run the agent on a text, content blocks or messages; while it waits, on answers.

        Raises:
            ResponseError: it waits for answers and these can't be used; nothing was applied.
            UsageError: the prompt can't be used, or the agent is running already.
        """
        return loops.run(self.invoke_async(prompt, invocation_state=invocation_state))

    async def invoke_async(
        self, prompt: Any = None, *, invocation_state: Mapping[str, Any] | None = None
    ) -> AgentResult:
        """Do the same on the caller's loop."""
        return await self._direct.invoke(prompt, dict(invocation_state or {}))

    async def stream_async(
        self, prompt: Any = None, *, invocation_state: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Do the same and yield stream events as they come; the last one is `{"result": AgentResult}`."""
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        work = asyncio.ensure_future(
            self._direct.invoke(prompt, dict(invocation_state or {}), events.put_nowait)
        )
        work.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield {"result": await work}
        finally:
            work.cancel()

    def cancel(self) -> None:
        """End the direct call that runs now before its next model or tool call; from any thread."""
        self._direct.cancel()


restorers[Agent.kind] = AgentResult.from_document


def _prompt(visit: Visit) -> list[JSON]:
    return as_messages(inputs.blocks(visit.task, visit.inputs))


def _chosen(session_id: SessionId | None, invocation_state: Mapping[str, Any]) -> str | None:
    """Return the session of a run.

    Raises:
        UsageError: what names it is no text.
    """
    found = session_id(invocation_state) if callable(session_id) else session_id
    if found is not None and (not isinstance(found, str) or not found):
        raise UsageError(f"a session's id is a text, not {found!r}; None means no session.")
    return found


def _usable(model: object, name: str) -> Model:
    if not isinstance(model, Model):
        raise DefinitionError(f"agent {name!r} needs a model: an object with a `stream` method.")
    return model


def _is_sequential(executor: str) -> bool:
    if executor not in ("concurrent", "sequential"):
        raise DefinitionError(f"tool_executor is 'concurrent' or 'sequential', not {executor!r}.")
    return executor == "sequential"


def _limits(given: Mapping[str, int | None]) -> dict[str, Any]:
    unknown = given.keys() - {"turns", "output_tokens", "total_tokens"}
    bad = [name for name, limit in given.items() if limit is not None and limit < 1]
    if unknown or bad:
        raise DefinitionError(f"limits {sorted(unknown) or bad} can't be used: give whole numbers above 0.")
    return {
        "max_turns": given["turns"],
        "max_output_tokens": given.get("output_tokens"),
        "max_total_tokens": given["total_tokens"],
    }


def _outcome(ending: Ending) -> Outcome:
    usage = dict(ending.state.usage)
    if ending.kind == "interrupt":
        return Interrupted(waits_for(ending.state), ending.saved, usage)
    if ending.error is not None:
        return Failed(ending.state.failure or failures.record(ending.error), ending.saved, usage)
    saved, added = session.added(ending.state, ending.saved)
    return Succeeded(ending.result.to_document(), ending.result.output, usage, saved, added)
