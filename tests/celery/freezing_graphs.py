"""Graphs that go on having effects until a test ends them; each effect is written down with its time."""

from __future__ import annotations

import threading

from runner import Agent, GraphBuilder, ToolContext, graph, tool
from runner.approvals import Rule
from runner.testing import ScriptedModel
from tests.celery.graphs import store

CALLS = 5
"""Calls in one reply of a model, so that a freeze comes between two of them."""


def note(run_id: str, effect: str) -> None:
    """Write an effect down, with the time of the store in ms."""
    with store() as client:
        seconds, micros = client.time()
        client.rpush(f"{effect}:{run_id}", seconds * 1000 + micros // 1000)


def run_of(context: ToolContext) -> str:
    return context.idempotency_key.partition(".")[0]


def busy(name: str):
    """A tool that is approved, and one that is called again and again, in a loop of two nodes."""

    @tool(name=f"look_{name}", context=True)
    def look(tool_context: ToolContext) -> str:
        """Have a look."""
        note(run_of(tool_context), "looked")
        threading.Event().wait(0.1)
        return "seen"

    @tool(name=f"refund_{name}", approval=Rule(), context=True)
    def refund(tool_context: ToolContext) -> str:
        """Pay back."""
        note(run_of(tool_context), "refunded")
        return "paid"

    def enough(ctx) -> bool:
        with store() as client:
            return bool(client.exists(f"enough:{ctx.run_id}"))

    looks = [{"toolUse": {"name": look.tool_name, "input": {}}}] * CALLS
    looking = Agent(
        "looking", ScriptedModel([looks, "done"]), [look], tool_executor="sequential"
    )
    paying = Agent(
        "paying", ScriptedModel([{"toolUse": {"name": refund.tool_name}}, "done"]), [refund]
    )
    builder = GraphBuilder().set_max_node_executions(10_000).reset_on_revisit()
    builder.add_node(paying, "pay")
    builder.add_node(looking, "look")
    builder.add_node(enough, "enough")
    builder.add_edge("look", "enough")
    builder.add_edge("enough", "look", lambda state: not state.results["enough"].output)
    return builder.set_entry_point("pay").set_entry_point("look").build()


for kind in ("graph", "tool", "all"):
    graph(f"busy_{kind}")(lambda kind=kind: busy(kind))
