"""Random graphs by seed, registered so that every process builds the same ones."""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import dataclass

from runner import Graph, GraphBuilder, graph
from runner.errors import DefinitionError
from runner.records import codec

KINDS = ("works", "works", "works", "asks", "asks twice", "fails", "is a graph")
CONDITIONS = ("always", "always", "always", "never", "odd visits", "even visits")
PARITY = {"odd visits": 1, "even visits": 0}
COUNT = 16


@dataclass(frozen=True)
class Plan:
    """A graph as plain values: `repeats` are back edges taken until the source's visit of that number."""

    kinds: tuple[str, ...]
    edges: tuple[tuple[int, int, str], ...]
    repeats: tuple[tuple[int, int, int], ...]


def node(kind: str):
    """Make a function of a kind; its output depends on all that it received."""
    questions = {"asks": ["one"], "asks twice": ["one", "two"]}.get(kind, [])

    def work(ctx):
        ctx.once("effect", lambda: "done")
        responses = [ctx.interrupt(name) for name in questions]
        if kind == "fails":
            raise ValueError(ctx.node_id)
        inputs = codec.dump_json(sorted(ctx.inputs.items()))
        return [ctx.node_id, ctx.visit, responses, hashlib.sha256(inputs).hexdigest()[:8]]

    return work


def inner() -> Graph:
    """Make a graph to stand inside another: one node, then one that asks."""
    builder = GraphBuilder()
    builder.add_node(node("works"), "x")
    builder.add_node(node("asks"), "y")
    builder.add_edge("x", "y")
    return builder.build()


def condition(name: str):
    """Make the condition of an edge; None for one that is always taken."""
    if name == "never":
        return lambda state: False
    return (lambda state: state.visit % 2 == PARITY[name]) if name in PARITY else None


def build(plan: Plan) -> Graph:
    """Build a plan, as each process does for itself."""
    builder = GraphBuilder().set_failure_policy("continue")
    for number, kind in enumerate(plan.kinds):
        builder.add_node(inner() if kind == "is a graph" else node(kind), f"n{number}")
    for low, high, name in plan.edges:
        builder.add_edge(f"n{low}", f"n{high}", condition(name))
    for high, low, rounds in plan.repeats:
        builder.add_edge(
            f"n{high}", f"n{low}", lambda state, rounds=rounds: state.visit < rounds, back=True
        )
    return builder.build()


def plan(seed: int) -> Plan:
    """Make the graph of a seed: joins, conditions, loops, nested graphs, questions, failures."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, no secret
    while True:
        size = chance.randint(3, 6)
        pairs = {(chance.randrange(size), chance.randrange(size)) for _ in range(size + 3)}
        made = Plan(
            kinds=tuple(chance.choice(KINDS) for _ in range(size)),
            edges=tuple((a, b, chance.choice(CONDITIONS)) for a, b in sorted(pairs) if a < b),
            repeats=tuple((a, b, chance.randint(2, 3)) for a, b in sorted(pairs) if a >= b)[:2],
        )
        try:
            build(made)
        except DefinitionError:
            continue
        return made


def items(ctx):
    """Return a list whose length is the task."""
    return list(range(ctx.task))


def item(ctx):
    """Double a number; every third one asks a person first."""
    return [ctx.task * 2, ctx.interrupt("sure?") if ctx.task % 3 == 0 else None]


def total(ctx):
    """Return all that came in."""
    return dict(ctx.inputs)


@graph("same_map")
def mapped() -> Graph:
    """Make a list, run a node for each item of it, three at a time, and join."""
    builder = GraphBuilder()
    builder.add_node(items, "items")
    builder.add_map(item, "map", over="items", concurrency=3)
    builder.add_node(total, "total")
    builder.add_edge("items", "map")
    builder.add_edge("map", "total")
    return builder.build()


for number in range(COUNT):
    graph(f"same{number}")(functools.partial(build, plan(number)))
