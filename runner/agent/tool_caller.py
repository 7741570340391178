"""Direct calls of an agent's tools, as in `clerk.tool.look_up(order=7)`.

A call is an invocation whose model calls the tool once: hooks, approvals and the conversation see
it like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from runner.agent.config import AgentConfig
from runner.agent.context import AgentResult
from runner.agent.machine.protocol import AgentDefinition
from runner.agent.models.scripted import ScriptedModel
from runner.errors import UsageError


class ToolCaller:
    """The tools of an agent as functions; an underscore also stands for a hyphen of a name."""

    def __init__(
        self, config: AgentConfig, invoke: Callable[[str, AgentConfig], AgentResult]
    ) -> None:
        self._config, self._invoke = config, invoke

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        """Return a function that calls the tool and returns its result, with status and content."""
        for tool in self._config.tools:
            if name in (tool, tool.replace("-", "_")):
                return partial(self._call, tool)
        raise AttributeError(f"agent {self._config.name!r} has no tool {name!r}.")

    def _call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        results: list[dict[str, Any]] = []

        def reply(messages: list[dict[str, Any]]) -> Any:
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
