"""Effects beside the machine: model calls, tools and callbacks, each ending in one event."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import ValidationError

from runner import async_loop, hooks
from runner.agent.budgets import Meter
from runner.agent.checkpointer import Checkpointer
from runner.agent.config import AgentConfig
from runner.agent.context import AgentView, ToolContext
from runner.agent.hook_events import HookEvents
from runner.agent.machine.protocol import (
    ApprovalUsed,
    CallbackFailed,
    CallModel,
    Cancelled,
    FireHook,
    HookFired,
    MachineEvent,
    ModelReplied,
    RunTool,
    ToolAsked,
    ToolEnded,
    Waited,
)
from runner.agent.machine.state import AgentState, ModelReply, add_usage
from runner.agent.machine.tool_calls import error_result
from runner.agent.models.protocol import (
    INVALID,
    AgentMetadata,
    Assembly,
    ProviderMessages,
    call_name,
    is_overflow,
    is_throttled,
    own_ids,
    raise_delayed,
    storable_calls,
)
from runner.agent.tools import (
    AgentTool,
    FunctionTool,
    StructuredOutputTool,
    call_action,
    is_result,
    result_of,
    spec_of,
    typed_arguments,
    whole_arguments,
    whole_schema,
)
from runner.approvals import policies
from runner.approvals.ballots import Use
from runner.approvals.digests import Action
from runner.approvals.gate import Granted, decide
from runner.approvals.policies import CallContext, Policy
from runner.approvals.rules import Approval, Rule
from runner.errors import (
    ApprovalMismatch,
    ConflictError,
    InterruptExpired,
    InterruptRaised,
    InterruptWithdrawn,
    UsageError,
)
from runner.immutable import immutable
from runner.records import codec, failures
from runner.records.asking import Asker, judged_value, numbered_question
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.failures import ErrorRecord
from runner.records.interrupts import (
    Address,
    Interrupt,
    InterruptStatus,
    as_asked,
    default_answer,
)
from runner.records.run import Status

log = logging.getLogger(__name__)

Emit = Callable[[JSONObject], None]
Post = Callable[[MachineEvent], Awaitable[None]]
ToolOutcome = ToolEnded | ToolAsked | CallbackFailed

CANCEL_CHECK_INTERVAL = 0.1  # seconds, while waiting for a throttled model


@immutable
class Effects:
    """Carries out the commands of one execution; each effect gets the state at its command.

    `emit` takes stream events; `post` reports an event from inside a tool call and returns once the
    machine has taken it. `meter` counts for budgets. `callback_lock` keeps the sync callbacks of
    concurrent tool calls from overlapping.
    """

    config: AgentConfig
    checkpointer: Checkpointer
    hook_events: HookEvents
    view: AgentView
    emit: Emit
    post: Post
    meter: Meter | None = None
    callback_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    conversation: ProviderMessages = field(default_factory=ProviderMessages)

    async def wait(self, seconds: float) -> MachineEvent:
        """Sleep, checking regularly for a cancelled invocation."""
        self.emit({"event_loop_throttled_delay": seconds})
        remaining = seconds
        while remaining > 0 and not self.view.cancel_signal.is_set():
            await asyncio.sleep(min(remaining, CANCEL_CHECK_INTERVAL))
            remaining -= CANCEL_CHECK_INTERVAL
        return Waited()

    async def call_model(
        self, command: CallModel, state: AgentState, messages: list[JSON]
    ) -> MachineEvent:
        await self.checkpointer.check()
        name = type(self.config.model).__name__
        with observed_call(ObservedCall("model", self.config.name, name)) as end:
            event = await ModelCall(self, state, messages).run(force_output=command.forced)
            if isinstance(event, ModelReplied):
                if self.meter is not None:
                    event = replace(event, usage=await self.meter.replied(event.usage))
                end.usage = event.usage
                end.error = event.reply.exception.name if event.reply.exception else ""
            return event

    async def run_tool(self, command: RunTool, state: AgentState) -> MachineEvent:
        await self.checkpointer.check()
        tool = self.hook_events.tool_for(
            str(command.use["toolUseId"]), command.attempt, command.tool
        )
        await self.checkpointer.check_effect(tool.tool_name)
        command = replace(command, use=codec.unpack(command.use))
        with observed_call(ObservedCall("tool", self.config.name, tool.tool_name)) as end:
            event = await ToolExecution(self, command, tool, state.questions).run()
            if isinstance(event, ToolEnded) and self.meter is not None:
                event = replace(
                    event, usage=add_usage(event.usage, self.meter.ended(tool.tool_name))
                )
            if isinstance(event, ToolAsked):
                end.error = "interrupt"
            elif isinstance(event, ToolEnded) and event.result["status"] == "error":
                end.error = event.exception.name if event.exception else "error"
            return event

    async def run_callbacks(
        self,
        command: FireHook,
        event: hooks.AgentEvent,
        callbacks: Sequence[hooks.Callback],
        state: AgentState,
    ) -> MachineEvent:
        try:
            questions = await hooks.fire(event, callbacks, self.callback_lock)
            if questions:
                return HookFired(command.event, command.key, questions=questions)
            return HookFired(
                command.event, command.key, self.hook_events.changes(command, event, state)
            )
        except (ApprovalMismatch, ConflictError):
            raise
        except BaseException as error:
            if async_loop.is_cancelled():
                raise
            return self.callback_failed(command, error)

    def callback_failed(self, command: FireHook, error: BaseException) -> CallbackFailed:
        """Return the event that ends the invocation with a callback's error."""
        return CallbackFailed(command.event, command.key, self.record(error))

    def record(self, error: BaseException) -> ErrorRecord:
        """Return an exception's record; this execution's hook events show the exception itself."""
        record = failures.record(error)
        self.hook_events.remember(record, error)
        return record


