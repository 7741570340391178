"""Part `start`: what a command of the CLI costs, and how long a worker takes until it is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import monotonic
from typing import Any

from bench.fill import Filler
from bench.grid import Grid, number
from bench.meter import tree_cpu
from bench.site import BARE, OURS, Site
from runner.dev.embedded import embedded_store

ROUNDS = 5
RUNS = 100
"""Runs that wait while commands list them: more than a page."""

CLI = [sys.executable, "-m", "runner.cli"]
COMMANDS = {
    "import runner": [sys.executable, "-c", "import runner"],
    "import all of its names": [sys.executable, "-c", "from runner import *"],
    "runner --help": [*CLI, "--help"],
    **{
        f"runner {words}": [*CLI, *words.split()]
        for words in (
            "runs list",
            "interrupts list",
            "workers list",
            "dead list",
            "graphs list",
            "metrics",
        )
    },
}
WORKERS = {OURS: "worker", BARE: "bare Celery's worker"}


def run(pool: str, rounds: int, _: list[int]) -> dict[str, Any]:
    """Start everything in turn; the first round fills the caches of compiled modules."""
    samples: dict[str, list[tuple[float, float]]] = {}
    with embedded_store() as store, tempfile.TemporaryDirectory() as folder:
        Filler(store.url).add("waiting", RUNS)
        for turn in range(rounds + 1):
            spent = {name: _command(command, store.url) for name, command in COMMANDS.items()}
            for side, name in WORKERS.items():
                place = Path(folder, str(turn))
                place.mkdir(exist_ok=True)
                began = monotonic()
                started = Site(store, place, pool, sides=(side,), graphs=("short",))
                spent[name] = monotonic() - began, tree_cpu(started.workers[side].pid)
                started.end()
            if turn:
                for name, sample in spent.items():
                    samples.setdefault(name, []).append(sample)
    return {
        name: dict(zip(("seconds", "cpu"), map(median, zip(*found, strict=True)), strict=True))
        for name, found in samples.items()
    }


def _command(command: list[str], url: str) -> tuple[float, float]:
    environment = {**os.environ, "RUNNER_REDIS_URL": url}
    # Without the cache of compiled modules each call would compile all that it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    used, began = getrusage(RUSAGE_CHILDREN), monotonic()
    subprocess.run(
        command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    seconds, after = monotonic() - began, getrusage(RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show commands and workers."""
    rows = [
        [name, number(found["cpu"]), number(found["seconds"])]
        for name, found in figures.items()
    ]
    note = f"A command: from start to end, with {RUNS} runs that wait; a worker: from start to ready."
    return [Grid(f"Start, pool {pool}", ["", "CPU s", "s"], rows, note)]
