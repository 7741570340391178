"""Random graphs by seed, registered so that every process builds the same ones."""

from __future__ import annotations

import functools
import random

from runner import Graph, GraphBuilder, graph
from runner.errors import DefinitionError
from tests.properties.test_graph_machine import Plan, World, build

KINDS = ("works", "works", "works", "asks", "asks twice", "fails", "is a graph")
CONDITIONS = ("always", "always", "always", "never", "odd visits", "even visits")
COUNT = 16


def plan(seed: int) -> Plan:
    """Make the graph of a seed: joins, conditions, loops, nested graphs, questions, failures."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, no secret
    while True:
        size = chance.randint(3, 6)
        pairs = {(chance.randrange(size), chance.randrange(size)) for _ in range(size + 3)}
        made = Plan(
            kinds=tuple(chance.choice(KINDS) for _ in range(size)),
            anys=frozenset(),
            edges=tuple((a, b, chance.choice(CONDITIONS)) for a, b in sorted(pairs) if a < b),
            repeats=tuple((a, b, chance.randint(2, 3)) for a, b in sorted(pairs) if a >= b)[:2],
            policy="continue",
        )
        try:
            build(made, World())
        except DefinitionError:
            continue
        return made


def items(ctx):
    """Give a list whose length the task says."""
    return list(range(ctx.task))


def item(ctx):
    """Double a number; every third one asks a person first."""
    return [ctx.task * 2, ctx.interrupt("sure?") if ctx.task % 3 == 0 else None]


def total(ctx):
    """Tell all that came in."""
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
    graph(f"same{number}")(functools.partial(build, plan(number), World()))
