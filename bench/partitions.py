"""Part `partitions`: the same chains on one server and on two, by what each server's processor does.

What limits a store is its busiest server. With the task queue on a server of its own that is a server of
runs; else the first one, which has the queue besides.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import redis

from bench.grid import Grid, number
from bench.meter import middle, server_cpu
from bench.site import SLOTS, wait_for, worker
from runner import Client
from runner.dev.embedded import embedded_store
from runner.settings import Settings, as_broker
from runner.store.redis.partitions import open_store

ROUNDS = 3
SIZES = [2_000]
GRAPH, LENGTH = "chain20", 20
LAYOUTS = {
    "one server, the queue apart": (1, True),
    "two servers, the queue apart": (2, True),
    "one server with the queue": (1, False),
    "two servers, the first with the queue": (2, False),
}
"""Servers of runs, and whether the queue has one of its own."""

COMPARED = {
    "two servers, the queue apart": "one server, the queue apart",
    "two servers, the first with the queue": "one server with the queue",
}


class Spread:
    """A store of some servers with one worker."""

    def __init__(self, urls: list[str], broker: str, folder: Path, pool: str) -> None:
        """Start the worker; the clients of `servers` read what each has used."""
        named = ",".join(urls)
        settings = Settings(redis_url=named, broker_url=as_broker(broker) if broker else "")
        self.store = open_store(settings)
        self.client, self.servers = (
            Client(store=self.store),
            [redis.Redis.from_url(url) for url in urls],
        )
        self._keys = itertools.count()
        environment = {
            "RUNNER_REDIS_URL": named,
            "RUNNER_BROKER_URL": settings.broker_url,
            "RUNNER_GRAPHS": "bench.graphs",
            "BENCH_GRAPHS": GRAPH,
        }
        self.worker = worker(
            "runner.celery:app", pool, SLOTS[pool], folder / "worker.log", environment
        )

    def run(self, count: int) -> None:
        """Run so many chains, as many in each partition."""
        started: list[list[str]] = [[] for _ in self.servers]
        while min(map(len, started)) < count // len(self.servers):
            key = f"key{next(self._keys)}"
            own = started[self.store.partition(GRAPH, key)]
            if len(own) < count // len(self.servers):
                own.append(self.client.start(GRAPH, None, idempotency_key=key).id)
        for run_id in itertools.chain(*started):
            wait_for(
                lambda run_id=run_id: self.store.peek(run_id).is_final, f"{run_id} has ended"
            )

    def used(self) -> list[tuple[float, int]]:
        """Return the processor seconds that each server has used, and the commands that it was sent."""
        return [
            (server_cpu(server), server.info("stats")["total_commands_processed"])
            for server in self.servers
        ]

    def end(self) -> None:
        """Stop the worker before its servers."""
        self.worker.kill()
        self.worker.end()
        self.store.close()


@contextmanager
def spread(pool: str, servers: int, *, apart: bool) -> Iterator[Spread]:
    """Run one layout for the length of a `with` block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = [stack.enter_context(embedded_store()).url for _ in range(servers)]
        broker = stack.enter_context(embedded_store()).url if apart else ""
        made = Spread(urls, broker, folder, pool)
        stack.callback(made.end)
        made.run(2 * servers)
        yield made


def run(pool: str, rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Measure all layouts in turn, as often as there are rounds."""
    count = (sizes or SIZES)[0] // LENGTH // 2 * 2
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in LAYOUTS}
    with ExitStack() as stack:
        sites = {
            name: stack.enter_context(spread(pool, servers, apart=apart))
            for name, (servers, apart) in LAYOUTS.items()
        }
        for _ in range(rounds):
            for name, site in sites.items():
                before = site.used()
                site.run(count)
                pairs = list(zip(site.used(), before, strict=True))
                nodes = count * LENGTH
                figures[name].append(
                    {
                        "busiest_us": max(after[0] - first[0] for after, first in pairs)
                        / nodes
                        * 1e6,
                        "all_us": sum(after[0] - first[0] for after, first in pairs)
                        / nodes
                        * 1e6,
                        "commands": max(after[1] - first[1] for after, first in pairs) / nodes,
                    }
                )
    medians = {name: middle(found) for name, found in figures.items()}
    for name, one in COMPARED.items():
        # Of each round by itself: the load of a machine changes.
        rounds_of_both = zip(figures[one], figures[name], strict=True)
        medians[name]["times"] = median(
            single["busiest_us"] / two["busiest_us"] for single, two in rounds_of_both
        )
        medians[name]["fewer"] = medians[one]["commands"] / medians[name]["commands"]
    return medians


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each layout, those of two servers beside the same on one."""
    rows = [
        [
            name,
            number(found["busiest_us"]),
            number(found["all_us"]),
            number(found["commands"]),
            f"{found['times']:.2f}, {found['fewer']:.2f}" if "times" in found else "",
        ]
        for name, found in figures.items()
    ]
    columns = [
        "",
        "busiest server, CPU us a node",
        "all servers of runs",
        "busiest, commands",
        "times one server",
    ]
    note = "Chains of 20 nodes, as many in each partition. Last: one server against the busiest of two."
    return [Grid(f"Partitions, pool {pool}", columns, rows, note)]
