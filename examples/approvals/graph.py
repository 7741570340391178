"""A refund: small ones are paid at once, large ones when a person has approved them.

look_up ── assess ──┬─ (large) ── approve ──┬─ (approved) ── pay ── letter
                    └─ (small) ─────────────┘
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from runner import Graph, GraphBuilder, NodeContext, graph

LIMIT = 100


class Decision(BaseModel):
    """What a person may answer; the store checks it before anything is woken."""

    decision: Literal["approve", "reject"]
    comment: str = Field("", description="is kept with the refund")


def look_up(ctx: NodeContext) -> dict[str, Any]:
    """Find the order; a real one would ask a shop."""
    return {"order": ctx.task["order"], "amount": ctx.task["amount"]}


def approve(ctx: NodeContext) -> dict[str, Any]:
    """Ask a person; the worker is free until somebody answers."""
    decision: Decision = ctx.interrupt(
        "refund", reason=ctx.inputs["look_up"], response_schema=Decision, expires_in=3 * 86_400
    )
    return decision.model_dump()


def pay(ctx: NodeContext) -> str:
    """Pay once: the same key goes to the bank should this node run twice."""
    return f"paid, transfer {ctx.once('transfer', lambda: ctx.idempotency_key)}"


def letter(ctx: NodeContext) -> str:
    """Write to the customer, on the workers of the queue `letters`."""
    return f"Dear customer, we have {ctx.inputs['pay']}."


def large(state: Any) -> bool:
    """Tell whether a person has to look at it."""
    return bool(state.results["look_up"].output["amount"] > LIMIT)


def small(state: Any) -> bool:
    """Tell whether it can be paid at once."""
    return not large(state)


def approved(state: Any) -> bool:
    """Tell whether the person said yes."""
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
