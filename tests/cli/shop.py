"""Graphs for the tests of the command line; a real worker imports this module."""

from __future__ import annotations

import itertools
import threading
from typing import Literal

from pydantic import BaseModel

from runner import Agent, Graph, GraphBuilder, NodeContext, graph, tool
from runner.approvals import Rule
from runner.testing import ScriptedModel


class Decision(BaseModel):
    decision: Literal["approve", "reject"]


def look_up(ctx: NodeContext) -> dict:
    return {"order": ctx.task, "amount": 120}


def stock(ctx: NodeContext) -> str:
    return "in stock"


def approve(ctx: NodeContext) -> str:
    order = ctx.inputs["look_up"]
    decision = ctx.interrupt(
        "shop_refund", reason=order, response_schema=Decision, assignees=["ana", "ben"]
    )
    return decision.decision


def send(ctx: NodeContext) -> dict:
    return dict(ctx.inputs)


def echo(ctx: NodeContext) -> str:
    return f"{ctx.task}\x1b[31m\tand\nmore"


def fail(ctx: NodeContext) -> None:
    raise ValueError(f"order {ctx.task} is not there")


def fail_once(ctx: NodeContext) -> int:
    if ctx.attempt == 1:
        raise ValueError("the printer is out of paper")
    return ctx.attempt


def run_on(ctx: NodeContext) -> None:
    while True:
        threading.Event().wait(0.02)
        ctx.check()


def chain(*functions) -> Graph:
    builder = GraphBuilder()
    for function in functions:
        builder.add_node(function)
    for source, target in itertools.pairwise(functions):
        builder.add_edge(source.__name__, target.__name__)
    return builder.build()


@graph("shop-refund")
def refund() -> Graph:
    builder = GraphBuilder()
    for function in (look_up, stock, approve, send):
        builder.add_node(function)
    builder.add_edge("look_up", "stock")
    builder.add_edge("look_up", "approve")
    builder.add_edge("stock", "send")
    builder.add_edge(
        "approve", "send", lambda state: state.results["approve"].output == "approve"
    )
    return builder.build()


@tool(approval=Rule(eligible=["ana"]))
def refund_order(order_id: int, amount: float) -> str:
    """Give money back."""
    return f"paid {amount} for {order_id}"


def last_result(messages) -> str:
    return messages[-1]["content"][0]["toolResult"]["content"][0]["text"]


@graph("shop-desk")
def desk() -> Graph:
    call = {"toolUse": {"name": "refund_order", "input": {"order_id": 7, "amount": 120}}}
    agent = Agent("desk", ScriptedModel([call, last_result]), tools=[refund_order])
    builder = GraphBuilder()
    builder.add_node(agent, "desk")
    return builder.build()


def count(ctx: NodeContext) -> int:
    return ctx.interrupt(
        "how_many", rule=Rule(eligible=["ana"]), response_schema={"type": "integer"}
    ).response


@graph("shop-count")
def counting() -> Graph:
    return chain(count)


@graph("shop-echo")
def echoing() -> Graph:
    return chain(echo)


@graph("shop-fail")
def failing() -> Graph:
    return chain(fail)


@graph("shop-endless")
def endless() -> Graph:
    return chain(run_on)


@graph("shop-outer")
def outer() -> Graph:
    builder = GraphBuilder()
    builder.add_node(refund(), "inner")
    builder.add_node(send)
    builder.add_edge("inner", "send")
    return builder.build()


@graph("shop-print")
def printing() -> Graph:
    return chain(echo, fail_once)
