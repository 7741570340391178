"""Part `nodes`: what a node costs beside a bare Celery task and Celery's canvas, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.grid import Grid, number
from bench.meter import Monitor, measure, middle
from bench.site import BARE, OURS, PATIENCE, Site, site

ROUNDS = 5
BATCH = 500
NODES = {"chain100": 100, "fan500": 502, "lattice100": 100}
PAIRS = {"chain100": "canvas chain", "fan500": "canvas chord", "lattice100": "canvas layers"}
SIDE = 10

TIMED = ("rate", "python_us", "redis_us")
"""Figures that differ from round to round."""

Job = tuple[int, int, Callable[[], None]]
"""On which side, how many nodes, and the work."""


def run(pool: str, rounds: int, _: list[int]) -> dict[str, Any]:
    """Measure one pool."""
    with site(pool, graphs=tuple(NODES)) as bench:
        jobs: dict[str, Job] = {
            "bare task": (BARE, BATCH, lambda: bench.bare_tasks(BATCH)),
            "canvas chain": (BARE, NODES["chain100"], lambda: _canvas(bench, "chain")),
            "canvas chord": (BARE, NODES["fan500"] - 1, lambda: _canvas(bench, "chord")),
            "canvas layers": (BARE, NODES["lattice100"], lambda: _canvas(bench, "layers")),
            **{
                name: (OURS, count, lambda name=name: bench.run(name))
                for name, count in NODES.items()
            },
        }
        return costs(bench, jobs, rounds)


def costs(bench: Site, jobs: dict[str, Job], rounds: int) -> dict[str, dict[str, float]]:
    """Do every job once in each round, the first of which warms everything up; return the medians.

    Beside them are the least and the most of each round's ratio to a bare task of the same round.
    """
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, (side, nodes, job) in jobs.items():
            cost = measure(bench.servers[side], bench.workers[side].pid, nodes, job)
            if turn:
                figures[name].append(cost)
    counts = {}
    for name, (side, nodes, job) in jobs.items():
        with Monitor(bench.urls[side]) as monitor:
            job()
        inside = sum(monitor.inside.values())
        counts[name] = {"commands": len(monitor.sent), "trips": monitor.trips, "inside": inside}
        counts[name] = {count: value / nodes for count, value in counts[name].items()}
    return {
        name: {**middle(rounds), **counts[name], **_spread(rounds, figures["bare task"])}
        for name, rounds in figures.items()
    }


def _spread(
    rounds: list[dict[str, float]], bare: list[dict[str, float]]
) -> dict[str, list[float]]:
    """Return the least and the most of a figure's ratio, by name."""
    spread = {}
    for key in TIMED:
        ratios = [cost[key] / base[key] for cost, base in zip(rounds, bare, strict=True)]
        spread[f"{key} ratios"] = [min(ratios), max(ratios)]
    return spread


def _canvas(bench: Site, kind: str) -> None:
    from celery import chain, chord, group  # noqa: PLC0415 - only this side needs it

    link = bench.celery().link
    if kind == "chain":
        work = chain(link.si() for _ in range(NODES["chain100"]))
    elif kind == "chord":
        work = chord(group(link.si() for _ in range(NODES["fan500"] - 2)), link.si())
    else:
        work = chain(group(link.si() for _ in range(SIDE)) for _ in range(SIDE)) | link.si()
    work.apply_async().get(timeout=PATIENCE)


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each figure, and its ratio to one bare Celery task."""
    base = figures["bare task"]
    columns = {
        "rate": "nodes/s",
        "python_us": "Python CPU us",
        "redis_us": "Redis CPU us",
        "bytes_in": "bytes to Redis",
        "commands": "commands",
        "trips": "round trips",
        "inside": "calls in scripts",
    }
    rows = []
    for name, cost in figures.items():
        rows.append([name, *(_cell(cost, base, key) for key in columns)])
    note = (
        "In brackets: the ratio to one bare task, and the least and the most of the rounds. "
        "Canvas has no lattice: its layers have a barrier each."
    )
    return [Grid(f"One node, pool {pool}", ["", *columns.values()], rows, note)]


def _cell(cost: dict[str, Any], base: dict[str, Any], key: str) -> str:
    if not base[key]:
        return number(cost[key])
    least, most = cost.get(f"{key} ratios", (1, 1))
    spread = f"; {least:.2f} to {most:.2f}" if least < most else ""
    return f"{number(cost[key])} ({cost[key] / base[key]:.2f}{spread})"
