"""Part `sizes`: a node of a graph of 10,000 against one of 100, each size in turn with bare Celery tasks."""

from __future__ import annotations

from typing import Any

from bench.grid import Grid, number
from bench.meter import measure, middle
from bench.site import BARE, OURS, site

ROUNDS = 1
SIZES = [100, 1_000, 10_000]
SHAPES = {"chain": 0, "fan": 2, "lattice": 0, "map": 2}
"""Each shape, and how many nodes it has besides its size."""

BATCH = 500


def run(pool: str, rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Measure one pool; the small sizes run as often as gives 1,000 nodes, so that they last long enough."""
    sizes = sizes or SIZES
    names = [f"{shape}{size}" for shape in SHAPES for size in sizes]
    figures: dict[str, list[dict[str, float]]] = {}
    with site(pool, graphs=names) as bench:
        bench.run(f"fan{sizes[0]}")
        bench.bare_tasks(BATCH)
        for _ in range(rounds):
            for size in sizes:
                task = measure(
                    bench.servers[BARE],
                    bench.workers[BARE].pid,
                    BATCH,
                    lambda: bench.bare_tasks(BATCH),
                )
                for shape, more in SHAPES.items():
                    times = max(1, 1_000 // size)
                    cost = measure(
                        bench.servers[OURS],
                        bench.workers[OURS].pid,
                        (size + more) * times,
                        lambda name=f"{shape}{size}", times=times: [
                            bench.run(name) for _ in range(times)
                        ],
                    )
                    ratios = {f"{key} ratio": cost[key] / task[key] for key in task}
                    figures.setdefault(f"{shape} {size}", []).append({**cost, **ratios})
    return {name: middle(found) for name, found in figures.items()}


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each size of each shape."""
    rows = [
        [
            name,
            number(cost["rate"]),
            f"{number(cost['python_us'])} ({cost['python_us ratio']:.2f})",
            f"{number(cost['redis_us'])} ({cost['redis_us ratio']:.2f})",
        ]
        for name, cost in figures.items()
    ]
    columns = ["", "nodes/s", "Python CPU us", "Redis CPU us"]
    note = "In brackets: the ratio to a bare task measured just before."
    return [Grid(f"Sizes, pool {pool}", columns, rows, note)]
