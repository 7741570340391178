"""An agent of the OpenAI Agents SDK as a node (extra `openai-agents`).

The SDK's `RunState` is in the node's document. Each tool call that needs approval, also one made by
an agent that is itself a tool, is one question with its exact name and arguments. A rule may decide
it. The SDK accepts approvals and rejections, but no edited arguments. The agent continues once all
are answered. After a crash it repeats its work since the last pause. Errors of the agent fail the
node.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version as installed
from typing import Any

from pydantic import StrictBool, TypeAdapter

from runner import async_loop
from runner.approvals.gate import CallState
from runner.approvals.policies import Gates, ToolApprovals
from runner.approvals.rules import Approval, Rule
from runner.errors import CorruptDocument, DefinitionError, UsageError, needs_extra
from runner.integrations.framework import (
    Asked,
    Denied,
    FrameworkCall,
    FrameworkExecution,
    FrameworkNode,
    Past,
    inner_name,
    packed,
    strict,
    text_input,
    usage_of,
    whole_call,
)
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONObject, kind_of
from runner.records.executors import Visit
from runner.records.outcomes import Interrupted, Outcome, Succeeded

with needs_extra("openai-agents", "OpenAIAgent"):
    from agents import (
        Agent,
        AgentHooks,
        FunctionTool,
        RunConfig,
        RunHooks,
        Runner,
        RunState,
        UserError,
    )
    from agents.items import ToolApprovalItem

KIND = "openai_agents"

_answer: TypeAdapter[bool | Denied] = TypeAdapter(StrictBool | Denied)


class OpenAIAgent(FrameworkNode):
    """A node that runs an agent of the OpenAI Agents SDK.

    A call that needs approval is answered with true or false, or with
    `{"kind": "tool-denied", "message": ...}`, whose message goes to the model.

    Args:
        factory: builds the agent and the agents it hands over to; it is called for each execution.
        input: makes the agent's input from the visit; without it the task and the inputs become a
            text.
        context: makes the context of tools and hooks, which is not stored; without it a dictionary
            with the visit's `idempotency_key`.
        approval: the rule that decides calls of the tools that need approval; or a function that
            takes a call's arguments and a `CallContext` and returns its rule, or None if the call
            needs no approval; or a mapping from tool names to either. Without it any answer is
            accepted.
        run_config: the SDK's settings for a run.
        max_turns: the maximum of model calls in one visit; None for no limit.
        name: the node's id, unless `add_node` gives one.
        version: change it if waiting runs must not continue with the new code.
    """

    kind = KIND
    built_type = Agent

    def __init__(
        self,
        factory: Callable[[], Agent[Any]],
        *,
        input: Callable[[Visit], Any] | None = None,  # noqa: A002 - as the SDK calls it
        context: Callable[[Visit], Any] | None = None,
        approval: ToolApprovals = None,
        run_config: RunConfig | None = None,
        max_turns: int | None = 10,
        name: str | None = None,
        version: str = "",
    ) -> None:
        super().__init__(factory, approval, name, version)
        self._input, self._context = input, context
        self._options = {"run_config": run_config, "max_turns": max_turns}

    def _cause(self, error: BaseException) -> BaseException:
        """Return the error raised by a tool, which the SDK wraps."""
        return (isinstance(error, UserError) and error.__cause__) or error

    async def _execute(self, visit: Visit) -> Outcome:
        past = self._past(_OpenAIPast, visit)
        visit.check()
        agent = await async_loop.in_thread(self._factory)
        context = await async_loop.in_thread(self._context or _context, visit)
        execution = _OpenAIExecution(visit, past, self._approval, self._options)
        return await execution.run(agent, context, self._input or text_input)


@dataclass(kw_only=True)
class _OpenAIPast(Past):
    """Stored state; `state` is the SDK's state of a waiting agent."""

    state: JSON = None


