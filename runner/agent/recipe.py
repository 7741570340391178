"""What an agent is made of, apart from anything that changes while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from runner.agent.models.port import Model
from runner.agent.tools import AgentTool
from runner.agent.values import Definition
from runner.hooks import HookRegistry


@dataclass(frozen=True, slots=True)
class Recipe:
    """Model, tools, hooks and limits; many executions share one, and none changes it."""

    name: str
    model: Model
    tools: Mapping[str, AgentTool]
    hooks: HookRegistry
    definition: Definition
    system_prompt: str | list[dict[str, Any]] | None = None
    structured: type[pydantic.BaseModel] | None = None
    window: int | None = None
    session_id: str | None = None
