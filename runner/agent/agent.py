"""The agent that users create: called directly, as a node of a graph, or as another agent's tool.

As a node it is a template: each execution works on copies and never changes the object. Called
directly, it keeps its conversation and state, and waits for answers at the point where it stopped.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pydantic

from runner import async_loop
from runner.agent.budgets import Budget, Price, checked_budgets
from runner.agent.checkpointer import DirectCheckpointer, VisitCheckpointer
from runner.agent.config import AgentConfig, checked_limits, checked_model, is_sequential
from runner.agent.context import AgentResult, UserState
from runner.agent.conversation import (
    as_messages,
    begin,
    begin_in_session,
    past_state,
    with_session,
)
from runner.agent.drive import Drive, Ending
from runner.agent.effects import Emit
from runner.agent.machine.protocol import AgentDefinition
from runner.agent.machine.state import AgentState, PassStage, open_questions, waits
from runner.agent.models.protocol import Model
from runner.agent.models.scripted import ScriptedModel
from runner.agent.run_events import RunEventWriter
from runner.agent.subagent import SubagentTool, abandon_calls
from runner.agent.tools import AgentTool, tools_by_name
from runner.errors import DefinitionError, ResponseError, UsageError
from runner.hooks import Callback, HookEvent, HookProvider, HookRegistry
from runner.records import codec, failures
from runner.records.asking import is_answered
from runner.records.budgets import AWAITED
from runner.records.checkpoints import session_key, session_of
from runner.records.codec import JSON, JSONObject
from runner.records.executors import Input, Visit, input_blocks, restorers
from runner.records.interrupts import Address, Interrupt, answers_from, is_answers
from runner.records.outcomes import Failed, Interrupted, Outcome, Succeeded
from runner.records.run import outermost

Executor = Literal["concurrent", "sequential"]
InputBlocks = Callable[[Any, Sequence[Input]], list[JSONObject]]
SessionId = str | Callable[[Mapping[str, Any]], str | None]


class Agent:
    """A model with tools, hooks and a memory.

    `limits` bounds one invocation by turns, output_tokens and total_tokens (`max_turns` and
    `max_tokens` set the first and the last). The model sees at most `conversation_window` messages.
    A rate-limited model is called up to `model_attempts` times; the first wait is `model_delay`
    seconds, and each further one twice as long. `tool_attempts` bounds a tool call's attempts.
    `session_id` names a conversation that a node of this agent continues in every run on the same
    store: a string, or a function of the invocation state (None: no session). It belongs to the
    outermost graph; `shared_session` opens it to all. `budgets` limit spending, also across runs,
    and are checked before each call; with them or with a `price`, `usage` also has modelCalls,
    toolCalls and costMicros (millionths).
    """

    kind = "agent"
    is_async = True

    def __init__(
        self,
        name: str = "agent",
        model: Model | None = None,
        tools: Iterable[Any] = (),
        system_prompt: str | list[dict[str, Any]] | None = None,
        hooks: Iterable[HookProvider | Callback] = (),
        *,
        state: Mapping[str, Any] | None = None,
        messages: list[dict[str, Any]] | None = None,
        tool_executor: Executor = "concurrent",
        description: str | None = None,
        structured_output_model: type[pydantic.BaseModel] | None = None,
        session_id: SessionId | None = None,
        shared_session: bool = False,
        conversation_window: int | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        limits: Mapping[str, int] | None = None,
        model_attempts: int = 6,
        model_delay: float = 4.0,
        tool_attempts: int | None = None,
        budgets: Sequence[Budget] = (),
        price: Price | None = None,
    ) -> None:
        """Check the parts; nothing runs yet.

        Raises:
            DefinitionError: the model, a tool, a limit or a budget can't be used.
        """
        self.name = name
        self.description = description
        self._session_id = session_id
        self._shares_session = shared_session
        fixed_session = session_id if isinstance(session_id, str) else None
        self.state = UserState(state)
        self.messages: list[JSONObject] = codec.unpack(as_messages(messages or []))
        self._first_messages = self._shown_messages = self.messages
        self.hooks = HookRegistry(tuple(hooks))
        definition = AgentDefinition(
            sequential=is_sequential(tool_executor),
            model_attempts=model_attempts,
            first_delay=model_delay,
            tool_attempts=tool_attempts,
            **checked_limits(
                {"turns": max_turns, "total_tokens": max_tokens, **(limits or {})}
            ),
        )
        self._config = AgentConfig(
            name,
            checked_model(model, name),
            tools_by_name(tools),
            self.hooks,
            definition,
            system_prompt=system_prompt,
            window=conversation_window,
            session_id=fixed_session,
            budgets=checked_budgets(budgets, price, name),
            price=price,
        ).for_call(None, structured_output_model)
        self._direct_calls = DirectCalls(self, fixed_session)
        self._input_blocks: InputBlocks = input_blocks

    @property
    def config(self) -> AgentConfig:
        """The agent's configuration."""
        return self._config

    @property
    def system_prompt(self) -> str | list[dict[str, Any]] | None:
        """The system prompt; it may be replaced between two calls."""
        return self._config.system_prompt

    @system_prompt.setter
    def system_prompt(self, prompt: str | list[dict[str, Any]] | None) -> None:
        self._config = replace(self._config, system_prompt=prompt)

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools."""
        output = self._config.definition.structured
        return [name for name in self._config.tools if name != output]

    @property
    def tool(self) -> ToolCaller:
        """The tools as functions: `clerk.tool.look_up(order=7)` returns the result of a call."""
        return ToolCaller(
            self._config,
            lambda prompt, config: async_loop.run(
                self._direct_calls.invoke(prompt, {}, config)
            ),
        )

    def add_hook(
        self,
        callback: Callback,
        event_type: type[HookEvent] | Sequence[type[HookEvent]] | None = None,
        *,
        order: int = 0,
    ) -> None:
        """Call `callback(event)` at events of a type, as `HookRegistry.add_callback` does.

        Raises:
            DefinitionError: a type isn't an event, or the callback can't be called.
        """
        self.hooks.add_callback(event_type, callback, order=order)

    def _join(self, handoff: AgentTool, blocks: InputBlocks) -> None:
        """Become a member of a swarm, with its tool and its form of inputs."""
        self._config = replace(
            self._config, tools=tools_by_name([*self._config.tools.values(), handoff])
        )
        self._input_blocks = blocks

    def as_tool(self, name: str | None = None, description: str | None = None) -> SubagentTool:
        """Make this agent a tool; its interrupts are passed up to the agent that calls it.

        Raises:
            DefinitionError: the agent overrides a method that a tool does not call.
        """
        tool_name = name or re.sub(r"[^a-zA-Z0-9_-]", "_", self.name)[:64]
        refuse_overrides(self)
        config = replace(self._config, name=tool_name)
        return SubagentTool(
            config, description or self.description, self._own_messages(), self.state.document()
        )

    def show(self, messages: list[dict[str, Any]]) -> None:
        """Show the messages of an in-process run; the next run starts from the earlier messages."""
        if self.messages is not self._shown_messages:
            self._first_messages = self.messages
        self.messages = self._shown_messages = messages

    def _own_messages(self) -> list[JSON]:
        is_shown = self.messages is self._shown_messages
        return as_messages(self._first_messages if is_shown else self.messages)

    # -- as a node --------------------------------------------------------------------------------

    def execute(self, visit: Visit) -> Outcome:
        """Run one execution of the node until it is done, fails or waits for a person.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
        """
        return async_loop.run(self._execute(visit))

    async def _execute(self, visit: Visit) -> Outcome:
        try:
            session_id = _session_of(self._session_id, visit.invocation_state)
        except Exception as error:  # noqa: BLE001 - raised by a user's function: the node's own failure
            return Failed.of(error)
        state, messages, stored_count = await self._begin(visit, session_id)
        if state.session:
            _, session_id = session_of(state.session.id)
        config = replace(self._config, session_id=session_id)
        writer = RunEventWriter(visit)
        drive = Drive(
            config,
            VisitCheckpointer(visit),
            state,
            messages,
            stored_count=stored_count,
            emit=writer.emit,
        )
        try:
            return _outcome(await drive.run())
        finally:
            await writer.end()

    async def _begin(
        self, visit: Visit, session_id: str | None
    ) -> tuple[AgentState, list[JSON], int]:
        """Return the state to continue from, the conversation, and how many messages are stored."""
        own_messages = self._own_messages()
        own_state = self.state.document()
        messages = own_messages if visit.document is None else list(visit.messages)
        stored_count = 0 if visit.document is None else len(messages)
        number = visit.address.visit
        past = past_state(visit.document, own_state, len(messages))
        if past.visit == number:
            return past, messages, stored_count
        # Large values are decoded here, off the loop that all nodes share.
        blocks = await async_loop.in_thread(
            lambda: self._input_blocks(visit.task, visit.inputs)
        )
        prompt = as_messages(blocks)
        if session_id is None:
            return begin(past, number, prompt, messages), messages, stored_count
        key = session_key("" if self._shares_session else outermost(visit.graph_id), session_id)
        session = await async_loop.in_thread(visit.recall, key)
        past = replace(past, user_state=own_state, length=len(own_messages))
        state = begin_in_session(past, number, prompt, key, session, own=own_messages)
        return state, [*own_messages, *session.messages], 0

    def abandon(self, document: JSONObject) -> None:
        """End work that tools began elsewhere for calls of a stored state that won't continue."""
        async_loop.run(abandon_calls(self._config.tools, document))

    # -- called directly --------------------------------------------------------------------------

    def __call__(
        self,
        prompt: Any = None,
        *,
        invocation_state: Mapping[str, Any] | None = None,
        limits: Mapping[str, int] | None = None,
        structured_output_model: type[pydantic.BaseModel] | None = None,
    ) -> AgentResult:
        """Run the agent on a text, content blocks or messages, or on the answers it waits for.

        `limits` and `structured_output_model` replace the agent's own until this invocation is
        done, even in the calls that bring its answers.

        Raises:
            ResponseError: the agent waits for answers and these can't be used; nothing was applied.
            DefinitionError: a limit or the model can't be used.
            UsageError: the prompt can't be used, or the agent is running already.
        """
        return async_loop.run(
            self.invoke_async(
                prompt,
                invocation_state=invocation_state,
                limits=limits,
                structured_output_model=structured_output_model,
            )
        )

    async def invoke_async(
        self,
        prompt: Any = None,
        *,
        invocation_state: Mapping[str, Any] | None = None,
        limits: Mapping[str, int] | None = None,
        structured_output_model: type[pydantic.BaseModel] | None = None,
    ) -> AgentResult:
        """Run the agent as a plain call does, on the caller's loop."""
        config = self._config.for_call(limits, structured_output_model)
        return await self._direct_calls.invoke(prompt, dict(invocation_state or {}), config)

    async def stream_async(
        self,
        prompt: Any = None,
        *,
        invocation_state: Mapping[str, Any] | None = None,
        limits: Mapping[str, int] | None = None,
        structured_output_model: type[pydantic.BaseModel] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run the agent and yield its stream events; the last is `{"result": AgentResult}`.

        Closing the stream early ends the invocation; after `await stream.aclose()` the agent can
        be called again.
        """
        events: asyncio.Queue[JSONObject | None] = asyncio.Queue()
        config = self._config.for_call(limits, structured_output_model)
        task = asyncio.ensure_future(
            self._direct_calls.invoke(
                prompt, dict(invocation_state or {}), config, events.put_nowait
            )
        )
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield {"result": await task}
        finally:
            task.cancel()
            await asyncio.wait([task])

    def cancel(self) -> None:
        """Stop the current direct call before its next model or tool call, from any thread."""
        self._direct_calls.cancel()


restorers[Agent.kind] = AgentResult.from_document


def refuse_overrides(agent: Agent) -> None:
    """Refuse an agent whose overridden invocation methods would be skipped.

    Nodes and tools run in steps that survive a crash, so they don't call the methods for direct
    calls.

    Raises:
        DefinitionError: a method for direct calls is overridden.
    """
    for name in ("__call__", "invoke_async", "stream_async"):
        if name in vars(agent) or getattr(type(agent), name) is not getattr(Agent, name):
            raise DefinitionError(
                f"agent {agent.name!r} overrides {name}, which only direct calls use: as a node or a "
                "tool it would be skipped. Use hooks, or call the agent in a function node."
            )


def _session_of(
    session_id: SessionId | None, invocation_state: Mapping[str, Any]
) -> str | None:
    """Return the session of a run.

    Raises:
        UsageError: the name isn't a non-empty string.
    """
    name = session_id(invocation_state) if callable(session_id) else session_id
    if name is not None and (not isinstance(name, str) or not name):
        raise UsageError(f"a session's id is a text, not {name!r}; None means no session.")
    return name


def _outcome(ending: Ending) -> Outcome:
    usage = dict(ending.state.usage)
    if ending.kind == "interrupt":
        # A placeholder for another visit's question has that visit as its reason.
        reasons = [wait.reason for wait in waits(ending.state) if wait.id.startswith(AWAITED)]
        awaits = next(filter(None, reasons), "")
        return Interrupted(open_questions(ending.state), ending.saved, usage, awaits=awaits)
    if ending.error is not None:
        failure = ending.state.failure
        return Failed(
            failure or failures.record(ending.error),
            ending.saved,
            usage,
            raised=failures.restore(failure) if failure else ending.error,
        )
    checkpoint, session = with_session(ending.state, ending.saved)
    return Succeeded(
        ending.result.to_document(), ending.result.output, usage, checkpoint, session
    )


class DirectCalls:
    """Memory of an agent between direct calls: a stored document like a node's.

    An invocation that waits continues with the config it began with.
    """

    def __init__(self, agent: Agent, session_id: str | None) -> None:
        self._agent = agent
        self._run_id = session_id or uuid.uuid4().hex
        self._document: JSONObject | None = None
        self._config = agent.config
        self._sums: dict[str, str] = {}
        self._visits = 0
        self._busy = threading.Lock()
        self._cancel = threading.Event()

    def cancel(self) -> None:
        self._cancel.set()

    async def invoke(
        self,
        prompt: Any,
        invocation_state: dict[str, Any],
        config: AgentConfig,
        emit: Emit | None = None,
    ) -> AgentResult:
        """Run one invocation with `config`, or resume the one that waits.

        Raises:
            ResponseError: the agent waits for answers and these can't be used; nothing was applied.
            UsageError: the agent is running already.
        """
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"agent {self._agent.name!r} is running already; wait until it is done."
            )
        try:
            return await self._invoke(prompt, invocation_state, config, emit)
        finally:
            self._busy.release()

    async def _invoke(
        self,
        prompt: Any,
        invocation_state: dict[str, Any],
        config: AgentConfig,
        emit: Emit | None,
    ) -> AgentResult:
        messages = as_messages(self._agent.messages)
        state, answers = self._begin(prompt, messages)
        if state.visit != self._visits:
            self._config = config
        self._visits = state.visit
        self._cancel.clear()
        address = Address(self._run_id, self._agent.name, state.visit)
        checkpointer = DirectCheckpointer(
            address, answers, invocation_state, messages, self._sums
        )
        drive = Drive(
            self._config,
            checkpointer,
            state,
            messages,
            stored_count=len(messages),
            cancel=self._cancel,
            emit=emit,
        )
        try:
            ending = await drive.run()
            await checkpointer.save(ending.saved)
        finally:
            # Without an ending, keep the last checkpoint, as after the death of a process.
            self._remember(checkpointer.document, checkpointer.messages)
        if ending.error is not None:
            raise ending.error
        return ending.result

    def _remember(self, document: JSONObject | None, messages: list[JSON]) -> None:
        if document is not None:
            self._document = document
            self._agent.messages = codec.unpack(messages)
            self._agent.state = UserState.restored(document["user_state"])

    def _begin(
        self, prompt: Any, messages: list[JSON]
    ) -> tuple[AgentState, dict[str, Interrupt]]:
        past = past_state(self._document, {}, len(messages))
        past = replace(past, user_state=self._agent.state.document())
        is_stopped = past.stage is not PassStage.DONE
        if open_questions(past) or is_answers(prompt) or (prompt == [] and is_stopped):
            return past, _answers(past, prompt, self._agent.name)
        return begin(past, self._visits + 1, as_messages(prompt), messages), {}


def _answers(state: AgentState, prompt: Any, name: str) -> dict[str, Interrupt]:
    """Check the answers together; an answer to an already answered question changes nothing."""
    answers = answers_from(prompt)
    if state.stage is PassStage.DONE:
        raise ResponseError(
            f"agent {name!r} waits for no answers: it has no open question. Send it new input."
        )
    unknown = [
        answer.interrupt_id for answer in answers if answer.interrupt_id not in state.questions
    ]
    if unknown:
        raise ResponseError(f"agent {name!r} did not ask {unknown}; nothing was applied.")
    questions: dict[str, Interrupt] = {}
    for answer in answers:
        question = state.questions[answer.interrupt_id]
        if not is_answered(question) and question.id not in questions:
            questions[question.id] = replace(question, response=answer.response)
    return questions


class ToolCaller:
    """The tools of an agent as functions; an underscore also stands for a hyphen of a name."""

    def __init__(
        self, config: AgentConfig, invoke: Callable[[str, AgentConfig], AgentResult]
    ) -> None:
        self._config, self._invoke = config, invoke

    def __getattr__(self, name: str) -> Callable[..., JSONObject]:
        """Return a function that calls the tool and returns its result, with status and content."""
        for tool in self._config.tools:
            if name in (tool, tool.replace("-", "_")):
                return partial(self._call, tool)
        raise AttributeError(f"agent {self._config.name!r} has no tool {name!r}.")

    def _call(self, tool: str, /, **arguments: Any) -> JSONObject:
        results: list[JSONObject] = []

        def reply(messages: list[JSONObject]) -> Any:
            results.extend(filter(None, [messages[-1]["content"][0].get("toolResult")]))
            use = {"toolUse": {"name": tool, "input": arguments}}
            return f"agent.tool.{tool} was called." if results else use

        config = replace(
            self._config,
            model=ScriptedModel([reply], usage={"totalTokens": 0}),
            definition=AgentDefinition(tool_attempts=self._config.definition.tool_attempts),
            budgets=(),
        )
        shown = json.dumps(arguments, default=repr)
        prompt = f"agent.tool.{tool} direct tool call.\nInput parameters: {shown}\n"
        ending = self._invoke(prompt, config).stop_reason
        if not results:
            raise UsageError(
                f"the call of {tool} has no result: the agent stopped with {ending!r}. If it asks a person, "
                "agent([]) returns the question, and the call goes on when the agent gets the answer."
            )
        return results[0]
