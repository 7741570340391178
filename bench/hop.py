"""Part `hop`: from one node's code to the next one's on an idle worker, against a relay of bare tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from bench.grid import Grid, number
from bench.meter import percentiles
from bench.site import OURS, Site, site

ROUNDS = 3
HOPS = "from node to node"
TRIP = "one round trip of Redis (PING after a rest of 1 ms)"
RELAY = "from task to task, where each bare task sends the next"
BACK = "settle sent, until its reply (beside the next parts)"
PARTS = [
    ("body", "settle sent", "the node returns, until settle is sent"),
    ("settle sent", "doorbell read", "until Celery reads the doorbell"),
    ("doorbell read", "task received", "decode, and make a request"),
    ("task received", "task begins", "to the slot"),
    ("task begins", "claim sent", "until claim is sent"),
    ("claim sent", "claim back", "claim"),
    ("claim back", "next body", "until the node's code runs"),
]
TRIPS, LENGTH = 300, 100


def run(pool: str, rounds: int, _: list[int]) -> dict[str, Any]:
    """Measure chains and relays in turn on idle workers, and the round trips of this machine between them."""
    times: dict[str, list[float]] = {name: [] for *_, name in PARTS} | {
        HOPS: [],
        BACK: [],
        RELAY: [],
        TRIP: [],
    }
    with tempfile.NamedTemporaryFile() as file:
        environment = {"BENCH_CLOCK": file.name, "RUNNER_GRAPHS": "bench.clock"}
        with site(pool, environment=environment) as bench:
            bench.run("hops")
            bench.relay(LENGTH)
            for _ in range(rounds):
                began = Path(file.name).stat().st_size
                bench.run("hops")
                for name, spent in _hops(Path(file.name).read_bytes()[began:].decode()):
                    times[name].append(spent / 1e6)
                times[TRIP] += _trips(bench)
                moments = bench.relay(LENGTH)
                times[RELAY] += [(later - at) * 1000 for at, later in pairwise(moments)]
    # Where all nodes continue inline there is no doorbell, and nothing to say of its way.
    return {name: percentiles(found) for name, found in times.items() if len(found) > 1}


def _trips(bench: Site) -> list[float]:
    """Time round trips, without what a client library adds."""
    connection = bench.servers[OURS].connection_pool.make_connection()
    connection.connect()
    found = []
    for _ in range(TRIPS):
        sleep(0.001)  # as in a hop: both sides have to be woken
        began = perf_counter()
        connection.send_command("PING", check_health=False)
        connection.read_response()
        found.append((perf_counter() - began) * 1000)
    connection.disconnect()
    return found


def _hops(lines: str) -> Iterator[tuple[str, int]]:
    """Cut the moments at each node's code; between two of them take the first of each kind."""
    moments = sorted(
        (int(at), name) for at, _, name in (line.partition(" ") for line in lines.splitlines())
    )
    bodies = [place for place, (_, name) in enumerate(moments) if name == "body"]
    for first, last in pairwise(bodies):
        seen: dict[str, int] = {}
        for at, name in moments[first:last]:
            seen.setdefault(name, at)
        seen["next body"] = moments[last][0]
        for start, end, part in PARTS:
            if start in seen and end in seen:
                yield part, seen[end] - seen[start]
        if "settle back" in seen:
            yield BACK, seen["settle back"] - seen["settle sent"]
        yield HOPS, seen["next body"] - seen["body"]


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each part, and its ratio to a hop of bare tasks."""
    relay = figures[RELAY]["p50"]
    rows = [
        [name, number(found["p50"]), number(found["p95"]), f"{found['p50'] / relay:.2f}"]
        for name, found in figures.items()
    ]
    columns = ["", "p50 ms", "p95 ms", "p50 in hops of bare tasks"]
    return [Grid(f"The hop, pool {pool}", columns, rows)]
