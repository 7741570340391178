"""An agent as a tool of another agent: its state lives inside the caller's, its questions go up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from runner import codec, failures
from runner.agent.batch import error_result
from runner.agent.desk import InnerDesk
from runner.agent.drive import Drive, Ending
from runner.agent.memory import opened
from runner.agent.prompts import as_messages
from runner.agent.recipe import Recipe
from runner.agent.state import Inner, waits_for
from runner.agent.tool_call import Ending as CallEnding
from runner.agent.tool_call import InnerEvent, ToolCall
from runner.agent.values import ToolAsked, ToolEnded
from runner.errors import UsageError

JSON = Any


class InnerAgent:
    """A tool that hands its input to an agent. Each call begins with the agent's own first messages."""

    tool_type = "agent"

    def __init__(
        self, recipe: Recipe, description: str | None, messages: list[JSON], user: dict[str, JSON]
    ) -> None:
        self.recipe, self._messages, self._user = recipe, messages, user
        self.tool_name = recipe.name
        self.tool_spec = {
            "name": recipe.name,
            "description": description or f"Ask the agent {recipe.name}.",
            "inputSchema": {
                "json": {
                    "type": "object",
                    "properties": {"input": {"type": "string", "description": "What the agent is to do."}},
                    "required": ["input"],
                }
            },
        }

    def stream(
        self, tool_use: dict[str, Any], invocation_state: dict[str, Any], **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Refuse: an agent runs as a tool of an agent of this library only.

        Raises:
            UsageError: always.
        """
        del tool_use, invocation_state, kwargs
        raise UsageError(f"agent {self.tool_name} can serve as a tool of runner.Agent only.")

    async def run_in(self, call: ToolCall) -> CallEnding:
        """Run the agent, or go on with it where it stopped."""
        kept = call.request.inner
        messages = self._messages if kept is None else kept.messages
        desk = InnerDesk(
            call.desk,
            call.id,
            call.request.attempt,
            answers=call.questions,
            messages=[] if kept is None else messages,
            post=call.post,
        )
        state = opened(
            None if kept is None else kept.document,
            messages,
            desk.address.visit,
            prompt=lambda: _prompt(call.request.use["input"]),
            user=self._user,
        )
        stored = 0 if kept is None else len(messages)
        drive = Drive(
            self.recipe,
            desk,
            state,
            messages,
            stored=stored,
            cancel=call.view.cancel_signal,
            emit=lambda event: call.tell(InnerEvent(event)),
        )
        ending = await drive.run()
        used = {name: n - state.usage.get(name, 0) for name, n in ending.state.usage.items()}
        return self._ended(call, ending, used, desk.kept(ending.saved))

    def _ended(self, call: ToolCall, ending: Ending, used: dict[str, int], inner: Inner) -> CallEnding:
        if ending.kind == "interrupt":
            return ToolAsked(call.id, waits_for(ending.state), used, inner)
        if ending.error is not None:
            call.error = ending.error
            text = f"Error: {type(ending.error).__name__} - {ending.error}"
            stored = ending.state.failure or failures.record(ending.error)
            return ToolEnded(call.id, error_result(call.id, text), stored, usage=used)
        output = ending.result.output
        block = {"text": output} if isinstance(output, str) else {"json": codec.pack(output, "output")}
        result = {"toolUseId": call.id, "status": "success", "content": [block]}
        return ToolEnded(call.id, result, usage=used)


def _prompt(given: Any) -> list[JSON]:
    return as_messages(given.get("input") if isinstance(given, dict) else given)
