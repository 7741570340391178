"""An agent as another agent's tool: the caller's state holds its state and gets its questions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.agent.config import AgentConfig
from runner.agent.conversation import as_messages, begin, past_state
from runner.agent.drive import Drive, Ending
from runner.agent.effects import SubagentEvent, ToolExecution, ToolOutcome
from runner.agent.machine.protocol import (
    ApprovalUsed,
    SubagentAsked,
    SubagentSaved,
    ToolAsked,
    ToolEnded,
)
from runner.agent.machine.state import SubagentState, waits
from runner.agent.models.protocol import call_name
from runner.approvals.ballots import Use
from runner.errors import UsageError
from runner.records import codec, failures
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONObject
from runner.records.interrupts import Interrupt


class SubagentTool:
    """A tool that passes its input to an agent. Every call starts from its first messages."""

    tool_type = "agent"

    def __init__(
        self,
        config: AgentConfig,
        description: str | None,
        messages: list[JSON],
        user_state: JSONObject,
    ) -> None:
        self.config = config
        self._messages = messages
        self._user_state = user_state
        self.tool_name = config.name
        self.tool_spec = {
            "name": config.name,
            "description": description or f"Ask the agent {config.name}.",
            "inputSchema": {
                "json": {
                    "type": "object",
                    "properties": {
                        "input": {"type": "string", "description": "The agent's task."}
                    },
                    "required": ["input"],
                }
            },
        }

    def stream(
        self, tool_use: JSONObject, invocation_state: JSONObject, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Refuse: an agent can only be a tool of this library's agents.

        Raises:
            UsageError: always.
        """
        del tool_use, invocation_state, kwargs
        raise UsageError(f"agent {self.tool_name} can serve as a tool of runner.Agent only.")

    async def run_in(self, execution: ToolExecution) -> ToolOutcome:
        """Run the agent, or resume it where it stopped."""
        past = execution.command.subagent
        messages = self._messages if past is None else past.messages
        stored_count = 0 if past is None else len(messages)
        checkpointer = SubagentCheckpointer(execution, messages[:stored_count])
        visit = checkpointer.address.visit
        state = past_state(
            None if past is None else past.document, self._user_state, len(messages)
        )
        if state.visit != visit:
            state = begin(state, visit, _prompt(execution.command.use["input"]), messages)
        ending = await Drive(
            self.config,
            checkpointer,
            state,
            messages,
            stored_count=stored_count,
            cancel=execution.effects.view.cancel_signal,
            emit=lambda event: execution.stream(SubagentEvent(event)),
            above=execution.effects.meter,
        ).run()
        usage = {name: n - state.usage.get(name, 0) for name, n in ending.state.usage.items()}
        return self._outcome(execution, ending, usage, checkpointer.state_with(ending.saved))

    def _outcome(
        self,
        execution: ToolExecution,
        ending: Ending,
        usage: dict[str, int],
        subagent: SubagentState,
    ) -> ToolOutcome:
        if ending.kind == "interrupt":
            return ToolAsked(execution.id, waits(ending.state), usage, subagent)
        if ending.error is not None:
            record = ending.state.failure or failures.record(ending.error)
            execution.effects.hook_events.remember(record, ending.error)
            return replace(execution.failed(ending.error), exception=record, usage=usage)
        output = ending.result.output
        block = (
            {"text": output}
            if isinstance(output, str)
            else {"json": codec.pack(output, "output")}
        )
        result = {"toolUseId": execution.id, "status": "success", "content": [block]}
        return ToolEnded(execution.id, result, usage=usage)


def _prompt(tool_input: Any) -> list[JSON]:
    return as_messages(tool_input.get("input") if isinstance(tool_input, dict) else tool_input)


class SubagentCheckpointer:
    """Stores through the calling agent."""

    def __init__(self, execution: ToolExecution, messages: list[JSON]) -> None:
        """Store inside the caller's tool call; the caller has already stored these messages."""
        caller = execution.checkpointer
        call = call_name(execution.id, execution.command.attempt)
        self.address = replace(caller.address, within=f"{caller.address.within}tool:{call}/")
        self.answers = execution.questions
        self.invocation_state = caller.invocation_state
        self.idempotency_key = f"{caller.idempotency_key}/{call}"
        self.check = caller.check
        self.check_now = caller.check_now
        self.check_effect = caller.check_effect
        self.spend = caller.spend
        self.spent = caller.spent
        self.tags = caller.tags
        self.open_raise = caller.open_raise
        self.close_raise = caller.close_raise
        self._key = execution.id
        self._post = execution.effects.post
        self._messages = messages

    def state_with(self, checkpoint: Saved) -> SubagentState:
        self._messages = [*self._messages[: checkpoint.keep], *checkpoint.messages]
        return SubagentState(checkpoint.document, self._messages)

    async def save(self, checkpoint: Saved) -> None:
        await self._post(SubagentSaved(self._key, self.state_with(checkpoint)))

    async def use(self, use: Use, checkpoint: Saved) -> None:
        await self._post(ApprovalUsed(self._key, use, self.state_with(checkpoint)))

    async def ask(self, questions: Sequence[Interrupt], checkpoint: Saved) -> None:
        await self._post(SubagentAsked(self._key, list(questions), self.state_with(checkpoint)))


async def abandon_calls(tools: Mapping[str, Any], document: JSONObject) -> None:
    """End work that an agent's tools, and the tools of its subagents, have begun elsewhere."""
    for call in past_state(document, {}, 0).calls:
        tool: Any = tools.get(call.selection.tool or "") if call.selection else None
        if call.result is not None or call.subagent is None:
            continue
        if isinstance(tool, SubagentTool):
            await abandon_calls(tool.config.tools, call.subagent.document)
        elif hasattr(tool, "abandon"):
            await tool.abandon(call.subagent.document)
