"""Part `fair`: 1,000 tenants, one of which has as many runs as all others, with turns and without.

The worker is stopped while runs start, so that they are a backlog; what is measured begins when it goes on.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from bench.grid import Grid, number
from bench.meter import Monitor, measure, middle, percentiles
from bench.site import OURS, Site, site, wait_for

ROUNDS = 3
TENANTS = 1000
NOISY = 1000
"""Runs of one tenant, which are first; each other one has one run."""

KINDS = {"fair": "tenants take turns", "single": "in the order of arrival"}


def run(pool: str, rounds: int, _: list[int]) -> dict[str, Any]:
    """Measure both in turn; the first round warms up."""
    figures: dict[str, list[dict[str, float]]] = {graph: [] for graph in KINDS}
    with site(pool, graphs=tuple(KINDS), sides=(OURS,)) as bench:
        for turn in range(rounds + 1):
            for graph, found in figures.items():
                cost = _backlog(bench, graph)
                if turn:
                    found.append(cost)
        for graph, found in figures.items():
            with Monitor(bench.urls[OURS]) as monitor:
                _backlog(bench, graph)
            calls = {"commands": len(monitor.sent), "inside": sum(monitor.inside.values())}
            # From the start, which is a command, to the reading of the result.
            figures[graph] = [{**middle(found), **{at: calls[at] / _runs() for at in calls}}]
    return {KINDS[graph]: found for graph, (found,) in figures.items()}


def _runs() -> int:
    return NOISY + TENANTS - 1


def _backlog(bench: Site, graph: str) -> dict[str, float]:
    pid = bench.workers[OURS].pid
    os.kill(pid, signal.SIGSTOP)
    tenants = ["noisy"] * NOISY + [f"t{number}" for number in range(1, TENANTS)]
    runs = [bench.client.start(graph, None, tags={"tenant": tenant}) for tenant in tenants]

    def work() -> None:
        os.kill(pid, signal.SIGCONT)
        for handle in reversed(runs):
            wait_for(lambda handle=handle: bench.ended(handle.id), "a run has completed")

    cost = measure(bench.servers[OURS], pid, len(runs), work)
    began = sorted(
        (handle.result().results["n0"].output, tenant)
        for handle, tenant in zip(runs, tenants, strict=True)
    )
    waits = [(at - began[0][0]) * 1000 for at, tenant in began if tenant != "noisy"]
    return {
        **cost,
        "wait": percentiles(waits)["p95"],
        "whole": (began[-1][0] - began[0][0]) * 1000,
    }


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show what others wait, and what each run costs."""
    columns = {
        "wait": "p95 wait of the others, ms",
        "whole": "all runs, ms",
        "rate": "runs/s",
        "python_us": "Python CPU us",
        "redis_us": "Redis CPU us",
        "commands": "commands, start and result too",
        "inside": "calls in scripts",
    }
    rows = [[name, *(number(found[at]) for at in columns)] for name, found in figures.items()]
    title = f"{_runs():,} runs of {TENANTS:,} tenants, pool {pool}"
    return [Grid(title, ["", *columns.values()], rows)]
