"""The same shapes as graphs of ours: a chain, a fan with a join, a lattice, and graphs that wait.

A worker registers those that BENCH_GRAPHS names, and no others: each has a queue, and a fetch names all.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from itertools import pairwise
from math import isqrt
from typing import Any

from runner import Fairness, Graph, GraphBuilder, NodeContext, graph
from runner.approvals.rules import Rule

SLEEP = 0.2
"""Seconds that an agent-like node waits, as for a model."""

CALL = 5.0
"""Seconds that an async node waits, as for a slow model."""

WAVES = 10
"""Such nodes in a row."""

AGENTS = 500
"""Agent-like nodes of one graph."""

TURNS = 1_000
"""Turns of the agent that has many."""

TWO = Rule(eligible=["ana", "ben"], need=2, title="Refund {amount} EUR for order {order}")
"""Who decides on a refund."""

Function = Callable[[NodeContext], object]


def noop(_: NodeContext) -> None:
    """Do nothing."""


def nap(_: NodeContext) -> None:
    """Wait, as for a model."""
    time.sleep(SLEEP)


async def call(_: NodeContext) -> None:
    """Wait for a slow model."""
    await asyncio.sleep(CALL)


def moment(_: NodeContext) -> float:
    """Return the time."""
    return time.time()


def question(ctx: NodeContext) -> float:
    """Ask, and return the time at which the answer was there."""
    ctx.interrupt("go")
    return time.time()


def request(ctx: NodeContext) -> object:
    """Ask two people for a decision of a form, with a reason."""
    schema = {
        "type": "object",
        "properties": {"approved": {"type": "boolean"}, "comment": {"type": "string"}},
        "required": ["approved"],
    }
    reason = {"amount": 1200, "currency": "EUR", "to": "Acme Inc."}
    people = ["ana@example.com", "bo@example.com"]
    return ctx.interrupt("release", reason, response_schema=schema, assignees=people)


def refund(ctx: NodeContext) -> float:
    """Ask two people for a refund, and return when it was paid."""
    ctx.interrupt("refund", rule=TWO, action=ctx.task)
    return ctx.once("pay", time.time)


def build(nodes: Mapping[str, Function], edges: list[tuple[str, str]]) -> Graph:
    """Build a graph of functions."""
    builder = GraphBuilder()
    for name, function in nodes.items():
        builder.add_node(function, name)
    for source, target in edges:
        builder.add_edge(source, target)
    return builder.build()


def chain(size: int, function: Function = noop) -> Graph:
    """Build a chain of so many nodes."""
    names = [f"n{place}" for place in range(size)]
    return build(dict.fromkeys(names, function), list(pairwise(names)))


def fan(size: int, function: Function = noop) -> Graph:
    """Build a node, so many nodes after it, and a join."""
    names = [f"n{place}" for place in range(size)]
    edges = [("first", name) for name in names] + [(name, "join") for name in names]
    return build({"first": noop, "join": noop, **dict.fromkeys(names, function)}, edges)


def lattice(size: int) -> Graph:
    """Build as many layers as each has nodes, each node after two of the layer before."""
    side = isqrt(size)
    edges = [
        (f"n{layer - 1}.{place % side}", f"n{layer}.{target}")
        for layer in range(1, side)
        for target in range(side)
        for place in (target, target + 1)
    ]
    names = [f"n{layer}.{place}" for layer in range(side) for place in range(side)]
    return build(dict.fromkeys(names, noop), edges)


def mapped(size: int, function: Function = noop) -> Graph:
    """Build a node that returns so many items, and a map of them."""
    builder = GraphBuilder()
    builder.add_node(lambda _: list(range(size)), "list")
    builder.add_map(function, "map", over="list")
    builder.add_edge("list", "map")
    return builder.build()


def turns() -> Graph:
    """Build an agent that calls a tool in each turn; its last reply says when each began, by two clocks."""
    from runner import Agent, tool  # noqa: PLC0415 - other graphs need no agents
    from runner.testing import ScriptedModel  # noqa: PLC0415

    times: list[tuple[float, float]] = []

    class Model(ScriptedModel):
        """A model that reads the last message alone, so that its own time is the same in each turn."""

        def stream(
            self, messages: list[dict[str, Any]], *args: Any, **options: Any
        ) -> AsyncIterator[dict[str, Any]]:
            return super().stream(messages[-1:], *args, **options)

    @tool
    def look() -> str:
        """Look at something."""
        return "x" * 200

    def reply(_: object) -> object:
        if len(times) > TURNS:
            times.clear()
        times.append((time.perf_counter(), time.process_time()))
        call = {"name": "look", "toolUseId": f"call{len(times)}"}
        return json.dumps(times) if len(times) > TURNS else {"toolUse": call}

    builder = GraphBuilder()
    builder.add_node(Agent("agent", Model([reply]), tools=[look]), "agent")
    return builder.build()


SHAPES = {
    "chain": chain,
    "fan": fan,
    "lattice": lattice,
    "map": mapped,
    "questions": lambda size: mapped(size, question),
}
FACTORIES: dict[str, Callable[[], Graph]] = {
    "agents": lambda: fan(AGENTS, nap),
    "items": lambda: mapped(AGENTS, nap),
    "turns": turns,
    "call": lambda: build({"call": call}, []),
    "calls": lambda: chain(WAVES, call),
    "short": lambda: chain(3),
    "single": lambda: chain(1, moment),
    "fair": lambda: chain(1, moment),
    "asking": lambda: build({"ask": question}, []),
    "waiting": lambda: build(
        {"a": noop, "ask": question, "b": noop}, [("a", "ask"), ("ask", "b")]
    ),
    "refund": lambda: build({"refund": refund}, []),
    "request": lambda: build(
        {"a": noop, "ask": request, "b": noop}, [("a", "ask"), ("ask", "b")]
    ),
}


def register(*names: str) -> None:
    """Register graphs: those above, or a shape with its size, as `chain100`."""
    for name in names:
        shape = name.rstrip("0123456789")
        if shape in SHAPES:
            graph(name)(partial(SHAPES[shape], int(name.removeprefix(shape))))
        else:
            fairness = Fairness("tag:tenant") if name == "fair" else None
            graph(name, fairness=fairness)(FACTORIES[name])


register(*filter(None, os.environ.get("BENCH_GRAPHS", "").split(",")))
