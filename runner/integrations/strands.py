"""A `strands.Agent` as a node, using only its public interface (extra `strands`).

A factory builds the agent in the process that runs the node, and a snapshot restores it: messages
are stored as deltas, the rest of the snapshot in the node's document. A checkpoint is made before
and after each batch of tools, so a crash repeats at most one batch. Answers go back under the
agent's own interrupt ids. Errors of the agent fail the node.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as installed
from typing import Any

from runner import async_loop
from runner.agent.context import AgentResult
from runner.agent.machine.state import add_usage
from runner.approvals.gate import CallState
from runner.approvals.policies import Gates, ToolApprovals
from runner.approvals.rules import Approval
from runner.errors import (
    ApprovalMismatch,
    ConflictError,
    CorruptDocument,
    DefinitionError,
    NodeFailed,
    RetryAfter,
    needs_extra,
)
from runner.integrations.framework import (
    CallGate,
    FrameworkCall,
    FrameworkExecution,
    FrameworkNode,
    Past,
    Questions,
    restored,
    strict,
)
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONObject
from runner.records.executors import Visit, input_blocks, restorers
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Failed, Interrupted, Outcome, Succeeded

with needs_extra("strands", "StrandsAgent"):
    import strands
    from strands import hooks
    from strands.interrupt import InterruptException
    from strands.types.exceptions import EventLoopException, SnapshotException

KIND = "strands"

restorers[KIND] = AgentResult.from_document


class StrandsAgent(FrameworkNode):
    """A node that runs a Strands agent.

    Args:
        factory: builds a new agent at each call, with its model, tools, hooks and settings;
            conversation and state come from the store.
        approval: the rule that decides tool calls; or a function that takes a call's arguments and
            a `CallContext` and returns its rule, or None if the call needs no approval; or a
            mapping from tool names to either.
        name: the node's id, unless `add_node` gives one.
        version: change it if waiting runs must not continue with the new code.
    """

    kind = KIND
    built_type = strands.Agent

    def __init__(
        self,
        factory: Callable[[], strands.Agent],
        *,
        approval: ToolApprovals = None,
        name: str | None = None,
        version: str = "",
    ) -> None:
        super().__init__(factory, approval, name, version)
        self._built: weakref.WeakSet[strands.Agent] = weakref.WeakSet()

    def _cause(self, error: BaseException) -> BaseException:
        """Return the original error, as the event loop wraps errors of hooks and models."""
        while isinstance(error, EventLoopException):
            error = error.original_exception
        return error

    async def _execute(self, visit: Visit) -> Outcome:
        past = _past_of(visit)
        agent = await async_loop.in_thread(self._build)
        try:
            return await _StrandsExecution(visit, agent, past, self._approval).run()
        finally:
            # The agent belongs to this execution, so its tools' open resources are closed.
            await async_loop.in_thread(agent.cleanup)

    def _build(self) -> strands.Agent:
        agent: strands.Agent = self._factory()
        if agent in self._built:
            raise DefinitionError(
                "the factory of a StrandsAgent returned the same agent twice, so nothing was run: "
                "conversations would mix. Build a new agent at each call."
            )
        self._built.add(agent)
        return agent


def _in_order(result: Any) -> list[Any]:
    """Sort a turn's interrupts by their tool calls, as concurrent tools stop in any order."""
    blocks = [block["toolUse"] for block in result.message["content"] if "toolUse" in block]
    calls = {f":{call['toolUseId']}:": number for number, call in enumerate(blocks)}
    return sorted(
        result.interrupts or (),
        key=lambda interrupt: next((calls[call] for call in calls if call in interrupt.id), -1),
    )


@dataclass(kw_only=True)
class _StrandsPast(Past):
    """Stored state; `snapshot` lacks the messages, and `waits` is true while the agent asks.

    `calls` are the questions about calls that need approval; `gates` maps the agent's interrupt ids
    to the ids of these questions.
    """

    snapshot: JSONObject | None = None
    waits: bool = False
    calls: list[JSON] = field(default_factory=list)
    gates: dict[str, str] = field(default_factory=dict)
    structured: JSON = None


def _past_of(visit: Visit) -> _StrandsPast:
    past = restored(_StrandsPast, visit, StrandsAgent.__name__)
    number = visit.address.visit
    if past.visit == number:
        return past
    # A new visit keeps the conversation, but the old visit's questions are over.
    memory = copy.deepcopy(past.snapshot)
    if memory is not None:
        memory["data"].pop("interrupt_state", None)
    return _StrandsPast(visit=number, snapshot=memory)


