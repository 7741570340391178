"""Agent graphs and approval flows on the queue that teams already run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not lazy: a module of ours is named `graph`, too, and importing it later would take the name back.
from runner.registry import graph

if TYPE_CHECKING:
    from runner.agent import Agent, AgentResult, ToolContext, tool
    from runner.builder import GraphBuilder
    from runner.client import Client, Run
    from runner.functions import NodeContext
    from runner.interrupts import Interrupt, Receipt
    from runner.limits import Limit
    from runner.local import Graph
    from runner.results import GraphResult, NodeResult
    from runner.retries import RetryPolicy
    from runner.run import Status

__all__ = [
    "Agent",
    "AgentResult",
    "Client",
    "Graph",
    "GraphBuilder",
    "GraphResult",
    "Interrupt",
    "Limit",
    "NodeContext",
    "NodeResult",
    "Receipt",
    "RetryPolicy",
    "Run",
    "Status",
    "ToolContext",
    "graph",
    "tool",
]

_HOMES = {
    "Agent": "agent",
    "AgentResult": "agent",
    "Client": "client",
    "Graph": "local",
    "GraphBuilder": "builder",
    "GraphResult": "results",
    "Interrupt": "interrupts",
    "Limit": "limits",
    "NodeContext": "functions",
    "NodeResult": "results",
    "Receipt": "interrupts",
    "RetryPolicy": "retries",
    "Run": "client",
    "Status": "run",
    "ToolContext": "agent",
    "tool": "agent",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line answers quickly."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"runner.{_HOMES[name]}"), name)
    return found
