"""A `pydantic_ai.Agent` as a node (extra `pydantic-ai`).

Its deferred tool calls become interrupts: calls that need approval, questions, and calls executed
elsewhere. The message history is stored as JSON by the framework's own type adapters. The framework
takes all answers of a batch at once, so the node waits for the last one. A checkpoint is made
before and after each batch of tools. Errors of the agent fail the node.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from runner import async_loop
from runner.agent.machine.state import add_usage
from runner.approvals.gate import CallState
from runner.approvals.policies import Gates, ToolApprovals
from runner.approvals.rules import Approval, Rule
from runner.errors import CorruptDocument, UsageError, needs_extra
from runner.integrations.framework import (
    ANYTHING,
    Approved,
    Asked,
    Denied,
    FrameworkCall,
    FrameworkExecution,
    FrameworkNode,
    Past,
    approval,
    packed,
    strict,
    usage_of,
)
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.executors import Visit, input_blocks
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Interrupted, Outcome, Succeeded

with needs_extra("pydantic-ai", "PydanticAIAgent"):
    from pydantic_ai import (
        Agent,
        ApprovalRequired,
        BinaryContent,
        DeferredToolRequests,
        DeferredToolResults,
        ToolApproved,
        ToolDenied,
    )
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ToolCallPart,
    )
    from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

KIND = "pydantic_ai"

Read = TypeVar("Read")

_requests: TypeAdapter[DeferredToolRequests] = TypeAdapter(DeferredToolRequests)


class PydanticAIAgent(FrameworkNode):
    """A node that runs a pydantic-ai agent.

    The agent's `output_type` must include `DeferredToolRequests`, as the framework asks of every
    agent with deferred tools. A call that needs approval is answered with true or false, with
    `{"kind": "tool-approved", "override_args": {...}}` or `{"kind": "tool-denied", "message": ...}`;
    any other call with its result.

    Args:
        factory: builds the agent, with its model, tools and instructions, in every process.
        deps: makes the agent's dependencies from the invocation state.
        approval: the rule that decides calls of the tools that need approval; or a function that
            takes a call's arguments and a `CallContext` and returns its rule, or None if the call
            needs no approval; or a mapping from tool names to either. Without it any answer is
            accepted.
        name: the node's id, unless `add_node` gives one.
        version: change it if waiting runs must not continue with the new code.
    """

    kind = KIND
    built_type = Agent

    def __init__(
        self,
        factory: Callable[[], Agent[Any, Any]],
        *,
        deps: Callable[[JSONObject], Any] | None = None,
        approval: ToolApprovals = None,
        name: str | None = None,
        version: str = "",
    ) -> None:
        super().__init__(factory, approval, name, version)
        self._deps = deps

    async def _execute(self, visit: Visit) -> Outcome:
        execution = _PydanticExecution(visit, self._past(_PydanticPast, visit), self._approval)
        agent = await async_loop.in_thread(self._factory)
        deps = (
            await async_loop.in_thread(self._deps, visit.invocation_state)
            if self._deps
            else None
        )
        return await execution.run(agent, deps)


@dataclass(kw_only=True)
class _PydanticPast(Past):
    """Stored state; `requests` holds a waiting agent's deferred calls, `schemas` their tools'."""

    requests: JSON = None
    schemas: JSONObject = field(default_factory=dict)


class _PydanticExecution(FrameworkExecution[_PydanticPast]):
    """One execution: the agent's input, and the state to store."""

    distribution = "pydantic-ai-slim"

    def __init__(self, visit: Visit, past: _PydanticPast, approval: Gates) -> None:
        super().__init__(visit, past, KIND, approval)
        self._usage = dict(past.usage)

    async def run(self, agent: Agent[Any, Any], deps: Any) -> Outcome:
        """Continue from the stored document."""
        self._visit.check()
        messages = codec.unpack(self._messages.stored)
        while True:
            requests = self._waits_for()
            call_states = await async_loop.in_thread(self._ask_all, requests)
            if open_questions := self._unanswered(call_states.values()):
                return Interrupted(open_questions, self._saved(messages), self._usage)
            history = _read(ModelMessagesTypeAdapter, messages, "messages")
            results = self._results(requests, call_states)
            toolsets = [_GatedToolset(each, self) for each in agent.toolsets]
            with agent.override(toolsets=toolsets, tools=[]):
                output, messages = await self._invoke(agent, deps, history, results)
            if not isinstance(output, DeferredToolRequests):
                return self._ended(output, messages)
            self._past.requests = _requests.dump_python(output, mode="json")

    async def _invoke(
        self,
        agent: Agent[Any, Any],
        deps: Any,
        history: list[ModelMessage],
        results: DeferredToolResults | None,
    ) -> tuple[Any, list[JSON]]:
        prompt = None if self._past.begun else _prompt(self._visit)
        usage = self._usage
        async with agent.iter(
            prompt, message_history=history, deferred_tool_results=results, deps=deps
        ) as run:
            async for step in run:
                self._visit.check()
                self._usage = add_usage(usage, _counts(run.usage))
                await self._checkpoint(step, run.all_messages(), resuming=results is not None)
            self._usage = add_usage(usage, _counts(run.usage))
        assert run.result is not None  # noqa: S101 - a run that was read to its end has a result
        self._past.begun, self._past.requests = True, None
        output = run.result.output
        if isinstance(output, DeferredToolRequests):
            tools = run.ctx.deps.tool_manager.tools or {}
            output.approvals = [_whole(call, tools) for call in output.approvals]
            self._past.schemas = {
                name: _schema(tools[name])
                for name in sorted({call.tool_name for call in output.approvals} & tools.keys())
            }
        return output, _dumped(run.result.all_messages())

    async def _checkpoint(
        self, step: Any, messages: list[ModelMessage], *, resuming: bool
    ) -> None:
        """Store the conversation before and after a batch of tools."""
        if Agent.is_call_tools_node(step) and step.model_response.tool_calls:
            for call in step.model_response.tool_calls:
                await async_loop.in_thread(self._visit.check_effect, call.tool_name)
            # A resumed batch begins from the pause, which is already stored.
            if resuming and self._past.requests is not None:
                return
        elif Agent.is_model_request_node(step) and _returns(step.request):
            messages = [*messages, step.request]
        else:
            return
        self._past.begun, self._past.requests = True, None
        await async_loop.in_thread(self._visit.save, self._saved(_dumped(messages)))

    def _saved(self, messages: list[JSON]) -> Saved:
        self._past.usage = self._usage
        return self._messages.saved(self._state(), codec.pack(messages, "the agent's messages"))

    # -- questions --------------------------------------------------------------------------------

    def _waits_for(self) -> DeferredToolRequests:
        if self._past.requests is None:
            return DeferredToolRequests()
        return _read(_requests, self._past.requests, "deferred calls")

    def _ask_all(self, requests: DeferredToolRequests) -> dict[str, Asked]:
        """Ask about all waiting calls, and return the results by call id."""
        call_states: dict[str, Asked] = {}
        for call in requests.approvals:
            if self._gate.is_for(call.tool_name):
                schema = self._past.schemas.get(call.tool_name)
                decisions = ("approve", "edit", "reject")
                framework_call = FrameworkCall(
                    call.tool_call_id, call.tool_name, call.args_as_dict(), schema, decisions
                )
                call_states[call.tool_call_id] = self._gate.ask(framework_call, None)
            else:
                call_states[call.tool_call_id] = self._ask(
                    requests, call, approval.json_schema()
                )
        return call_states | {
            call.tool_call_id: self._ask(requests, call, None) for call in requests.calls
        }

    def _ask(
        self, requests: DeferredToolRequests, call: ToolCallPart, schema: JSON
    ) -> Interrupt:
        reason = {
            "kind": requests.kind(call.tool_call_id),
            "tool": call.tool_name,
            "args": call.args_as_dict(),
            "metadata": requests.metadata.get(call.tool_call_id),
        }
        return self._questions.ask(
            call.tool_call_id, call.tool_name, reason, response_schema=schema
        )

    def _results(
        self, requests: DeferredToolRequests, call_states: Mapping[str, Asked]
    ) -> DeferredToolResults | None:
        if not requests.approvals and not requests.calls:
            return None
        answers = self._questions.hand_over()
        return DeferredToolResults(
            calls={call.tool_call_id: answers[call.tool_call_id] for call in requests.calls},
            approvals={
                call.tool_call_id: _decision(
                    call_states[call.tool_call_id], answers.get(call.tool_call_id), call
                )
                for call in requests.approvals
            },
            metadata=requests.metadata,
        )

    async def begin(self, tool: ToolsetTool[Any], args: JSONObject, context: Any) -> None:
        """Let a call begin if it has any approval it needs.

        Raises:
            ApprovalRequired: people must be asked about it. ApprovalMismatch: nobody approved it.
        """
        name = tool.tool_def.name
        is_approved = context.tool_call_approved
        is_for_all = isinstance(self._approval, Rule)
        if not self._gate.is_for(name) or (
            is_for_all and tool.tool_def.kind != "unapproved" and not is_approved
        ):
            return
        whole = ANYTHING.dump_python(args, mode="json")
        if not (is_approved or is_for_all):
            rule = await async_loop.in_thread(self._gate.rule, name, whole)
            if rule is not None:
                raise ApprovalRequired
        call_id = context.tool_call_id or ""
        await async_loop.in_thread(self._gate.begin, name, whole, _schema(tool), call_id)

    # -- the end ----------------------------------------------------------------------------------

    def _ended(self, output: Any, messages: list[JSON]) -> Succeeded:
        return Succeeded(*packed(output), self._usage, self._saved(messages))


