"""An agent's whole configuration, which doesn't change while the agent runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pydantic

from runner.agent.budgets import Budget, Price
from runner.agent.machine.protocol import AgentDefinition
from runner.agent.models.protocol import Model
from runner.agent.tools import AgentTool, StructuredOutputTool, tools_by_name
from runner.errors import DefinitionError
from runner.hooks import HookRegistry
from runner.immutable import immutable


@immutable
class AgentConfig:
    """Model, tools, hooks, limits and budgets; executions share it and never change it."""

    name: str
    model: Model
    tools: Mapping[str, AgentTool]
    hooks: HookRegistry
    definition: AgentDefinition
    system_prompt: str | list[dict[str, Any]] | None = None
    structured: type[pydantic.BaseModel] | None = None
    window: int | None = None
    session_id: str | None = None
    budgets: tuple[Budget, ...] = ()
    price: Price | None = None

    def for_call(
        self, limits: Mapping[str, int] | None, output_model: type[pydantic.BaseModel] | None
    ) -> AgentConfig:
        """Return the config of one call, whose limits and output model override the agent's.

        Raises:
            DefinitionError: a limit can't be used, or a tool has the output model's name.
        """
        definition = replace(self.definition, **checked_limits(limits or {}))
        if output_model is None:
            return replace(self, definition=definition)
        tools = [
            tool for name, tool in self.tools.items() if name != self.definition.structured
        ]
        output = StructuredOutputTool(output_model)
        return replace(
            self,
            tools=tools_by_name([*tools, output]),
            definition=replace(definition, structured=output.tool_name),
            structured=output_model,
        )


def checked_model(model: object, name: str) -> Model:
    """Check the model of an agent.

    Raises:
        DefinitionError: the model has no `stream` method.
    """
    if not isinstance(model, Model):
        raise DefinitionError(
            f"agent {name!r} needs a model: an object with a `stream` method."
        )
    return model


def is_sequential(executor: str) -> bool:
    """Return whether a tool executor's name means sequential calls.

    Raises:
        DefinitionError: no executor has this name.
    """
    if executor not in ("concurrent", "sequential"):
        raise DefinitionError(
            f"tool_executor is 'concurrent' or 'sequential', not {executor!r}."
        )
    return executor == "sequential"


def checked_limits(limits: Mapping[str, int | None]) -> dict[str, Any]:
    """Return an invocation's limits as fields of its definition.

    Raises:
        DefinitionError: one is unknown or below 1.
    """
    unknown = limits.keys() - {"turns", "output_tokens", "total_tokens"}
    bad = [
        name
        for name, limit in limits.items()
        if limit is not None
        and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1)
    ]
    if unknown or bad:
        raise DefinitionError(
            f"limits {sorted(unknown) or bad} can't be used: turns, output_tokens and total_tokens are whole "
            "numbers above 0."
        )
    return {f"max_{name}": limit for name, limit in limits.items()}
