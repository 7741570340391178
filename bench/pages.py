"""Part `pages`: what the page of a run costs, for graphs of 100, 300 and 3,000 nodes."""

from __future__ import annotations

import gzip
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from fastapi.testclient import TestClient

from bench.fill import Filler
from bench.graphs import build
from bench.grid import Grid, number
from runner import Graph, NodeContext
from runner.approvals.rules import Principal
from runner.authoring.drawing import draw
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.settings import Settings
from runner.testing.plugin import private_store

POOLS = False

SIZES = [100, 300, 3_000]

WIDE = 10
"""Nodes of a layer, each of which leads to two of the next."""

LOOKS = 7


def node(ctx: NodeContext) -> Any:
    """Return what a small node does."""
    return {"node": ctx.node_id, "amount": 12}


def lattice(size: int) -> Graph:
    """Build layers of nodes."""
    straight = [(f"n{place}", f"n{place + WIDE}") for place in range(size - WIDE)]
    aside = [
        (f"n{place}", f"n{place + WIDE + 1}")
        for place in range(size - WIDE - 1)
        if (place + 1) % WIDE
    ]
    return build({f"n{place}": node for place in range(size)}, straight + aside)


def run(_pool: str, _rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Draw each graph, and read the page of a run of it."""
    person = Person(Principal("ana"), frozenset(GRANTS))
    figures: dict[str, Any] = {}
    with private_store() as server:
        for size in sizes or SIZES:
            name, graph = f"lattice{size}", lattice(size)
            filler = Filler(server.url, {name: partial(lattice, size)})
            filler.start(name, {"order": 7})
            app = create_app(Settings(redis_url=server.url), auth=lambda _: person)
            app.state.services.plan = filler.engine.registry.find
            http = TestClient(app)
            (listed,) = http.get(f"/v1/runs?graph={name}").json()["items"]
            page = partial(
                http.get, f"/runs/{listed['run_id']}", headers={"accept": "text/html"}
            )
            figures[str(size)] = {
                "svg": _ms(partial(draw, graph.definition, "svg")),
                "page": _ms(page),
                "bytes": len(gzip.compress(page().content)),
            }
    return figures


def _ms(work: Any) -> float:
    times = []
    for _ in range(LOOKS):
        began = perf_counter()
        work()
        times.append((perf_counter() - began) * 1000)
    return median(times)


def grids(_pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each size."""
    rows = [
        [f"{int(size):,}", number(one["svg"]), number(one["page"]), number(one["bytes"] / 1000)]
        for size, one in figures.items()
    ]
    note = (
        "Layers of ten nodes, all completed; medians. The page has the graph, the time of each node and the "
        "newest events; more than 400 nodes are drawn in groups, and 300 are listed."
    )
    columns = ["nodes of the run", "drawing, ms", "page, ms", "page, KB compressed"]
    return [Grid("The page of a run", columns, rows, note)]