# -- one model call ----------------------------------------------------------------------------------


class ModelCall:
    """One call of the model."""

    def __init__(self, effects: Effects, state: AgentState, messages: list[JSON]) -> None:
        self._effects = effects
        self._config = effects.config
        self._state, self._messages = state, messages

    async def run(self, *, force_output: bool) -> ModelReplied | Cancelled:
        """Stream the reply to its end.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
        """
        conversation = self._effects.conversation
        conversation.read(self._messages)
        window = window_start(
            conversation.cuts, len(self._messages), self._state.window, self._config.window
        )
        model_state = codec.unpack(self._state.model_state)
        assembly = Assembly()
        try:
            options = self._options(model_state, force_output=force_output)
            messages = conversation.prepare(window)
            if not await self._read(
                assembly, messages, self._specs(force_output=force_output), options
            ):
                return Cancelled()
            message, stop_reason = assembly.finished()
            message = storable_calls(message)
            message = own_ids(
                codec.pack(message, "the model's reply"),
                set(conversation.tool_use_ids),
                len(self._messages),
            )
            packed_state = codec.pack(model_state, "model_state")
        except (ApprovalMismatch, ConflictError):
            raise
        except BaseException as error:
            if async_loop.is_cancelled():
                raise
            raise_delayed(error)
            return self._failed(error, window)
        reply = ModelReply(message, stop_reason, None, "", None)
        return ModelReplied(reply, assembly.usage, packed_state, window, assembly.redact_user)

    async def _read(
        self,
        assembly: Assembly,
        messages: list[JSON],
        specs: list[JSON] | None,
        options: dict[str, Any],
    ) -> bool:
        prompt = self._config.system_prompt
        text = (
            prompt
            if prompt is None or isinstance(prompt, str)
            else "\n".join(block["text"] for block in prompt if "text" in block)
        )
        stream: Any = self._config.model.stream(messages, specs, text, **options)
        if not hasattr(stream, "aclose"):
            return await self._read_chunks(assembly, stream)
        async with aclosing(stream):
            return await self._read_chunks(assembly, stream)

    async def _read_chunks(self, assembly: Assembly, stream: Any) -> bool:
        async for chunk in stream:
            if self._effects.view.cancel_signal.is_set():
                return False
            assembly.add(chunk)
            self._effects.emit({"event": chunk})
            if text := _delta_text(chunk):
                self._effects.emit({"data": text, "delta": {"text": text}})
        return True

    def _specs(self, *, force_output: bool) -> list[JSON] | None:
        output_name = self._config.definition.structured
        tools = [
            tool
            for name, tool in self._config.tools.items()
            if not force_output or name == output_name
        ]
        return [spec_of(tool) for tool in tools] or None

    def _options(self, model_state: JSON, *, force_output: bool) -> JSONObject:
        prompt = self._config.system_prompt
        return {
            "tool_choice": {"tool": {"name": self._config.definition.structured}}
            if force_output
            else None,
            "system_prompt_content": [{"text": prompt}] if isinstance(prompt, str) else prompt,
            "invocation_state": self._effects.checkpointer.invocation_state,
            "model_state": model_state,
            "cancel_signal": self._effects.view.cancel_signal,
            "agent_metadata": AgentMetadata(self._config.session_id),
        }

    def _failed(self, error: BaseException, window: int) -> ModelReplied:
        record = self._effects.record(error)
        cut = None
        kind: Literal["throttled", "overflow", "other"] = "other"
        if is_throttled(error):
            kind = "throttled"
        elif is_overflow(error):
            kind = "overflow"
            cut = next_cut(self._effects.conversation.cuts, len(self._messages), window)
        return ModelReplied(ModelReply(None, "", record, kind, cut), window=window)


