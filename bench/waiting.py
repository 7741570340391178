"""Part `waiting`: what a node, a sweep and a list cost while up to a million other runs wait for a person."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from bench.fill import TEMPLATES, copy_runs
from bench.grid import Grid, number
from bench.memory import ASKED, execute
from bench.meter import measure, middle
from bench.site import BARE, OURS, site
from runner.operations.doctor import examine, read_facts
from runner.settings import Settings
from runner.store.interface import Store
from runner.store.redis.store import RedisStore

ROUNDS = 3
LEVELS = [0, 1_000, 10_000, 100_000]
BATCH = 500
JOBS = {"chain": 100, "fan": 502}
NAMES = {"chain": "chain100", "fan": "fan500"}
RUNS = {"chain": 5, "fan": 1}
"""Runs in each round, so that they have as many nodes as there are bare tasks."""
LOOKS = 7


def run(pool: str, rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Measure at each level, next to bare Celery tasks."""
    figures: dict[str, Any] = {}
    with site(pool, graphs=(*NAMES.values(), ASKED)) as bench:
        store, waiting = RedisStore(bench.urls[OURS]), 0
        for level in sizes or LEVELS:
            memory = bench.servers[OURS].info("memory")["used_memory"]
            added = level - waiting
            execute(bench, "waiting", min(added, TEMPLATES))
            copy_runs(bench.servers[OURS], ASKED, max(0, added - TEMPLATES))
            waiting = level
            used = bench.servers[OURS].info("memory")["used_memory"] - memory
            found: dict[str, Any] = {"bytes": used / added if added else 0.0}
            samples: dict[str, list[dict[str, float]]] = {name: [] for name in JOBS}
            for turn in range(rounds + 1):
                task = measure(
                    bench.servers[BARE],
                    bench.workers[BARE].pid,
                    BATCH,
                    lambda: bench.bare_tasks(BATCH),
                )
                for name, nodes in JOBS.items():
                    cost = measure(
                        bench.servers[OURS],
                        bench.workers[OURS].pid,
                        nodes * RUNS[name],
                        lambda name=name: [bench.run(NAMES[name]) for _ in range(RUNS[name])],
                    )
                    if turn:
                        samples[name].append({key: cost[key] / task[key] for key in task})
            found |= {name: middle(rounds) for name, rounds in samples.items()}
            figures[str(level)] = found | _lists(store, Settings(redis_url=bench.urls[OURS]))
    return figures


def _lists(store: Store, settings: Settings) -> dict[str, float]:
    return {
        "sweep_ms": _time(lambda: store.sweep(50)),
        "questions_ms": _time(lambda: store.open_interrupts(limit=100)),
        "runs_ms": _time(lambda: store.runs(limit=100)),
        "doctor_ms": _time(lambda: examine(read_facts(settings))),
    }


def _time(work: Callable[[], object]) -> float:
    times = []
    for _ in range(LOOKS):
        began = perf_counter()
        work()
        times.append((perf_counter() - began) * 1000)
    return median(times)


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each level."""
    rows = [
        [
            f"{int(level):,}",
            f"{found['chain']['redis_us']:.2f}",
            f"{found['fan']['redis_us']:.2f}",
            f"{found['chain']['rate']:.2f}",
            number(found["sweep_ms"]),
            number(found["questions_ms"]),
            number(found["runs_ms"]),
            number(found["doctor_ms"]) if "doctor_ms" in found else "-",
            number(found["bytes"]),
        ]
        for level, found in figures.items()
    ]
    columns = [
        "runs that wait",
        "Redis CPU, chain",
        "Redis CPU, fan",
        "nodes/s, chain",
        "sweep ms",
        "100 open questions ms",
        "100 runs ms",
        "doctor ms",
        "bytes each",
    ]
    note = (
        "The first three are ratios to one bare Celery task measured in the same round. A worker executes "
        "the first thousand runs of a level; the others are copies of these, made in Redis."
    )
    return [Grid(f"Runs that wait, pool {pool}", columns, rows, note)]
