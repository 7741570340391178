"""Agent graphs and approval flows on the queue that teams already run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.agent import Agent, AgentResult, Budget, Price, ToolContext, tool
    from runner.async_client import AsyncClient, AsyncRun
    from runner.authoring.builder import GraphBuilder
    from runner.client import Client, Run
    from runner.definition.policies import Limit, RetryPolicy
    from runner.definition.registry import graph
    from runner.execution.conditions import GraphState
    from runner.execution.functions import NodeContext
    from runner.execution.results import GraphResult, NodeResult
    from runner.local import Graph
    from runner.records.interrupts import Interrupt, Receipt
    from runner.records.run import Status

__all__ = [
    "Agent",
    "AgentResult",
    "AsyncClient",
    "AsyncRun",
    "Budget",
    "Client",
    "Graph",
    "GraphBuilder",
    "GraphResult",
    "GraphState",
    "Interrupt",
    "Limit",
    "NodeContext",
    "NodeResult",
    "Price",
    "Receipt",
    "RetryPolicy",
    "Run",
    "Status",
    "ToolContext",
    "graph",
    "tool",
]

_HOMES = {
    "agent": ("Agent", "AgentResult", "Budget", "Price", "ToolContext", "tool"),
    "async_client": ("AsyncClient", "AsyncRun"),
    "authoring.builder": ("GraphBuilder",),
    "client": ("Client", "Run"),
    "definition.policies": ("Limit", "RetryPolicy"),
    "definition.registry": ("graph",),
    "execution.conditions": ("GraphState",),
    "execution.functions": ("NodeContext",),
    "execution.results": ("GraphResult", "NodeResult"),
    "local": ("Graph",),
    "records.interrupts": ("Interrupt", "Receipt"),
    "records.run": ("Status",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line answers quickly."""
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"runner.{home}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
