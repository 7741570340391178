"""Measures what this library costs: `python -m bench [--only hop,idle] [--pool threads] [--rounds 2]`.

Each part prints its table and leaves its figures in build/bench; the last table puts all that was measured
so far beside the budgets. `python -m bench.report` writes the figures into the page.
"""

from __future__ import annotations

import argparse
from types import ModuleType

from rich.console import Console

from bench import (
    agents,
    answers,
    budgets,
    fair,
    flow,
    growth,
    hop,
    idle,
    llm,
    memory,
    nodes,
    partitions,
    results,
    waiting,
)
from bench.site import SLOTS

PARTS: dict[str, ModuleType] = {
    "nodes": nodes,
    "hop": hop,
    "flow": flow,
    "answers": answers,
    "agents": agents,
    "llm": llm,
    "fair": fair,
    "memory": memory,
    "idle": idle,
    "growth": growth,
    "waiting": waiting,
    "partitions": partitions,
}
ONE_POOL = ("waiting", "idle", "partitions", "fair")
"""Parts that are measured on threads unless a pool is named: the pool changes little, and they are long."""


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help=f"parts, with commas between: {', '.join(PARTS)}"
    )
    parser.add_argument("--pool", choices=sorted(SLOTS), help="one pool; without it all three")
    parser.add_argument("--rounds", type=int, help="more rounds, steadier medians")
    parser.add_argument(
        "--sizes",
        default="",
        help="nodes (partitions), runs (waiting, memory), questions (growth) or calls at once (llm)",
    )
    chosen = parser.parse_args()
    console = Console(width=160)
    chosen_sizes = [int(size) for size in chosen.sizes.split(",") if size]
    for name in chosen.only.split(",") if chosen.only else PARTS:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}: {', '.join(PARTS)}")
        part = PARTS[name]
        pools = (
            [chosen.pool] if chosen.pool else ["threads"] if name in ONE_POOL else list(SLOTS)
        )
        for pool in pools if getattr(part, "POOLS", True) else [""]:
            before = results.machine()
            figures = part.run(pool, chosen.rounds or getattr(part, "ROUNDS", 1), chosen_sizes)
            results.write(name, pool, figures, before)
            for grid in part.grids(pool, figures):
                grid.show(console)
    budgets.grid(results.read()).show(console)


if __name__ == "__main__":
    main()
