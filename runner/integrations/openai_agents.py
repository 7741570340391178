"""An agent of the OpenAI Agents SDK as a node (extra `openai-agents`).

The SDK's `RunState` is in the node's document. A tool call that needs approval is one question, with its
exact name and arguments; calls of agents that are tools themselves, too. A rule may decide it. The SDK takes
approvals and rejections, and no other arguments. The agent goes on when all are answered. A crash repeats
what it did since its last pause. Errors of the agent are the node's failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed
from typing import Any

from pydantic import StrictBool, TypeAdapter

from runner import async_loop
from runner.approvals.rules import Rule
from runner.errors import CorruptDocument, needs_extra
from runner.integrations.framework import (
    Denied,
    FrameworkNode,
    Past,
    Questions,
    ask_call,
    packed,
    strict,
    usage_of,
    use_decision,
)
from runner.records.checkpoints import Saved
from runner.records.codec import JSON
from runner.records.executors import Visit, input_text
from runner.records.interrupts import Interrupt
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
    `{"kind": "tool-denied", "message": ...}`, whose message the model gets.

    Args:
        factory: builds the agent, with those that it hands over to; it is called for each execution.
        input: makes the agent's input of the visit; without it the task and the inputs are a text.
        context: makes the context of tools and hooks, which is not stored; without it a dictionary with the
            visit's `idempotency_key`.
        approval: the rule that decides tool calls. Without it any answer does.
        run_config: the SDK's settings of a run.
        max_turns: the most calls of the model in one visit; None for any number.
        name: the node's id, unless `add_node` gives one.
        version: change it when waiting runs must not go on with the new code.
    """

    kind = KIND

    def __init__(
        self,
        factory: Callable[[], Agent[Any]],
        *,
        input: Callable[[Visit], Any] | None = None,  # noqa: A002 - as the SDK calls it
        context: Callable[[Visit], Any] | None = None,
        approval: Rule | None = None,
        run_config: RunConfig | None = None,
        max_turns: int | None = 10,
        name: str | None = None,
        version: str = "",
    ) -> None:
        super().__init__(factory, Agent, name, version)
        self._input, self._context = input, context
        self._approval = approval
        self._options = {"run_config": run_config, "max_turns": max_turns}

    def _cause(self, error: BaseException) -> BaseException:
        """Return what a tool has raised, which the SDK wraps."""
        return (isinstance(error, UserError) and error.__cause__) or error

    async def _execute(self, visit: Visit) -> Outcome:
        past = self._past(_OpenAIPast, visit)
        visit.check()
        agent = await async_loop.in_thread(self._factory)
        context = await async_loop.in_thread(self._context or _context, visit)
        execution = _OpenAIExecution(visit, past, self._approval, self._options)
        return await execution.run(agent, context, self._input or _input)


@dataclass(kw_only=True)
class _OpenAIPast(Past):
    """`state` is the SDK's, of an agent that waits."""

    state: JSON = None