@dataclass
class _GatedToolset(WrapperToolset[Any]):
    """An agent's tools, whose calls begin only if the gate allows it."""

    execution: _PydanticExecution

    async def call_tool(
        self, name: str, tool_args: JSONObject, ctx: Any, tool: ToolsetTool[Any]
    ) -> Any:
        """Call a tool if the call may begin."""
        await self.execution.begin(tool, tool_args, ctx)
        return await super().call_tool(name, tool_args, ctx, tool)


def _schema(tool: ToolsetTool[Any]) -> JSON:
    return strict(tool.tool_def.parameters_json_schema)


def _whole(call: ToolCallPart, tools: Mapping[str, Any]) -> ToolCallPart:
    """Return a call with its validated arguments, or unchanged if they don't survive JSON."""

    def validated(args: JSON) -> Any:
        values = tools[call.tool_name].args_validator.validate_python(args)
        return ANYTHING.dump_python(values, mode="json")

    try:
        whole = validated(call.args_as_dict())
        return replace(call, args=whole) if validated(whole) == whole else call
    except (KeyError, ValueError):
        return call


def _decision(
    call_states: Asked, answer: Any, call: ToolCallPart
) -> bool | ToolApproved | ToolDenied:
    """Return a rule's decision, or the answer to a plain question, in the framework's form."""
    match call_states:
        case None:
            return ToolApproved(override_args=call.args_as_dict())
        case str():
            return ToolDenied(call_states)
        case CallState(approval=Approval() as decided, args=args):
            if decided.approved:
                return ToolApproved(override_args=args)
            return ToolDenied(str(decided.response["rejected"] or "The tool call was denied."))
    return _approved(answer, call)


