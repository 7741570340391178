"""Agents with budgets that would never stop by themselves; the task of a run is its id.

Each call is written down before it is done, so that one which is cut off counts as made.
"""

from __future__ import annotations

from runner import Agent, Budget, GraphBuilder, Price, ToolContext, graph, tool
from runner.testing import ScriptedModel
from tests.celery.graphs import store
from tests.chaos.kill_switch import reach

LIMIT, TURNS = 4, 12
PERS = {"invocation": "invocation", "run": "run", "tag": "tag:team"}


def spend(what: str, run_id: str) -> None:
    """Make a call of a model or of a tool, between two points."""
    reach(f"{what}.before", run_id)
    with store() as client:
        client.rpush(f"{what}:{run_id}", 1)
    reach(f"{what}.after", run_id)


def reply(messages):
    spend("model", messages[0]["content"][0]["text"])
    return {"toolUse": {"name": "look", "input": {}}}


@tool(context=True)
def look(tool_context: ToolContext) -> str:
    """Have a look."""
    spend("tool", tool_context.idempotency_key.partition(".")[0])
    return "nothing"


def spending(budget: Budget):
    model = ScriptedModel([reply] * TURNS + ["done"])
    price = Price(calls={"look": 1})
    builder = GraphBuilder()
    builder.add_node(Agent("buyer", model, [look], budgets=[budget], price=price), "buy")
    return builder.build()


for name, per in PERS.items():
    graph(f"model_calls_{name}")(lambda per=per: spending(Budget(per=per, model_calls=LIMIT)))
    graph(f"tool_calls_{name}")(lambda per=per: spending(Budget(per=per, tool_calls=LIMIT)))
    graph(f"cost_{name}")(lambda per=per: spending(Budget(per=per, cost=LIMIT)))
