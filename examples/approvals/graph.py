"""A refund: small ones are paid at once, large ones when a person has approved them.

look_up ── assess ──┬─ (large) ── approve ──┬─ (approved) ── pay ── letter
                    └─ (small) ─────────────┘
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from runner import Graph, GraphBuilder, NodeContext, graph
from runner.approvals import DAY, Rule

LIMIT = 100

RULE = Rule(eligible=["anyone"], decisions=["respond"], use_within=DAY)
"""Anyone may decide, but no agent. With `need=2` two people must give the same answer."""


class Decision(BaseModel):
    """The schema of the answer; it is validated before the node wakes up."""

    decision: Literal["approve", "reject"]
    comment: str = Field("", description="stored with the refund")


def look_up(ctx: NodeContext) -> dict[str, Any]:
    """Find the order; a real node would query a shop."""
    return {"order": ctx.task["order"], "amount": ctx.task["amount"]}


def approve(ctx: NodeContext) -> dict[str, Any]:
    """Ask a person; the worker is free until the answer arrives."""
    order = ctx.inputs["look_up"]
    approval = ctx.interrupt(
        "refund", order, response_schema=Decision, rule=RULE, expires_in=3 * DAY
    )
    decision: Decision = approval.response
    return decision.model_dump()


def pay(ctx: NodeContext) -> str:
    """Pay once: if this node runs twice, the bank receives the same key."""
    return f"paid, transfer {ctx.once('transfer', lambda: ctx.idempotency_key)}"


def letter(ctx: NodeContext) -> str:
    """Write to the customer; runs on the workers of the queue `letters`."""
    return f"Dear customer, we have {ctx.inputs['pay']}."


def large(state: Any) -> bool:
    """Return whether a person must approve the refund."""
    return bool(state.results["look_up"].output["amount"] > LIMIT)


def small(state: Any) -> bool:
    """Return whether the refund is paid at once."""
    return not large(state)


def approved(state: Any) -> bool:
    """Return whether the person approved."""
    return bool(state.results["approve"].output["decision"] == "approve")


@graph("refund")
def refund() -> Graph:
    """Build the graph."""
    builder = GraphBuilder()
    builder.add_node(look_up)
    builder.add_node(approve)
    builder.add_node(pay, join="any")
    builder.add_node(letter, queue="letters")
    builder.add_edge("look_up", "approve", large)
    builder.add_edge("look_up", "pay", small)
    builder.add_edge("approve", "pay", approved)
    builder.add_edge("pay", "letter")
    return builder.build()