class _OpenAIExecution:
    """One execution: what the agent is given, and what to store of it."""

    def __init__(
        self, visit: Visit, past: _OpenAIPast, approval: Rule | None, options: dict[str, Any]
    ) -> None:
        self._visit, self._past, self._approval, self._options = visit, past, approval, options
        self._questions = Questions(KIND, visit.address, visit.answers, past.questions)
        self._usage = dict(past.usage)
        self._stopped: Exception | None = None

    async def run(
        self, agent: Agent[Any], context: Any, make: Callable[[Visit], Any]
    ) -> Outcome:
        """Go on from where the stored document stands."""
        for each in _reachable(agent):
            each.hooks = _checked(each.hooks or AgentHooks())
        _current.set(self)
        while True:
            if self._past.state is None:
                given = await async_loop.in_thread(make, self._visit)
            else:
                given = await self._restored_state(agent, context)
                calls = given.get_interruptions()
                questions = [self._ask(*named) for named in _named(calls)]
                if open_questions := [
                    each
                    for each in questions
                    if isinstance(each, Interrupt) and each.id not in self._visit.answers
                ]:
                    return Interrupted(open_questions, self._saved(), self._usage)
                await self._decide(given, calls, questions)
            result = await self._invoke(agent, given, context)
            self._past.begun = True
            self._usage = _counts(result.context_wrapper.usage)
            if not result.interruptions:
                return self._ended(result.final_output)
            self._past.state = _dumped(result.to_state())

    async def _invoke(self, agent: Agent[Any], given: Any, context: Any) -> Any:
        hooks = _checked(RunHooks())
        # A state has its context already.
        fresh = {} if isinstance(given, RunState) else {"context": context}
        try:
            result = await Runner.run(agent, given, hooks=hooks, **fresh, **self._options)
        except Exception:
            if self._stopped:
                raise self._stopped from None
            raise
        # An agent that is a tool reports errors to the model that has called it.
        if self._stopped:
            raise self._stopped
        self._visit.check()
        return result

    async def check(self, *tools: str) -> None:
        """Let no tool begin that is frozen, and nothing in a visit that was lost."""
        if self._stopped:
            raise self._stopped
        try:
            self._visit.check()
            for tool in tools:
                await async_loop.in_thread(self._visit.check_effect, tool)
        except Exception as error:
            self._stopped = error
            raise

    # -- questions --------------------------------------------------------------------------------

    def _ask(self, inner: str, call: ToolApprovalItem) -> Interrupt | str:
        return ask_call(
            self._questions,
            self._visit,
            self._approval,
            ("approve", "reject"),
            inner=inner,
            tool=_name(call),
            args=_arguments(call),
            args_schema=_schema(call),
            schema=_answer.json_schema(),
        )

    async def _decide(
        self,
        state: Any,
        calls: list[ToolApprovalItem],
        questions: list[Interrupt | str],
    ) -> None:
        """Give the state the answers; decisions by a rule are used by that.

        Raises:
            ApprovalMismatch: a decision does not hold for the call as it would be made.
            InterruptExpired: there was no answer in time. InterruptWithdrawn: a question was withdrawn.
        """
        before = self._past.questions
        given = self._questions.hand_over()
        for (inner, call), question in zip(_named(calls), questions, strict=True):
            if isinstance(question, str):
                state.reject(call, rejection_message=question)
                continue
            approval = await use_decision(self._visit, question, partial(self._saved, before))
            if approval is not None:
                is_approved = approval.approved
                message = None if is_approved else approval.response["rejected"]
            else:
                answer = _answer.validate_python(given[inner])
                is_approved = answer is True
                message = answer.message if isinstance(answer, Denied) else None
            if is_approved:
                await self.check(_name(call))
                state.approve(call)
            else:
                state.reject(call, rejection_message=str(message) if message else None)

    # -- what is stored ---------------------------------------------------------------------------

    async def _restored_state(self, agent: Agent[Any], context: Any) -> Any:
        try:
            # A copy: the SDK changes what it reads.
            document = json.loads(json.dumps(self._past.state))
            return await RunState.from_json(agent, document, context_override=context)
        except (UserError, TypeError, ValueError, KeyError) as error:
            raise CorruptDocument(
                f"openai-agents {installed('openai-agents')} can't read the state that version "
                f"{self._past.library} has stored: {error}. Run the node with that version, and the agents "
                "under the names that they had."
            ) from error

    def _saved(self, questions: list[JSON] | None = None) -> Saved:
        return Saved(
            {
                **vars(self._past),
                "questions": self._questions.document() if questions is None else questions,
                "usage": self._usage,
                "library": installed("openai-agents"),
            }
        )

    def _ended(self, output: Any) -> Succeeded:
        self._past.state = None
        return Succeeded(*packed(output), self._usage, self._saved())


def _context(visit: Visit) -> Any:
    return {"idempotency_key": visit.idempotency_key}


def _input(visit: Visit) -> str:
    return input_text(visit.task, visit.inputs)


def _dumped(state: Any) -> JSON:
    document: dict[str, JSON] = state.to_json(context_serializer=lambda _: {})
    document["context"]["context"] = {}
    return document


def _named(calls: list[ToolApprovalItem]) -> list[tuple[str, ToolApprovalItem]]:
    """Name each call by its number, too: two agents that are tools may give theirs the same id."""
    return [(f"{number}.{call.call_id}", call) for number, call in enumerate(calls)]


def _name(call: ToolApprovalItem) -> str:
    return call.qualified_name or call.name or "tool"


def _schema(call: ToolApprovalItem) -> JSON:
    """Return the schema of a local function's arguments; of any other tool None."""
    names = {call.name, call.qualified_name}
    tools = [tool for tool in call.agent.tools if isinstance(tool, FunctionTool)]
    schemas = [tool.params_json_schema for tool in tools if tool.name in names]
    return strict(schemas[0]) if schemas else None


def _arguments(call: ToolApprovalItem) -> dict[str, Any]:
    """Return the arguments of a function; of any other tool, or of unreadable ones, the whole call."""
    try:
        arguments = json.loads(call.arguments or "")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return arguments
    raw: Any = call.raw_item
    return dict(raw) if isinstance(raw, Mapping) else dict(raw.model_dump(mode="json"))


def _counts(usage: Any) -> dict[str, int]:
    return usage_of(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=usage.total_tokens,
        cacheReadInputTokens=usage.input_tokens_details.cached_tokens,
    )


def _reachable(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    """List the agents that are tools, and those that they hand over to: a run's hooks don't see them."""
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
    """Return hooks, of a run or of one agent, that check before they do what these do.

    They find the execution in the context, since executions may share an agent.
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
            """Check the calls in a reply before any of them begins."""
            await _check(*(each.name for each in response.output if _is_call(each)))
            await super().on_llm_end(context, agent, response)

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            await _check(tool.name)
            await super().on_tool_start(context, agent, tool)

    hooks = object.__new__(Checked)
    hooks.__dict__ = theirs.__dict__
    return hooks


async def _check(*tools: str) -> None:
    if execution := _current.get(None):
        await execution.check(*tools)


def _is_call(item: Any) -> bool:
    return getattr(item, "type", None) == "function_call"
