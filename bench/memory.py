"""Part `memory`: bytes and keys of a waiting and of a finished run of three nodes, all indexes included."""

from __future__ import annotations

from typing import Any

import redis

from bench.fill import Filler
from bench.grid import Grid, number
from runner.dev.embedded import embedded_store
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys
from runner.store.redis.streams import trim_notices

RUNS = 5_000
KINDS = {"waiting": "a waiting run (3 nodes, 1 question)", "short": "a finished run (3 nodes)"}
POOLS = False


def run(_: str, __: int, sizes: list[int]) -> dict[str, Any]:
    """Fill a store with runs of each kind, and take what each adds."""
    count = (sizes or [RUNS])[0]
    figures: dict[str, Any] = {}
    for graph in KINDS:
        with embedded_store() as store, redis.Redis.from_url(store.url) as server:
            filler = Filler(store.url)
            filler.add(graph, 100)
            memory, keys = server.info("memory")["used_memory"], server.dbsize()
            filler.add(graph, count)
            # As a worker's sweep does once a minute.
            trim_notices(RedisConnection(store.url), Keys().notices)
            used = server.info("memory")["used_memory"] - memory
            figures[graph] = {"bytes": used / count, "keys": (server.dbsize() - keys) / count}
            filler.store.close()
    return figures


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show both kinds."""
    rows = [
        [KINDS[name], number(found["bytes"]), f"{found['keys']:.2f}"]
        for name, found in figures.items()
    ]
    return [Grid("Memory", ["", "bytes of Redis", "keys"], rows)]
