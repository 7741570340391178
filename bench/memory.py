"""Part `memory`: bytes and keys of runs that a worker asked and finished, all indexes included."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bench.grid import Grid, number
from bench.site import OURS, Site, site, wait_for
from runner.records.run import Status
from runner.store.redis import packed_runs
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore

RUNS, WARM_UP = 2_000, 100
SWEEPS = 20
"""Enough to pack all: one packs a thousand."""
ASKED = "request"
KINDS = {
    "waiting": "a waiting run (3 nodes, a question with a schema to two people)",
    "finished": "the same, answered and finished",
    "short": "a finished run (3 nodes) that asked nothing",
}
POOLS = False


def run(_: str, __: int, sizes: list[int]) -> dict[str, Any]:
    """Let a worker execute runs of each kind, and take what each adds."""
    count = (sizes or [RUNS])[0]
    figures: dict[str, Any] = {}
    for graph, kinds in ((ASKED, ("waiting", "finished")), ("short", ("short",))):
        with site("threads", sides=(OURS,), graphs=(graph,)) as bench:
            execute(bench, kinds[0], WARM_UP)
            execute(bench, kinds[-1], WARM_UP)
            before = _taken(bench)
            for kind in kinds:
                execute(bench, kind, count)
                figures[kind] = {
                    name: (value - before[name]) / count
                    for name, value in _taken(bench).items()
                }
    return figures


def execute(bench: Site, kind: str, count: int) -> None:
    """Bring so many runs into a state; those that are to finish are the ones that wait."""
    ended = Status.INTERRUPTED if kind == "waiting" else Status.COMPLETED
    graph = "short" if kind == "short" else ASKED
    listing = f"{Keys().prefix}runs:{ended}:{graph}"
    goal = bench.servers[OURS].zcard(listing) + count
    if kind == "finished":
        for question in _questions(bench):
            bench.answer(question, response={"approved": True}, responder="ana@example.com")
    else:
        for _ in range(count):
            bench.start(graph)
    wait_for(lambda: bench.servers[OURS].zcard(listing) == goal, f"{count} runs are {ended}")


def _questions(bench: Site) -> Iterator[str]:
    for name in bench.servers[OURS].zrange(f"{Keys().open}:g:{ASKED}", 0, -1):
        yield name.decode()


def _taken(bench: Site) -> dict[str, float]:
    """Read the memory and the keys, without notices, readers that have gone, and buffers of clients.

    Of notices that are read some five hundred stay, however many runs there are.
    """
    # As a worker's sweep does once a minute, with runs that ended a minute ago.
    store = RedisStore(bench.urls[OURS], push=False, clock=_later)
    for _ in range(SWEEPS):
        store.sweep()
    store.close()
    server = bench.servers[OURS]
    for key in server.scan_iter("*:w"):
        server.delete(key)
    server.xtrim(Keys().notices, 0, approximate=False)
    memory = server.info("memory")
    taken = memory["used_memory"] - memory["mem_clients_normal"]
    return {"bytes": taken, "keys": server.dbsize()}


def _later() -> int:
    return time.time_ns() // 1_000_000 + packed_runs.AGE_MS


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each kind."""
    rows = [
        [KINDS[name], number(found["bytes"]), f"{found['keys']:.2f}"]
        for name, found in figures.items()
    ]
    return [Grid("Memory", ["", "bytes of Redis", "keys"], rows)]
