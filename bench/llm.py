"""Part `llm`: calls that wait 5 s, as for a slow model, in one process: ours, and plain asyncio.

`--sizes` says how many calls wait at once; each side makes ten times as many. Ours are runs of one async
node on the pool `async`, started while it works.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from bench.graphs import CALL
from bench.grid import Grid, number
from bench.meter import tree_cpu
from bench.site import OURS, site, wait_for

POOLS = False
SIZES = [2_000]
WAVES = 10
IDEAL = WAVES * CALL
PLAIN = f"""
import asyncio, sys
async def caller():
    for _ in range({WAVES}):
        await asyncio.sleep({CALL})
async def main():
    await asyncio.gather(*(caller() for _ in range(int(sys.argv[1]))))
asyncio.run(main())
print(open("/proc/self/status").read())
"""


def run(_: str, __: int, sizes: list[int]) -> dict[str, Any]:
    """Measure each side once for each number of calls: a round takes a minute."""
    sides: dict[str, Callable[[int], dict[str, float]]] = {"ours": _ours, "asyncio": _plain}
    return {
        f"{name}, {size:,} calls at once": side(size)
        for size in sizes or SIZES
        for name, side in sides.items()
    }


def _ours(size: int) -> dict[str, float]:
    with site("async", sides=(OURS,), graphs=("call",), slots=size) as bench:
        pid = bench.workers[OURS].pid
        used, began = tree_cpu(pid), monotonic()
        for run_id in [bench.start("call") for _ in range(size * WAVES)]:
            wait_for(lambda run_id=run_id: bench.ended(run_id), "a call has ended")
        spent, cpu = monotonic() - began, tree_cpu(pid) - used
        return _figures(spent, cpu / size / WAVES, Path(f"/proc/{pid}/status").read_text())


def _plain(size: int) -> dict[str, float]:
    command, began = [sys.executable, "-c", PLAIN, str(size)], monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return _figures(monotonic() - began, 0.0, done.stdout)


def _figures(spent: float, cpu: float, status: str) -> dict[str, float]:
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    megabytes = int(peak[1]) / 1024 if peak else 0.0
    return {"percent": IDEAL / spent * 100, "megabytes": megabytes, "cpu_us": cpu * 1e6}


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each side."""
    rows = [
        [name, *(number(found[key]) for key in ("percent", "megabytes", "cpu_us"))]
        for name, found in figures.items()
    ]
    columns = ["", "% of the ideal", "MB at most", "Python CPU us a call"]
    return [
        Grid(f"Calls that wait {CALL:g} s, {WAVES} in a row, in one process", columns, rows)
    ]