class _StrandsExecution(FrameworkExecution[_StrandsPast]):
    """One execution: a new agent, and the state to store."""

    def __init__(
        self, visit: Visit, agent: strands.Agent, past: _StrandsPast, approval: Gates
    ) -> None:
        super().__init__(visit, past, KIND, approval)
        self._agent = agent
        self._calls = Questions(f"{KIND}_call", visit.address, visit.answers, past.calls)
        self._gate = CallGate(visit, self._calls, approval)
        self._asked: dict[str, Interrupt] = {}
        self._given: dict[str, int] = {}
        self._resuming = False
        self._cancelled = False

    async def run(self) -> Outcome:
        """Continue from the stored document."""
        self._restore()
        self._listen()
        self._given = _counts(self._agent)
        prompt = self._prompt()
        if not prompt and (again := self._questions.ask_again()):
            return Interrupted(again, self._saved(), self._usage(), keeps=True)
        while True:
            self._resuming = self._past.waits
            result = await self._invoke(prompt)
            if result.structured_output is not None:
                # If it comes in one batch with a question, only this result has it.
                self._past.structured = codec.pack(
                    result.structured_output, "structured_output"
                )
            if result.stop_reason != "interrupt":
                return self._ended(result)
            questions = [self._ask(interrupt) for interrupt in _in_order(result)]
            if len({question.id for question in questions}) < len(questions):
                raise NodeFailed(
                    "the model gave two tool calls of one reply the same id, and both ask: one answer would "
                    "count for both, so neither was answered. Retry the run, or use a model with unique ids."
                )
            self._past.waits = True
            checkpoint = self._saved()
            prompt = self._responses()
            if not prompt:
                return Interrupted(questions, checkpoint, self._usage())
            # An earlier attempt of this visit asked the same, and the answer has arrived.
            await async_loop.in_thread(self._visit.save, checkpoint)

    def _prompt(self) -> Any:
        if self._past.waits:
            return self._responses()
        return None if self._past.begun else input_blocks(self._visit.task, self._visit.inputs)

    async def _invoke(self, prompt: Any) -> Any:
        result: Any = None
        # The agent's loop writes live objects into this dict, so it gets a copy.
        state = copy.deepcopy(self._visit.invocation_state)
        try:
            async for event in self._agent.stream_async(prompt, invocation_state=state):
                if event_data := event.get("tool_interrupt_event"):
                    await self._publish(event_data["interrupts"])
                result = event.get("result", result)
        finally:
            if self._stopped:
                raise self._stopped
        self._visit.check()
        return result

    # -- questions --------------------------------------------------------------------------------

    def _ask(self, interrupt: Any) -> Interrupt:
        return self._asked.get(interrupt.id) or self._questions.ask(
            interrupt.id, interrupt.name, interrupt.reason
        )

    def _responses(self) -> list[dict[str, Any]]:
        """Return the answers that the agent doesn't have yet, by its interrupt ids.

        For a decision on a call the answer is just True: the gate reads it when the call begins.
        """
        answers = self._questions.hand_over()
        for inner, question in list(self._past.gates.items()):
            if question in self._visit.answers:
                answers[inner] = True
                del self._past.gates[inner]
        return [
            {"interruptResponse": {"interruptId": inner, "response": response}}
            for inner, response in answers.items()
        ]

    async def _approve(self, event: hooks.BeforeToolCallEvent) -> None:
        """Ask people to approve a call that needs it; it begins as approved, or is cancelled."""
        tool: Any = event.selected_tool
        if event.cancel_tool or tool is None or not self._gate.is_for(tool.tool_name):
            return
        call_id = event.tool_use["toolUseId"]
        schema = strict(tool.tool_spec["inputSchema"]["json"])
        call = FrameworkCall(
            call_id,
            tool.tool_name,
            event.tool_use["input"],
            schema,
            ("approve", "edit", "reject"),
        )
        call_state = await async_loop.in_thread(self._gate.ask, call, None)
        args = event.tool_use["input"]
        match call_state:
            case str():
                event.cancel_tool = call_state
            case Interrupt():
                try:
                    event.interrupt(call_state.id)
                except InterruptException as error:
                    self._asked[error.interrupt.id] = call_state
                    self._past.gates[error.interrupt.id] = call_state.id
                    raise
                raise ApprovalMismatch(
                    f"the agent has an answer to {call_state.id}, which nobody has answered."
                )
            case CallState(approval=Approval() as approval):
                if not approval.approved:
                    rejection = approval.response["rejected"]
                    event.cancel_tool = (
                        f"the call was rejected{rejection and ': '}{rejection or ''}"
                    )
                args = call_state.args
        if event.cancel_tool:
            return
        # A hook or another tool may hold the event's data and change it.
        event.tool_use = {**event.tool_use, "input": copy.deepcopy(args)}
        await async_loop.in_thread(self._gate.begin, tool.tool_name, args, schema, call_id)
        self._calls.close(call_id)

    async def _publish(self, interrupts: Iterable[Any]) -> None:
        """Publish questions while other tools still run, beside the last stored snapshot."""
        shown = {entry["id"] for entry in self._past.questions} | self._visit.answers.keys()
        new_questions = [
            question for question in map(self._ask, interrupts) if question.id not in shown
        ]
        if new_questions and self._past.snapshot is not None:
            # That snapshot lacks this execution's answers and still needs them.
            self._past.questions = self._questions.open_document(self._past.questions)
            self._past.calls = self._calls.open_document(self._past.calls)
            await async_loop.in_thread(
                self._visit.ask, new_questions, self._messages.unchanged(self._document())
            )

    # -- storage ----------------------------------------------------------------------------------

    def _restore(self) -> None:
        if self._past.snapshot is None:
            return
        snapshot = codec.unpack(self._past.snapshot)
        snapshot["data"]["messages"] = codec.unpack(self._messages.stored)
        try:
            self._agent.load_snapshot(strands.Snapshot.from_dict(snapshot))
        except (SnapshotException, KeyError, TypeError, ValueError) as error:
            raise CorruptDocument(
                f"strands-agents {installed('strands-agents')} can't load the snapshot that version "
                f"{self._past.library or '(unknown)'} stored: {error}. Run the node with that version."
            ) from error

    def _listen(self) -> None:
        order = hooks.HookOrder.SDK_LAST
        self._agent.add_hook(self._model_begins, hooks.BeforeModelCallEvent, order=order)
        self._agent.add_hook(self._tool_begins, hooks.BeforeToolCallEvent, order=order)
        self._agent.add_hook(self._tools_begin, hooks.BeforeToolsEvent, order=order)
        self._agent.add_hook(self._tool_ended, hooks.AfterToolCallEvent, order=order)
        self._agent.add_hook(self._message_added, hooks.MessageAddedEvent, order=order)
        self._agent.add_hook(self._ends, hooks.AfterInvocationEvent, order=order)

    def _model_begins(self, event: hooks.BeforeModelCallEvent) -> None:
        del event
        self._past.begun = True
        self._visit.check()

    async def _tool_begins(self, event: hooks.BeforeToolCallEvent) -> None:
        self._visit.check()
        names = {event.tool_use["name"], getattr(event.selected_tool, "tool_name", "")}
        for name in sorted(names - {""}):
            await async_loop.in_thread(self._visit.check_effect, name)
        try:
            await self._approve(event)
        except (ApprovalMismatch, ConflictError) as error:
            self._stopped = error
            raise

    async def _tools_begin(self, event: hooks.BeforeToolsEvent) -> None:
        # This check comes before any tool begins, so that none is repeated after the thaw.
        for block in event.message["content"]:
            if "toolUse" in block:
                await async_loop.in_thread(self._visit.check_effect, block["toolUse"]["name"])
        # A resumed batch begins from the pause, which is already stored.
        if not self._resuming:
            await async_loop.in_thread(self._visit.save, self._saved())

    def _tool_ended(self, event: hooks.AfterToolCallEvent) -> None:
        # Otherwise the agent would turn it into a result for the model.
        if isinstance(event.exception, RetryAfter):
            raise event.exception

    async def _message_added(self, event: hooks.MessageAddedEvent) -> None:
        if self._past.begun and any(
            "toolResult" in block for block in event.message["content"]
        ):
            self._resuming = self._past.waits = False
            await async_loop.in_thread(self._visit.save, self._saved())

    def _ends(self, event: hooks.AfterInvocationEvent) -> None:
        self._cancelled = event.agent.cancel_signal.is_set()

    def _saved(self) -> Saved:
        snapshot = self._agent.take_snapshot(preset="session").to_dict()
        messages = codec.pack(snapshot["data"].pop("messages"), "the agent's messages")
        self._past.snapshot = codec.pack(snapshot, "the agent's snapshot")
        self._past.questions = self._questions.document()
        self._past.calls = self._calls.document()
        return self._messages.saved(self._document(), messages)

    def _document(self) -> JSONObject:
        return {
            **vars(self._past),
            "library": installed("strands-agents"),
            "usage": self._usage(),
        }

    # -- the end ----------------------------------------------------------------------------------

    def _usage(self) -> dict[str, int]:
        """Return this visit's usage: the stored usage, and the growth in this execution."""
        now = _counts(self._agent)
        growth = {name: count - self._given.get(name, 0) for name, count in now.items()}
        return add_usage(self._past.usage, growth)

    def _ended(self, result: Any) -> Outcome:
        if result.stop_reason == "checkpoint":
            raise DefinitionError(
                "the agent was built with checkpointing=True and stopped; leave that out: the node makes "
                "checkpoints itself."
            )
        agent_result = AgentResult(
            stop_reason=result.stop_reason,
            message={"role": "assistant", "content": result.message["content"]},
            state=self._agent.state.get(),
            usage=self._usage(),
            structured_output=codec.unpack(self._past.structured),
        )
        if self._cancelled and result.stop_reason == "cancelled":
            return Failed.of(
                NodeFailed(f"the agent was cancelled. {agent_result.output}".strip())
            )
        return Succeeded(
            agent_result.to_document(), agent_result.output, self._usage(), self._saved()
        )


def _counts(agent: strands.Agent) -> dict[str, int]:
    usage: Mapping[str, Any] = agent.event_loop_metrics.accumulated_usage
    return {name: int(count) for name, count in usage.items()}
