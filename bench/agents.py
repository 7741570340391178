"""Part `agents`: nodes that wait for 0.2 s, as agents do for models, on 100 threads; percent of the ideal."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import monotonic
from typing import Any

from bench.graphs import AGENTS, SLEEP
from bench.grid import Grid, number
from bench.meter import tree_cpu
from bench.site import BARE, OURS, site, wait_for

ROUNDS = 2
SLOTS = 100
FANS = 4
NODES = FANS * AGENTS
IDEAL = NODES * SLEEP / SLOTS
POOLS = False


def run(_: str, rounds: int, __: list[int]) -> dict[str, Any]:
    """Run the same number of nodes as bare tasks, as fans and as maps, in turn."""
    spent: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    with site("threads", graphs=("agents", "items", "short"), slots=SLOTS) as bench:

        def graphs(name: str) -> None:
            runs = [bench.start(name) for _ in range(FANS)]
            wait_for(lambda: all(bench.ended(run) for run in runs), f"{name} have completed")

        jobs: dict[str, tuple[int, Callable[[], None]]] = {
            "bare tasks": (BARE, lambda: bench.bare_tasks(NODES, "nap")),
            f"{FANS} fans of {AGENTS}": (OURS, lambda: graphs("agents")),
            f"{FANS} maps of {AGENTS}": (OURS, lambda: graphs("items")),
        }
        bench.run("short")
        for _ in range(rounds):
            for name, (side, job) in jobs.items():
                used, began = tree_cpu(bench.workers[side].pid), monotonic()
                job()
                spent.setdefault(name, []).append(monotonic() - began)
                cpu.setdefault(name, []).append(tree_cpu(bench.workers[side].pid) - used)
    return {
        name: {
            "percent": IDEAL / median(found) * 100,
            "rate": NODES / median(found),
            "busy": median(used / whole for used, whole in zip(cpu[name], found, strict=True))
            * 100,
        }
        for name, found in spent.items()
    }


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each kind."""
    rows = [
        [name, number(found["rate"]), f"{found['percent']:.0f}%", f"{found['busy']:.0f}%"]
        for name, found in figures.items()
    ]
    columns = ["", "nodes/s", "of the ideal", "worker's CPU, of one core"]
    title = f"{NODES:,} nodes that wait {SLEEP} s, on {SLOTS} threads (ideal: {NODES / IDEAL:.0f} nodes/s)"
    return [Grid(title, columns, rows)]