def _delta_text(chunk: JSONMapping) -> str | None:
    delta = (chunk.get("contentBlockDelta") or {}).get("delta") or {}
    text: str | None = delta.get("text")
    return text


# -- the context window ------------------------------------------------------------------------------


def window_start(cuts: Sequence[int], length: int, start: int, size: int | None) -> int:
    """Return the start of the window: as late as `size` messages require, never before `start`."""
    if size is None or length - start <= size:
        return start
    fitting = bisect_left(cuts, length - size)
    return cuts[fitting] if fitting < len(cuts) else max([start, *cuts[-1:]])


def next_cut(cuts: Sequence[int], length: int, start: int) -> int | None:
    """Return the start of a window about half the size; None if it can't be made smaller."""
    later = cuts[bisect_right(cuts, start) :]
    return (
        later[min(bisect_left(later, (start + length) // 2), len(later) - 1)] if later else None
    )


# -- one tool call -----------------------------------------------------------------------------------


class SubagentEvent(dict[str, Any]):
    """A stream event of an agent that serves as a tool."""


@runtime_checkable
class StatefulTool(Protocol):
    """A tool that runs itself because it keeps state or may ask several questions."""

    async def run_in(self, execution: ToolExecution) -> ToolOutcome:
        """Run the tool to its end, or to its questions."""


class ToolExecution:
    """One attempt of one tool call."""

    def __init__(
        self,
        effects: Effects,
        command: RunTool,
        tool: AgentTool,
        questions: Mapping[str, Interrupt],
    ) -> None:
        self.effects = effects
        self.command = command
        self.tool = tool
        self.questions = questions
        self.emit = effects.emit
        self.checkpointer = effects.checkpointer
        self._begun: Use | None = None

    @property
    def id(self) -> str:
        """The tool use id."""
        return str(self.command.use["toolUseId"])

    @property
    def idempotency_key(self) -> str:
        """The same text at every start of this attempt."""
        return f"{self.checkpointer.idempotency_key}/{call_name(self.id, self.command.attempt)}"

    def stream(self, data: Any) -> None:
        """Emit an item that the tool yielded while it works."""
        self.emit(
            {
                "type": "tool_stream",
                "tool_stream_event": {"tool_use": self.command.use, "data": data},
            }
        )

    async def run(self) -> ToolOutcome:
        """Run the tool; an exception becomes its result.

        Raises:
            ConflictError: this node belongs to another worker, or its run was stopped.
        """
        self.emit({"type": "tool_start", "tool_use": self.command.use})
        outcome = self._invalid() or await self._gate()
        if outcome is not None:
            pass
        elif isinstance(self.tool, StatefulTool):
            outcome = await self.tool.run_in(self)
        else:
            outcome = await self._run()
        status = "interrupt" if isinstance(outcome, ToolAsked) else "error"
        if isinstance(outcome, ToolEnded):
            status = outcome.result["status"]
            if self._begun is not None:
                came = Status.COMPLETED if status == "success" else Status.FAILED
                outcome = replace(
                    outcome, effect=self._begun.with_outcome(came, outcome.result)
                )
        self.emit({"type": "tool_end", "tool_use": self.command.use, "status": status})
        return outcome

    def _invalid(self) -> ToolOutcome | None:
        """Return the error of a call if the arguments written by the model can't be used."""
        if INVALID not in self.command.use:
            return None
        error = UsageError(
            f"{self.command.use[INVALID]}. The call was not made; send other arguments."
        )
        return self.failed(error)

    # Calls that people approve

    async def _gate(self) -> ToolOutcome | None:
        """Ask for approval, if the tool or a hook has a rule; return None if the call may begin.

        All hooks have run. People are shown the arguments as the tool gets them; arguments that
        don't fit the tool are an error for the model. The approved call is compared with the one
        about to begin; nothing can change after that, as no other code holds these copies.
        """
        gate = policies.checked(
            getattr(self.tool, "approval", None), f"tool {self.tool.tool_name!r}"
        )
        asked_by_hooks = self._asked_by_hooks()
        if gate is None and not asked_by_hooks:
            self._check_ungated()
            return None
        try:
            self._take_over(whole_arguments(self.tool, self.command.use["input"]))
            self.action(self.command.use["input"]).digest()
        except (ValidationError, UsageError) as error:
            return self.failed(error)
        for question in asked_by_hooks:
            approval = judged_value(self.address, as_asked(question), question)
            if (outcome := await self._decided(question, approval)) is not None:
                return outcome
        return None if gate is None else await self._ask(gate)

    async def _ask(self, gate: Rule | Policy) -> ToolOutcome | None:
        """Ask by the tool's rule, or follow the decision."""
        source = self.address.judge
        address = self.address
        where = (address.run_id, address.node_id, address.visit)
        context = CallContext(self.tool.tool_name, *where, source)
        args = self.command.use["input"]
        try:
            state = await async_loop.in_thread(decide, gate, self, args, context)
        except (ApprovalMismatch, ConflictError):
            raise
        except (InterruptExpired, InterruptWithdrawn) as error:
            return self.failed(error)
        except Exception as error:  # noqa: BLE001 - users' policies raise anything
            return CallbackFailed("tool", self.id, self.effects.record(error))
        if state is None:
            self._check_ungated()
            return None
        if isinstance(state, Granted):
            self._take_over(state.args)
            self._begun = state.use(self.idempotency_key)
            await self.effects.post(ApprovalUsed(self.id, self._begun))
            self._begin(state.effect)
            return None
        if state.approval is None:
            return ToolAsked(self.id, [state.question])
        if state.approval.approved:
            self._take_over(state.args)
        return await self._decided(state.question, state.approval)

    async def _decided(self, question: Interrupt, approval: Approval) -> ToolOutcome | None:
        """Return the outcome of a decided call that isn't made; None if the call begins now."""
        match approval.decision:
            case "reject":
                rejection = approval.response["rejected"]
                text = f"{question.responder} rejected this call, so it was not made"
                return ToolEnded(
                    self.id,
                    error_result(self.id, f"{text}: {rejection}" if rejection else text),
                )
            case "respond" | "expired":
                return self.returned(approval.response, 0.0)
        await self._use(question, approval)
        self._begin(approval.effect)
        return None

    def _begin(self, effect: str) -> None:
        """Let the approved call begin.

        Raises:
            ApprovalMismatch: the call is no longer the approved one.
        """
        # A reader of stream events or a tool of the same reply may hold the shown use and edit it.
        self._take_over(self.command.use["input"])
        if self.action(self.command.use["input"]).digest() != effect:
            raise ApprovalMismatch(
                f"the call of {self.tool.tool_name!r} that was about to begin is not the one that was "
                "approved; it was not made."
            )

    def _asked_by_hooks(self) -> list[Interrupt]:
        """List the answered questions about this call that hooks asked by a rule."""
        return [
            question
            for question in self._asked_in(f"before_tool_call:{self.id}")
            if question.action is not None
            and (question.status is InterruptStatus.ANSWERED or default_answer(question))
        ]

    def _asked_in(self, scope: str) -> Iterator[Interrupt]:
        key = (self.address.within + scope, self.command.attempt)
        questions = self.questions.values()
        return (question for question in questions if (question.scope, question.number) == key)

    # The call as the gate sees it: see `GatedCall`.

    @property
    def address(self) -> Address:
        """The address of the visit that makes the call."""
        return self.checkpointer.address

    @property
    def answers(self) -> Mapping[str, Interrupt]:
        """The questions of this visit."""
        return self.questions

    def question(self, step: int, rule: Rule, args: Any) -> Interrupt:
        """Build the question about this call.

        Raises:
            UsageError: the agent was called directly, or the rule can't be used here.
        """
        if self.address.judge is None:
            raise UsageError(
                f"tool {self.tool.tool_name!r} has a rule, so votes decide its calls, in a run of a graph: "
                "an agent that is called directly can't ask for votes."
            )
        return numbered_question(
            self.address,
            self.questions,
            self.tool.tool_name,
            f"{self.effects.config.name} asks to call {self.tool.tool_name}.",
            scope=self._scope(step),
            number=self.command.attempt,
            rule=rule,
            action=self.action(args),
            response_schema=whole_schema(self.tool) or None,
        )

    def earlier(self, step: int) -> Iterator[Interrupt]:
        """Return the questions already asked about this call."""
        return self._asked_in(self._scope(step))

    def _scope(self, step: int) -> str:
        return f"approval:{self.id}" + (f":{step}" if step else "")

    def use_key(self, step: int) -> str:
        """Return the idempotency key of the call."""
        del step
        return self.idempotency_key

    def policy_arguments(self, args: Any) -> JSONMapping:
        """Return the arguments as a function's own types, or as JSON data for any other tool."""
        return typed_arguments(self.tool, args)

    def edited(self, approval: Approval) -> JSON:
        """Return the whole arguments of an edit."""
        return whole_arguments(self.tool, approval.response)

    def action(self, args: Any) -> Action:
        """Return the action of calling the tool with these arguments."""
        return call_action(self.tool, args, self.address.judge)

    def _take_over(self, args: Any) -> None:
        tool_input = codec.unpack(codec.pack(args, "the arguments"))
        self.command = replace(self.command, use={**self.command.use, "input": tool_input})

    async def _use(self, question: Interrupt, approval: Approval) -> None:
        """Store the use of the approval, with the checkpoint from which this call begins."""
        self._begun = Use(question.id, approval.effect, self.idempotency_key)
        if question.used_key != self.idempotency_key:
            await self.effects.post(ApprovalUsed(self.id, self._begun))

    def _check_ungated(self) -> None:
        """Refuse a call that people were asked about if its tool no longer needs approval."""
        for question in self.earlier(0):
            if question.rule is not None:
                raise ApprovalMismatch(
                    f"{question.name!r} was to be called once it is approved, and no one approves "
                    f"{self.tool.tool_name!r}, which was about to be called in its place; it was not."
                )

    async def _run(self) -> ToolOutcome:
        scope = f"tool:{call_name(self.id, 1)}"
        asker = Asker(
            self.checkpointer.address, scope, self.command.attempt, self.questions, repeat=True
        )
        start = time.monotonic()
        outcome: ToolOutcome
        try:
            outcome = self.returned(await self._value(asker), time.monotonic() - start)
        except InterruptRaised:
            outcome = ToolAsked(self.id, asker.asked)
        except (ApprovalMismatch, ConflictError):
            raise
        except BaseException as error:
            if async_loop.is_cancelled():
                raise
            outcome = self.failed(error, time.monotonic() - start)
        if asker.mismatch is not None:
            raise asker.mismatch
        # A question counts even if the tool swallowed its exception, and so does a refused one.
        if asker.refused is not None:
            return CallbackFailed("tool", self.id, self.effects.record(asker.refused))
        return ToolAsked(self.id, asker.asked) if asker.asked else outcome

    def failed(self, error: BaseException, duration: float | None = None) -> ToolEnded:
        """Make the error the result of the call, for the model to read."""
        text = f"Error: {type(error).__name__} - {error}"
        return ToolEnded(
            self.id, error_result(self.id, text), self.effects.record(error), duration
        )

    def returned(self, value: Any, duration: float) -> ToolEnded:
        """Make the tool's return value the result of the call."""
        result = {**result_of(value, self.tool.tool_name), "toolUseId": self.id}
        output_value = None
        if isinstance(self.tool, StructuredOutputTool):
            output = self.tool.model.model_validate(self.command.use["input"])
            output_value = output.model_dump(mode="json")
        return ToolEnded(self.id, result, None, duration, output_value)

    async def _value(self, asker: Asker) -> Any:
        context = ToolContext(
            self.command.use,
            self.effects.view,
            asker,
            invocation_state=self.checkpointer.invocation_state,
            idempotency_key=self.idempotency_key,
            attempt=self.command.attempt,
            is_replay=self.command.replay,
            check=self.checkpointer.check_now,
            report_progress=self._progress_reporter(),
        )
        if isinstance(self.tool, FunctionTool):
            result_value = await self.tool.invoke(self.command.use["input"], context)
            if hasattr(result_value, "__aiter__"):
                return await self._last(result_value)
            return result_value
        state = {**self.checkpointer.invocation_state, "agent": self.effects.view}
        last_item = await self._last(
            self.tool.stream(self.command.use, state, tool_context=context)
        )
        result = (
            last_item.get("tool_result", last_item)
            if isinstance(last_item, Mapping)
            else last_item
        )
        if not is_result(result):
            raise UsageError(
                f"tool {self.tool.tool_name} ended without a result; yield one last."
            )
        return result

    def _progress_reporter(self) -> Callable[[float, str], object]:
        """Return a function that emits progress on the loop, as sync tools run on threads."""
        loop = asyncio.get_running_loop()
        use = self.command.use

        def report(fraction: float, note: str) -> None:
            event = {
                "type": "tool_progress",
                "tool_use": use,
                "fraction": fraction,
                "note": note,
            }
            loop.call_soon_threadsafe(self.emit, event)

        return report

    async def _last(self, stream: AsyncIterable[Any]) -> Any:
        """Read a stream and return its last item, the result."""
        last_item: Any = None
        async for last_item in stream:
            self.stream(last_item)
        return last_item


# Observers


@immutable
class ObservedCall:
    """A call about to begin: names only, never data. `name` is the model's class or the tool."""

    kind: Literal["model", "tool"]
    agent: str
    name: str


@dataclass(slots=True)
class CallEnd:
    """End of a call: the name of its error, "interrupt" if a tool asked a person, or "".

    `usage` counts a model call's tokens.
    """

    error: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)


CallObserver = Callable[[ObservedCall], AbstractContextManager[Callable[[CallEnd], object]]]
"""Enters before a call; its value is called with the end; exits afterwards, even after an error."""

call_observers: list[CallObserver] = []


@contextmanager
def observed_call(call: ObservedCall) -> Iterator[CallEnd]:
    """Show a call to every observer; the caller fills in its end."""
    end = CallEnd()
    contexts = []
    for observer in call_observers:
        try:
            around = observer(call)
            contexts.append((around, around.__enter__()))
        except Exception:
            log.exception("observer.failed: the call continues without it.")
    try:
        yield end
    finally:
        for around, finish in reversed(contexts):
            try:
                finish(end)
                around.__exit__(None, None, None)
            except Exception:
                log.exception("observer.failed: the call's result doesn't change.")
