"""An agent for models of any provider: it adds, and asks a person."""

from __future__ import annotations

from runner import Agent, Graph, GraphBuilder, GraphResult, tool
from tests.integrations.openai_server import calls, text


@tool
def add(x: int, y: int) -> int:
    """Add two numbers."""
    return x + y


@tool(context=True)
def approve(tool_context) -> str:
    """Ask a person."""
    return f"they said {tool_context.interrupt('approval', reason='may I?')}"


def replies(**first):
    """What the service must reply for an agent to add, ask and end; `first` are options of the first one."""
    return calls(("call_1", "add", {"x": 2, "y": 3}), ("call_2", "approve", {}), **first), text(
        "Five, ", "and yes."
    )


def graph(model) -> Graph:
    """Build a graph of this one agent."""
    builder = GraphBuilder()
    builder.add_node(Agent("sums", model, [add, approve], "Be brief."), "sums")
    return builder.build()


def played(model) -> tuple[GraphResult, GraphResult]:
    """Let the agent work until it asks, and then to its end."""
    sums = graph(model)
    waiting = sums("2 + 3?")
    return waiting, sums(
        [{"interruptResponse": {"interruptId": waiting.interrupts[0].id, "response": "yes"}}]
    )