def _approved(response: Any, call: ToolCallPart) -> bool | ToolApproved | ToolDenied:
    match approval.validate_python(response):
        case Approved(override_args=args):
            return ToolApproved(override_args=call.args_as_dict() if args is None else args)
        case Denied(message=message):
            return ToolDenied(message)
        case is_approved:
            return is_approved and ToolApproved(override_args=call.args_as_dict())


def _read(adapter: TypeAdapter[Read], document: JSON, description: str) -> Read:
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        raise CorruptDocument(
            f"pydantic-ai {installed('pydantic-ai-slim')} can't read the {description} that another version "
            f"of it has stored: {error}. Run the node with that version."
        ) from error


def _dumped(messages: list[ModelMessage]) -> list[JSON]:
    documents: list[JSON] = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return documents


def _returns(request: ModelRequest) -> bool:
    return any(
        message_part.part_kind in ("tool-return", "retry-prompt")
        for message_part in request.parts
    )


def _counts(usage: Any) -> dict[str, int]:
    return usage_of(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=usage.input_tokens + usage.output_tokens,
        cacheReadInputTokens=usage.cache_read_tokens,
        cacheWriteInputTokens=usage.cache_write_tokens,
    )


def _prompt(visit: Visit) -> str | list[str | BinaryContent]:
    items = [_part(block) for block in input_blocks(visit.task, visit.inputs)]
    texts = [item for item in items if isinstance(item, str)]
    return "\n".join(texts) if len(texts) == len(items) else items


def _part(block: JSONMapping) -> str | BinaryContent:
    if "text" in block:
        return str(block["text"])
    for kind in ("image", "document"):
        if kind in block and "bytes" in block[kind]["source"]:
            media = (
                mimetypes.guess_type(f"file.{block[kind]['format']}")[0]
                or "application/octet-stream"
            )
            return BinaryContent(block[kind]["source"]["bytes"], media_type=media)
    raise UsageError(
        f"a content block with {sorted(block)} can't be given to a pydantic-ai agent."
    )
