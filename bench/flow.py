"""Part `flow`: a flow of three steps from its start to its end, beside Celery's canvas.

As Windmill measures engines: one at a time, which gives a time, then 16 outstanding, which gives a rate.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from bench.grid import Grid, number
from bench.meter import percentiles
from bench.peers.program import FLOWS, OUTSTANDING, SINGLE
from bench.site import PATIENCE, Site, site

ROUNDS = 3
OURS, CANVAS, START = "a flow", "canvas: a chain of 3 tasks", "client.start"


def run(pool: str, rounds: int, _: list[int]) -> dict[str, Any]:
    """Measure both in turn; the first round warms up."""
    with site(pool, graphs=("short",)) as bench:
        kinds: dict[str, Callable[[], float]] = {
            OURS: lambda: _ours(bench),
            CANVAS: lambda: _canvas(bench),
        }
        times: dict[str, list[float]] = {OURS: [], CANVAS: [], START: []}
        rates: dict[str, list[float]] = {OURS: [], CANVAS: []}
        for turn in range(rounds + 1):
            for name, flow in kinds.items():
                found = [(perf_counter(), flow(), perf_counter()) for _ in range(SINGLE)]
                rate = _rate(flow)
                if turn:
                    times[name] += [(ended - began) * 1000 for began, _, ended in found]
                    times[START] += [spent * 1000 for _, spent, _ in found if name == OURS]
                    rates[name].append(rate)
    return {
        name: percentiles(found)
        | ({"rate": sorted(rates[name])[rounds // 2]} if name in rates else {})
        for name, found in times.items()
    }


def _ours(bench: Site) -> float:
    """Run a flow to its end; return the seconds until it was started."""
    began = perf_counter()
    flow = bench.client.start("short", None)
    started = perf_counter()
    flow.wait(PATIENCE)
    return started - began


def _canvas(bench: Site) -> float:
    from celery import chain  # noqa: PLC0415 - only this side needs it

    link = bench.celery().link
    began = perf_counter()
    flow = chain(link.si() for _ in range(3)).apply_async()
    started = perf_counter()
    flow.get(timeout=PATIENCE)
    return started - began


def _rate(flow: Callable[[], float]) -> float:
    began = perf_counter()
    with ThreadPoolExecutor(OUTSTANDING) as threads:
        list(threads.map(lambda _: flow(), range(FLOWS)))
    return FLOWS / (perf_counter() - began)


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show times and rates."""
    rows = [
        [
            name,
            number(found["p50"]),
            number(found["p95"]),
            number(found["rate"]) if "rate" in found else "",
        ]
        for name, found in figures.items()
    ]
    columns = ["", "p50 ms", "p95 ms", f"a second, {OUTSTANDING} outstanding"]
    return [Grid(f"A flow of three steps, pool {pool}", columns, rows)]
