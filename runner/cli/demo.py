"""The graph of `runner dev --demo`: two people are asked at once while a third branch ends by itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from runner.approvals import DAY, Rule
from runner.approvals.digests import Action
from runner.authoring.builder import GraphBuilder
from runner.definition.registry import graph
from runner.execution.functions import NodeContext
from runner.local import Graph

NAME = "demo"


class Discount(BaseModel):
    """The discount that the manager grants."""

    grant: Literal["yes", "no"]
    percent: int = Field(10, ge=0, le=50, description="of the whole order")


def order(_: NodeContext) -> dict[str, Any]:
    """Look up the order."""
    return {"order": 1042, "customer": "Acme", "amount": 4_800}


def stock(_: NodeContext) -> str:
    """Look into the warehouse; this branch doesn't wait for a person."""
    return "all 12 pieces are in stock"


def discount(ctx: NodeContext) -> dict[str, Any]:
    """Ask the manager; any worker continues here when the answer comes."""
    granted: Discount = ctx.interrupt(
        "discount", reason=ctx.inputs["order"], response_schema=Discount, expires_in=3 * DAY
    )
    return granted.model_dump()


def payment(ctx: NodeContext) -> dict[str, Any]:
    """Ask for an approval of exactly this payment."""
    args = {"to": "Acme Logistics", "amount": 180, "currency": "EUR"}
    action = Action("runner", "function", "pay_carrier", args)
    approval = ctx.interrupt(
        "pay the carrier",
        reason="The order ships by express, so the carrier is paid **before** it leaves.",
        rule=Rule(eligible=["anyone"]),
        action=action,
    )
    return {"decision": approval.decision, "paid": args if approval.approved else None}


def confirm(ctx: NodeContext) -> str:
    """Tell the customer."""
    return f"Dear customer, {ctx.inputs['stock']}; discount: {ctx.inputs['discount']['grant']}."


@graph(NAME)
def demo() -> Graph:
    """Build the graph."""
    builder = GraphBuilder()
    for node in (order, stock, discount, payment, confirm):
        builder.add_node(node)
    for branch in ("stock", "discount", "payment"):
        builder.add_edge("order", branch)
        builder.add_edge(branch, "confirm")
    return builder.build()
