"""Refunds by an agent: above a limit, support and finance must both agree, independently.

clerk ──┬─ (paid) ──── letter
        └─ (refused) ─ apology

The model decides what to do next, the code what it may do: the tool `refund` itself checks the
answers of both desks, so no prompt can bypass it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from examples.refunds.model import model
from runner import Agent, Graph, GraphBuilder, NodeContext, ToolContext, graph, tool

LIMIT = 100
DESKS = ("support", "finance")
PRICES = {"A-17": 35.0, "B-42": 480.0}


class Verdict(BaseModel):
    """The schema of a desk's answer; any other answer is refused, and the question stays open."""

    agree: bool
    comment: str = Field("", description="stored with the refund")


@tool
def look_up(order: str) -> dict[str, Any]:
    """Look up the price of an order, and who must agree before it is refunded."""
    amount = PRICES[order]
    return {
        "order": order,
        "amount": amount,
        "must_agree": list(DESKS) if amount > LIMIT else [],
    }


@tool(context=True)
def ask_support(order: str, tool_context: ToolContext) -> str:
    """Ask the support desk whether the claim is justified."""
    return ask("support", order, tool_context)


@tool(context=True)
def ask_finance(order: str, tool_context: ToolContext) -> str:
    """Ask the finance desk whether the refund may be paid."""
    return ask("finance", order, tool_context)


def ask(desk: str, order: str, context: ToolContext) -> str:
    """Ask one desk. Both questions are open at once; the agent resumes when both are answered."""
    about = {"order": order, "amount": PRICES[order]}
    verdict = context.interrupt(desk, reason=about, response_schema=Verdict, assignees=[desk])
    context.agent.state.set(f"{desk}:{order}", verdict.agree)
    return "agrees" if verdict.agree else f"refuses: {verdict.comment}"


@tool(context=True)
def refund(order: str, tool_context: ToolContext) -> str:
    """Refund an order, if it is small or both desks agree."""
    state = tool_context.agent.state
    against = [desk for desk in DESKS if state.get(f"{desk}:{order}") is not True]
    if PRICES[order] > LIMIT and against:
        return f"refused by {', '.join(against)}"
    state.set("transfer", tool_context.idempotency_key)  # a bank would receive this key
    return f"paid {PRICES[order]:.2f}"


def paid(state: Any) -> bool:
    """Return whether the refund was paid."""
    return state.results["clerk"].result.state.get("transfer") is not None


def refused(state: Any) -> bool:
    """Return whether the refund was not paid."""
    return not paid(state)


def letter(ctx: NodeContext) -> str:
    """Write to the customer that the refund was paid."""
    return f"Dear customer, good news. {ctx.inputs['clerk']}"


def apology(ctx: NodeContext) -> str:
    """Write to the customer that the refund was refused."""
    return f"Dear customer, we are sorry. {ctx.inputs['clerk']}"


@graph("refunds")
def refunds() -> Graph:
    """Build the graph."""
    builder = GraphBuilder()
    tools = [look_up, ask_support, ask_finance, refund]
    builder.add_node(
        Agent(name="clerk", model=model(), tools=tools, system_prompt="Settle the refund.")
    )
    builder.add_node(letter)
    builder.add_node(apology)
    builder.add_edge("clerk", "letter", paid)
    builder.add_edge("clerk", "apology", refused)
    return builder.build()
