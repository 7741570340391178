"""Part `llm`: calls that wait 5 s, as for a slow model, in one process: ours, and plain asyncio.

`--sizes` says how many calls wait at once; each side makes ten times as many. Ours are runs of ten async
nodes in a row, and runs of one, which are started while it works, on the pool `async`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from bench.graphs import CALL, WAVES
from bench.grid import Grid, number
from bench.meter import tree_cpu
from bench.site import OURS, site, wait_for

POOLS = False
SIZES = [2_000]
IDEAL = WAVES * CALL
PLAIN = f"""
import asyncio, sys, time
async def caller():
    for _ in range({WAVES}):
        await asyncio.sleep({CALL})
async def main():
    await asyncio.gather(*(caller() for _ in range(int(sys.argv[1]))))
asyncio.run(main())
print(open("/proc/self/status").read(), time.process_time())
"""


def run(_: str, __: int, sizes: list[int]) -> dict[str, Any]:
    """Measure each side once for each number of calls: a round takes a minute."""
    sides: dict[str, Callable[[int], dict[str, float]]] = {
        f"ours, runs of {WAVES} calls": partial(_ours, graph="calls", runs=1),
        "ours, runs of one call": partial(_ours, graph="call", runs=WAVES),
        "asyncio": _plain,
    }
    return {
        f"{name}, {size:,} at once": side(size)
        for size in sizes or SIZES
        for name, side in sides.items()
    }


def _ours(size: int, graph: str, runs: int) -> dict[str, float]:
    with site("async", sides=(OURS,), graphs=(graph,), slots=size) as bench:
        pid = bench.workers[OURS].pid
        used, began = tree_cpu(pid), monotonic()
        for run_id in [bench.start(graph) for _ in range(size * runs)]:
            wait_for(partial(bench.ended, run_id), "a call has ended")
        return _figures(began, tree_cpu(pid) - used, size, _status(pid))


def _plain(size: int) -> dict[str, float]:
    command, began = [sys.executable, "-c", PLAIN, str(size)], monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return _figures(began, float(done.stdout.split()[-1]), size, done.stdout)


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def _peak(status: str) -> float:
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return int(peak[1]) / 1024 if peak else 0.0


def _figures(began: float, cpu: float, size: int, status: str) -> dict[str, float]:
    return {
        "percent": IDEAL / (monotonic() - began) * 100,
        "megabytes": _peak(status),
        "cpu_us": cpu / size / WAVES * 1e6,
        "load": os.getloadavg()[0],
    }


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each side."""
    columns = {
        "percent": "% of the ideal",
        "megabytes": "MB at most",
        "cpu_us": "Python CPU us a call",
        "load": "load",
    }
    rows = [[name, *(number(found[key]) for key in columns)] for name, found in figures.items()]
    title = f"Calls that wait {CALL:g} s, {WAVES} in a row, in one process"
    return [Grid(title, ["", *columns.values()], rows)]