class _OpenAIExecution(FrameworkExecution[_OpenAIPast]):
    """One execution: the agent's input, and the state to store."""

    distribution = "openai-agents"

    def __init__(
        self, visit: Visit, past: _OpenAIPast, approval: Gates, options: dict[str, Any]
    ) -> None:
        super().__init__(visit, past, KIND, approval)
        self._options = options
        self._calls: list[object] = []

    async def run(
        self, agent: Agent[Any], context: Any, make: Callable[[Visit], Any]
    ) -> Outcome:
        """Continue from the stored document."""
        for each in _reachable(agent):
            each.hooks = _checked(each.hooks or AgentHooks())
        for each in (agent, *_reachable(agent)):
            self._prepare_tools(each)
        _current.set(self)
        while True:
            if self._past.state is None:
                given = await async_loop.in_thread(make, self._visit)
            else:
                given = await self._restored_state(agent, context)
                calls = given.get_interruptions()
                questions = await async_loop.in_thread(self._ask_all, calls)
                if open_questions := self._unanswered(questions):
                    return Interrupted(open_questions, self._saved(), self._past.usage)
                await self._decide(given, calls, questions)
            result = await self._invoke(agent, given, context)
            self._past.begun = True
            self._past.usage = _counts(result.context_wrapper.usage)
            if not result.interruptions:
                return self._ended(result.final_output)
            self._past.state = _dumped(result.to_state())

    async def _invoke(self, agent: Agent[Any], given: Any, context: Any) -> Any:
        hooks = _checked(RunHooks())
        # A state already has its context.
        fresh = {} if isinstance(given, RunState) else {"context": context}
        try:
            result = await Runner.run(agent, given, hooks=hooks, **fresh, **self._options)
        except Exception:
            if self._stopped:
                raise self._stopped from None
            raise
        # An agent that is a tool reports errors to the model that called it.
        if self._stopped:
            raise self._stopped
        self._visit.check()
        return result

    async def check(self, *tools: str) -> None:
        """Stop frozen tools, and everything in a lost visit."""
        if self._stopped:
            raise self._stopped
        try:
            self._visit.check()
            for tool in tools:
                await async_loop.in_thread(self._visit.check_effect, tool)
        except Exception as error:
            self._stopped = error
            raise

    async def begin(self, context: Any, agent: Any, tool: Any) -> None:
        """Let a tool call begin if it isn't frozen and has any approval it needs."""
        await self.check(tool.name)
        # The hooks of the run and of the agent both see the call.
        if any(context is each for each in self._calls):
            return
        self._calls.append(context)
        name = getattr(tool, "qualified_name", None) or tool.name
        if not self._gate.is_for(name) or not await self._needs_approval(context, tool):
            return
        args = _read(context.tool_arguments)
        schema = _schema_of(agent, {name, tool.name})
        try:
            await async_loop.in_thread(
                self._gate.begin, name, args, schema, context.tool_call_id
            )
        except Exception as error:
            self._stopped = error
            raise

    async def _needs_approval(self, context: Any, tool: Any) -> bool:
        """Return whether this call needs approval: a rule for all tools leaves that to the tool."""
        needs: Any = getattr(tool, "needs_approval", False)
        if not isinstance(self._approval, Rule) or not callable(needs):
            return bool(needs) or not isinstance(self._approval, Rule)
        is_needed = needs(context, _read(context.tool_arguments), context.tool_call_id)
        return bool(await is_needed if inspect.isawaitable(is_needed) else is_needed)

    def _prepare_tools(self, agent: Agent[Any]) -> None:
        """Make the SDK ask about calls that have a policy, or a rule for their tool.

        Raises:
            DefinitionError: a tool needs approval, but its calls can't be checked when they begin.
        """
        for number, tool in enumerate(agent.tools):
            if isinstance(tool, FunctionTool):
                if isinstance(self._approval, Rule) or not self._gate.is_for(tool.name):
                    continue
                gated_tool = copy.copy(tool)
                gated_tool.needs_approval = _needs_rule(agent, tool)
                agent.tools[number] = gated_tool
            elif self._gate.is_for(tool.name) and getattr(tool, "needs_approval", False):
                raise DefinitionError(
                    f"the tool {tool.name!r} needs approval, and calls of {kind_of(tool)} can't be "
                    "compared with what was approved, so nothing was run: make it a function tool, or give "
                    "approval= by the names of the other tools."
                )

    async def needs_rule(self, agent: Agent[Any], tool: FunctionTool, args: Any) -> bool:
        """Return whether people decide a call; one that doesn't fit the tool is refused later."""
        schema = _schema_of(agent, {tool.name})
        try:
            whole = whole_call(tool.name, args, schema)
        except UsageError:
            return True
        return await async_loop.in_thread(self._gate.rule, tool.name, whole) is not None

    # -- questions --------------------------------------------------------------------------------

    def _ask_all(self, calls: list[ToolApprovalItem]) -> list[Asked]:
        return [
            self._gate.ask(
                FrameworkCall(
                    inner, _name(call), _arguments(call), _schema(call), ("approve", "reject")
                ),
                _answer.json_schema(),
            )
            for inner, call in _named(calls)
        ]

    async def _decide(
        self,
        state: Any,
        calls: list[ToolApprovalItem],
        questions: list[Asked],
    ) -> None:
        """Apply the answers to the state."""
        given = self._questions.hand_over()
        for (inner, call), question in zip(_named(calls), questions, strict=True):
            message: JSON = None
            match question:
                case str():
                    is_approved, message = False, question
                case None:
                    is_approved = True
                case CallState(approval=Approval() as approval):
                    is_approved = approval.approved
                    message = None if is_approved else approval.response["rejected"]
                case _:
                    answer = _answer.validate_python(given[inner])
                    is_approved = answer is True
                    message = answer.message if isinstance(answer, Denied) else None
            if is_approved:
                await self.check(_name(call))
                state.approve(call)
            else:
                state.reject(call, rejection_message=str(message) if message else None)

    # -- storage ----------------------------------------------------------------------------------

    async def _restored_state(self, agent: Agent[Any], context: Any) -> Any:
        try:
            # Copy the document, because the SDK changes it.
            document = json.loads(json.dumps(self._past.state))
            return await RunState.from_json(agent, document, context_override=context)
        except (UserError, TypeError, ValueError, KeyError) as error:
            raise CorruptDocument(
                f"openai-agents {installed(self.distribution)} can't read the state that version "
                f"{self._past.library} has stored: {error}. Run the node with that version, and keep the "
                "agents' names."
            ) from error

    def _saved(self) -> Saved:
        return Saved(self._state())

    def _ended(self, output: Any) -> Succeeded:
        self._past.state = None
        return Succeeded(*packed(output), self._past.usage, self._saved())


