"""Part `growth`: what an agent's turn, an item of a map and a stop cost where there are many."""

from __future__ import annotations

import json
from time import perf_counter
from typing import Any

from bench.graphs import TURNS
from bench.grid import Grid, number
from bench.meter import measure, middle, server_cpu
from bench.site import OURS, Site, site, wait_for
from runner.store.redis.keys import Keys

ROUNDS = 3
POOLS = False

EARLY = 150
"""The turn before which the hundred lie that the last hundred are compared with."""

FEW, MANY = 100, 3_000
"""Items of the two maps; each round runs as many of both."""

WORKERS = [1, 4]
STOPPED = [500, 1_000, 2_000]

SLOW = 1_000
"""Microseconds of a command from which on the server notes it."""

AGENT = "agent"
KEYS = ("rate", "python_us", "redis_us")


def run(_: str, rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Measure each on a store of its own; `sizes` are the open questions of the runs that are stopped."""
    figures: dict[str, Any] = {}
    with site("threads", sides=(OURS,), graphs=("turns",)) as bench:
        figures[AGENT] = middle([_turns(bench) for _ in range(rounds)])
    for workers in WORKERS:
        with site("threads", sides=(OURS,), graphs=(f"map{FEW}", f"map{MANY}")) as bench:
            added = [bench.add_worker() for _ in range(1, workers)]
            figures[f"map, {workers}"] = _maps(bench, added, rounds)
    for count in sizes or STOPPED:
        with site("threads", sides=(OURS,), graphs=(f"questions{count}",)) as bench:
            figures[f"stop {count}"] = middle([_stop(bench, count) for _ in range(rounds)])
    return figures


def _turns(bench: Site) -> dict[str, float]:
    run = bench.client.start("turns", None)
    wait_for(lambda: bench.ended(run.id), "the agent has ended")
    times = json.loads(str(run.result().results["agent"].result))
    figures = {}
    for name, end in (("early", EARLY), ("late", TURNS)):
        (began, used), (ended, used_then) = times[end - 100], times[end]
        figures[f"{name} ms"] = (ended - began) * 10
        figures[f"{name} us"] = (used_then - used) * 1e4
    return figures


def _maps(bench: Site, added: list[int], rounds: int) -> dict[str, float]:
    server, pid = bench.servers[OURS], bench.workers[OURS].pid
    found: dict[int, list[dict[str, float]]] = {FEW: [], MANY: []}
    for turn in range(rounds + 1):
        for size, costs in found.items():

            def work(size: int = size) -> None:
                for _ in range(MANY // size):
                    bench.run(f"map{size}")

            cost = measure(server, pid, MANY, work, *added)
            if turn:  # the first one warms up
                costs.append(cost)
    ratios = [
        {f"{key} ratio": long[key] / short[key] for key in long}
        for short, long in zip(*found.values(), strict=True)
    ]
    return middle(found[MANY]) | middle(ratios)


def _stop(bench: Site, count: int) -> dict[str, float]:
    graph, server = f"questions{count}", bench.servers[OURS]
    questions = f"{Keys().open}:g:{graph}"
    run = bench.client.start(graph, None)
    wait_for(lambda: server.zcount(questions, "(0", "inf") == count, "all questions are open")
    wait_for(lambda: not server.llen(f"runner/{graph}"), "the worker has settled")
    server.config_set("slowlog-log-slower-than", SLOW)
    server.slowlog_reset()
    server.config_resetstat()
    used, began = server_cpu(server), perf_counter()
    run.cancel("the measurement is over")
    wait_for(lambda: not server.zcount(questions, "(0", "inf"), "no question is open")
    spent = perf_counter() - began
    return {
        "calls": server.info("commandstats")["cmdstat_evalsha"]["calls"],
        "ms": spent * 1000,
        "redis_us": (server_cpu(server) - used) / count * 1e6,
        "longest ms": max((e["duration"] for e in server.slowlog_get(999)), default=SLOW)
        / 1000,
    }


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show the turns, the maps and the stops."""
    agent = figures[AGENT]
    turns = [
        [label, *(number(agent[f"{name} {unit}"]) for unit in ("ms", "us"))]
        for name, label in (
            ("early", f"{EARLY - 100} to {EARLY}"),
            ("late", f"{TURNS - 100} to {TURNS}"),
        )
    ]
    maps = [
        [
            name.removeprefix("map, "),
            *(f"{number(found[key])} ({found[f'{key} ratio']:.2f})" for key in KEYS),
        ]
        for name, found in figures.items()
        if name.startswith("map")
    ]
    stops = [
        [f"{int(name.removeprefix('stop ')):,}", *map(number, found.values())]
        for name, found in figures.items()
        if name.startswith("stop")
    ]
    return [
        Grid("Turns of an agent", ["turns", "ms each", "Python CPU us each"], turns),
        Grid(
            f"A map of {MANY:,} items",
            ["workers", "items/s", "Python CPU us", "Redis CPU us"],
            maps,
            f"In brackets: times that of maps of {FEW}, in interleaved rounds.",
        ),
        Grid(
            "A stop of a run with open questions",
            [
                "open questions",
                "calls of scripts",
                "ms",
                "Redis CPU us a question",
                "longest command, ms",
            ],
            stops,
            "Calls of the worker's threads meanwhile are in it.",
        ),
    ]
