"""Part `idle`: what a worker without work costs the store: commands a second, connections, processor time."""

from __future__ import annotations

from collections import Counter
from time import sleep
from typing import Any

from bench.grid import Grid, number
from bench.meter import Monitor, server_cpu, tree_cpu
from bench.site import BARE, OURS, site

ROUNDS = 1
SECONDS = 30
SETTLE = 3.0
"""Seconds after the start before anything is counted."""

NAMES = {OURS: "ours", BARE: "bare Celery"}


def run(pool: str, rounds: int, _: list[int]) -> dict[str, Any]:
    """Watch one worker of each kind, each alone on a store, for `rounds` times 30 seconds."""
    figures = {}
    for side, name in NAMES.items():
        with site(pool, sides=(side,), graphs=("short",)) as bench:
            sleep(SETTLE)
            seconds = SECONDS * rounds
            server, pid = bench.servers[side], bench.workers[side].pid
            before, cpu = server_cpu(server), tree_cpu(pid)
            with Monitor(bench.urls[side]) as monitor:
                sleep(seconds)
            sent = Counter(monitor.sent)
            sent.subtract({"info": 1, "echo": 1})  # ours
            own = server.client_id()
            theirs = [
                connection
                for connection in server.client_list()
                if int(connection["db"]) == side and int(connection["id"]) != own
            ]
            figures[name] = {
                "commands": {
                    command: count / seconds for command, count in sent.items() if count > 0
                },
                "inside": {
                    command: count / seconds for command, count in monitor.inside.items()
                },
                "connections": len(theirs),
                "redis_us": (server_cpu(server) - before) / seconds * 1e6,
                "python_us": (tree_cpu(pid) - cpu) / seconds * 1e6,
            }
    return figures


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show both workers, and what each sends."""
    rows = [
        [
            name,
            f"{sum(found['commands'].values()):.1f}",
            f"{sum(found['inside'].values()):.1f}",
            str(found["connections"]),
            number(found["redis_us"]),
            number(found["python_us"]),
        ]
        for name, found in figures.items()
    ]
    columns = [
        "",
        "commands/s",
        "calls in scripts/s",
        "connections",
        "Redis CPU us/s",
        "worker CPU us/s",
    ]
    note = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{command} {count:.2f}" for command, count in sorted(found["commands"].items())
        )
        for name, found in figures.items()
    )
    return [
        Grid(
            f"A worker without work, pool {pool}", columns, rows, f"Commands a second, {note}."
        )
    ]
