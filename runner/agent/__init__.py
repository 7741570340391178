"""One node's work: an agent with a model, tools and hooks."""

from runner.agent.agent import Agent
from runner.agent.budgets import Budget, Price
from runner.agent.context import AgentResult, ToolContext
from runner.agent.tools import tool

__all__ = ["Agent", "AgentResult", "Budget", "Price", "ToolContext", "tool"]