def _context(visit: Visit) -> Any:
    return {"idempotency_key": visit.idempotency_key}


def _dumped(state: Any) -> JSON:
    document: JSONObject = state.to_json(context_serializer=lambda _: {})
    document["context"]["context"] = {}
    return document


def _named(calls: list[ToolApprovalItem]) -> list[tuple[str, ToolApprovalItem]]:
    """Name each call by its number, too: two agents that are tools may use the same call id."""
    return [
        (inner_name(str(number), call.call_id or ""), call) for number, call in enumerate(calls)
    ]


def _name(call: ToolApprovalItem) -> str:
    return call.qualified_name or call.name or "tool"


def _schema(call: ToolApprovalItem) -> JSON:
    return _schema_of(call.agent, {call.name, call.qualified_name})


def _schema_of(agent: Any, names: Collection[str | None]) -> JSON:
    """Return the argument schema of a local function, or None for any other tool."""
    tools = [tool for tool in agent.tools if isinstance(tool, FunctionTool)]
    schemas = [tool.params_json_schema for tool in tools if tool.name in names]
    return strict(schemas[0]) if schemas else None


def _arguments(call: ToolApprovalItem) -> JSONObject:
    """Return a function's arguments; for other tools or unreadable arguments, the whole call."""
    arguments = _read(call.arguments)
    if isinstance(arguments, dict):
        return arguments
    raw: Any = call.raw_item
    return dict(raw) if isinstance(raw, Mapping) else dict(raw.model_dump(mode="json"))


def _read(arguments: str | None) -> Any:
    try:
        return json.loads(arguments or "")
    except ValueError:
        return None


def _needs_rule(agent: Agent[Any], tool: FunctionTool) -> Callable[..., Awaitable[bool]]:
    """Return a function for the SDK that says, in any execution, if a call needs approval."""

    async def needs_approval(context: Any, args: JSONObject, call_id: str) -> bool:
        del context, call_id
        return await _current.get().needs_rule(agent, tool, args)

    return needs_approval


def _counts(usage: Any) -> dict[str, int]:
    return usage_of(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=usage.total_tokens,
        cacheReadInputTokens=usage.input_tokens_details.cached_tokens,
    )


def _reachable(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """List agents reachable as tools or by handoffs, which a run's hooks don't see."""
    seen: set[int] = set()
    queue = [agent]
    while queue:
        current = queue.pop()
        nested = [getattr(tool, "_agent_instance", None) for tool in current.tools]
        targets: list[Any] = list(current.handoffs)
        nested += [
            each if isinstance(each, Agent) else getattr(each, "_agent_ref", lambda: None)()
            for each in targets
        ]
        for each in nested:
            if isinstance(each, Agent) and id(each) not in seen:
                seen.add(id(each))
                queue.append(each)
                yield each


_current: ContextVar[_OpenAIExecution] = ContextVar("openai_agents_execution")


def _checked(theirs: Any) -> Any:
    """Return hooks, of a run or an agent, that check before they run the given hooks.

    They find the execution in the context, because executions may share an agent.
    """
    base: Any = type(theirs)
    if getattr(base, "checks_visits", False):
        return theirs

    class Checked(base):  # type: ignore[misc]  # theirs is only known here
        checks_visits = True

        async def on_llm_start(self, *arguments: Any) -> None:
            await _check()
            await super().on_llm_start(*arguments)

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            """Check a reply's calls before any of them begins."""
            calls = (
                item.name
                for item in response.output
                if getattr(item, "type", None) == "function_call"
            )
            await _check(*calls)
            await super().on_llm_end(context, agent, response)

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            if execution := _current.get(None):
                await execution.begin(context, agent, tool)
            await super().on_tool_start(context, agent, tool)

    hooks = object.__new__(Checked)
    hooks.__dict__ = theirs.__dict__
    return hooks


async def _check(*tools: str) -> None:
    if execution := _current.get(None):
        await execution.check(*tools)
