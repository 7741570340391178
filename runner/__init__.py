"""Agent graphs and approval flows on the queue that teams already run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.lazy_names import lazy_names

if TYPE_CHECKING:
    from runner.agent import Agent, AgentResult, Budget, Price, ToolContext, tool
    from runner.async_client import AsyncClient, AsyncRun
    from runner.authoring.builder import GraphBuilder
    from runner.authoring.swarm import Swarm
    from runner.client import Client, Run
    from runner.definition.policies import RetryPolicy
    from runner.definition.registry import graph
    from runner.errors import RetryAfter
    from runner.execution.conditions import GraphState
    from runner.execution.functions import NodeContext
    from runner.execution.results import GraphResult, NodeResult
    from runner.limits.concurrency import Concurrency, Debounce
    from runner.limits.fairness import Fairness
    from runner.limits.limit import Limit
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
    "Concurrency",
    "Debounce",
    "Fairness",
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
    "RetryAfter",
    "RetryPolicy",
    "Run",
    "Status",
    "Swarm",
    "ToolContext",
    "graph",
    "tool",
]

__getattr__ = lazy_names(
    __name__,
    {
        "runner.agent": ("Agent", "AgentResult", "Budget", "Price", "ToolContext", "tool"),
        "runner.async_client": ("AsyncClient", "AsyncRun"),
        "runner.authoring.builder": ("GraphBuilder",),
        "runner.authoring.swarm": ("Swarm",),
        "runner.client": ("Client", "Run"),
        "runner.definition.policies": ("RetryPolicy",),
        "runner.definition.registry": ("graph",),
        "runner.errors": ("RetryAfter",),
        "runner.execution.conditions": ("GraphState",),
        "runner.execution.functions": ("NodeContext",),
        "runner.execution.results": ("GraphResult", "NodeResult"),
        "runner.limits.concurrency": ("Concurrency", "Debounce"),
        "runner.limits.fairness": ("Fairness",),
        "runner.limits.limit": ("Limit",),
        "runner.local": ("Graph",),
        "runner.records.interrupts": ("Interrupt", "Receipt"),
        "runner.records.run": ("Status",),
    },
)
