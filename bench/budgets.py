"""The budgets, and for each what was measured: the first table of the page.

A figure that was not measured is "-". `bench.nodes` and its siblings say how each is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench import answers, flow, growth, hop, nodes
from bench.grid import Grid, number
from bench.results import Results

POOLS = ("threads", "solo", "prefork")
SHAPES = tuple(nodes.NODES)

Figures = dict[str, Any]


def _span(key: str) -> Callable[[Figures], str]:
    """Write the ratio to a bare task, from the best to the worst of the three shapes."""

    def cell(figures: Figures) -> str:
        ratios = sorted(figures[shape][key] / figures["bare task"][key] for shape in SHAPES)
        return f"{ratios[0]:.2f} to {ratios[-1]:.2f}"

    return cell


def _each(*keys: str) -> Callable[[Figures], str]:
    """Write the figures of a node of a chain, then those of a bare task in brackets."""

    def cell(figures: Figures) -> str:
        ours, bare = (
            ", ".join(number(figures[name][key]) for key in keys)
            for name in (SHAPES[0], "bare task")
        )
        return f"{ours} ({bare})"

    return cell


def _canvas(figures: Figures) -> str:
    ratios = [
        figures[ours]["rate"] / figures[canvas]["rate"] for ours, canvas in nodes.PAIRS.items()
    ]
    return ", ".join(f"{ratio:.1f}" for ratio in ratios)


def _hop(figures: Figures) -> str:
    whole, relay = figures[hop.HOPS]["p50"], figures.get(hop.RELAY)
    return (
        f"{whole / relay['p50']:.2f} ({number(whole)} ms)" if relay else f"({number(whole)} ms)"
    )


def _flow(figures: Figures) -> str:
    found = figures[flow.OURS]
    return f"{number(found['p50'])} ms, {found['rate']:.0f}/s"


def _times(name: str, *shares: str) -> Callable[[Figures], str]:
    return lambda figures: ", ".join(number(figures[name][share]) for share in shares)


def _kilobytes(name: str) -> Callable[[Figures], str]:
    return lambda figures: (
        f"{figures[name]['bytes'] / 1000:.1f} KB, {figures[name]['keys']:.1f} keys"
    )


def _idle(figures: Figures) -> str:
    ours, bare = (
        f"{sum(figures[name]['commands'].values()):.1f}, {figures[name]['connections']}"
        for name in ("ours", "bare Celery")
    )
    return f"{ours} ({bare})"


def _turns(figures: Figures) -> str:
    agent = figures[growth.AGENT]
    return ", ".join(
        f"{agent[f'late {unit}'] / agent[f'early {unit}']:.2f}" for unit in ("ms", "us")
    )


def _maps(figures: Figures) -> str:
    """Write processor time of Python and Redis of an item, for each number of workers."""
    return "; ".join(
        f"{found['python_us ratio']:.2f}, {found['redis_us ratio']:.2f}"
        for name, found in figures.items()
        if name.startswith("map")
    )


def _stops(figures: Figures) -> str:
    found = {
        int(name.split()[1]): stop for name, stop in figures.items() if name.startswith("stop")
    }
    calls = ", ".join(f"{stop['calls']:.0f} of {count:,}" for count, stop in found.items())
    us = [stop["redis_us"] for stop in found.values()]
    longest = max(stop["longest ms"] for stop in found.values())
    return f"{calls}; {us[-1] / us[0]:.2f}; {number(longest)} ms"


def _crowd(figures: Figures) -> str:
    levels = list(figures)
    ratios = [
        figures[levels[-1]][shape]["redis_us"] / figures[levels[0]][shape]["redis_us"]
        for shape in ("chain", "fan")
    ]
    return ", ".join(f"{ratio:.2f}" for ratio in ratios) + f" ({int(levels[-1]):,} wait)"


def _lists(figures: Figures) -> str:
    return ", ".join(
        f"{number(found['questions_ms'])} ms of {int(level):,}"
        for level, found in figures.items()
        if int(level) >= 10_000
    )


def _agents(figures: Figures) -> str:
    return ", ".join(f"{name} {found['percent']:.0f}%" for name, found in figures.items())


def _partitions(figures: Figures) -> str:
    return ", ".join(f"{found['times']:.2f}" for found in figures.values() if "times" in found)


ROWS: list[tuple[str, str, Callable[[Figures], str], str]] = [
    ("commands, round trips (bare Celery)", "nodes", _each("commands", "trips"), "1.3, 1.3"),
    ("bytes to Redis (bare Celery)", "nodes", _each("bytes_in"), "800 + state"),
    ("Redis CPU, ratio to bare Celery", "nodes", _span("redis_us"), "1.0"),
    ("Python CPU, ratio to bare Celery", "nodes", _span("python_us"), "0.40 / 0.40 / 0.50"),
    ("nodes per second, ratio to bare Celery", "nodes", _span("rate"), "2 / 2 / 1.8"),
    (
        "nodes per second, times canvas: chain, fan and join, lattice",
        "nodes",
        _canvas,
        "6, 6, 18 (prefork 6, 6, 15)",
    ),
    (
        "hop on an idle worker, ratio to a relay of bare tasks",
        "hop",
        _hop,
        "0.40 / 0.45 / 0.55",
    ),
    ("a flow of 3 steps, p50; flows a second, 16 outstanding", "flow", _flow, "4 ms, 800/s"),
    (
        "answer applied, p50 and p95 ms",
        "answers",
        _times(answers.IDLE, "p50", "p95"),
        "0.28, 0.8",
    ),
    (
        "answer applied with every slot busy, p95 ms",
        "answers",
        _times(answers.BUSY, "p95"),
        "1.7",
    ),
    (
        "answer to running, p50 and p95 ms",
        "answers",
        _times(answers.RUNNING, "p50", "p95"),
        "1.9, 5",
    ),
    ("nodes that wait 0.2 s on 100 threads, of the ideal", "agents", _agents, "85%"),
    ("a waiting run of 3 nodes, asked by a worker", "memory", _kilobytes("waiting"), "2.2 KB"),
    ("the same, answered and finished", "memory", _kilobytes("finished"), "2.0 KB"),
    ("a worker without work: commands/s, connections (bare Celery)", "idle", _idle, "2, 6"),
    ("first 100 open questions", "waiting", _lists, "10 ms of 100,000"),
    ("an agent's turn, 1,000 against 100: time, Python CPU", "growth", _turns, "1.2"),
    (
        "an item of a map, 3,000 against 100: Python, Redis CPU; four workers",
        "growth",
        _maps,
        "1.1",
    ),
    (
        "a stop, calls of open questions; CPU of one, most against fewest; longest command",
        "growth",
        _stops,
        "N/500; 1; 100 ms",
    ),
    (
        "Redis CPU of a node, most runs that wait against none: chain, fan",
        "waiting",
        _crowd,
        "1.1",
    ),
    (
        "two servers, times one: queue apart, queue on the first",
        "partitions",
        _partitions,
        "1.8",
    ),
]


def grid(results: Results) -> Grid:
    """Put budgets and figures side by side; what has no pool stands in the first column."""
    rows = []
    for label, part, cell, budget in ROWS:
        found = {pool: results.get((part, pool)) for pool in POOLS}
        found["threads"] = found["threads"] or results.get((part, ""))
        cells = [cell(document["figures"]) if document else "-" for document in found.values()]
        if any(found.values()):
            rows.append([label, *cells, budget])
    note = "Ratios are to sending and executing one bare Celery task, in interleaved rounds of the same run."
    return Grid("Figures and budgets", ["per node, unless said", *POOLS, "budget"], rows, note)
