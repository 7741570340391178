"""A graph whose agent pays back once two people have approved it, and what it paid."""

from __future__ import annotations

from runner import Agent, GraphBuilder, ToolContext, graph, tool
from runner.approvals import Auth, Rule
from runner.testing import ScriptedModel
from tests.celery.graphs import store
from tests.chaos.kill_switch import reach

NODE = "pay"


def refunding(rule: Rule):
    """An agent with a tool that pays back: that is done outside, under the key of the call."""

    @tool(approval=rule, context=True)
    def refund(order: str, tool_context: ToolContext) -> str:
        """Pay back."""
        run_id = tool_context.idempotency_key.partition(".")[0]
        reach("effect.before", f"{run_id}/{NODE}")
        with store() as client:
            client.rpush(f"refunded:{run_id}", tool_context.idempotency_key)
        reach("effect.after", f"{run_id}/{NODE}")
        return f"{order} is paid back"

    builder = GraphBuilder()
    call = {"toolUse": {"name": "refund", "input": {"order": "1042"}}}
    builder.add_node(Agent("clerk", ScriptedModel([call, "done"]), [refund]), NODE)
    return builder.build()


@graph("refunding")
def approved():
    return refunding(Rule(need=2))


@graph("signed_refunding")
def signed():
    return refunding(Rule(need=2, auth=Auth(level=1)))


def keys(site, run) -> list[str]:
    """The keys under which it was paid, in order."""
    return [key.decode() for key in site.redis.lrange(f"refunded:{run.id}", 0, -1)]
