"""What a node costs beside a bare Celery task and Celery's canvas, side by side in one run.

`python -m bench.overhead [--pool threads|solo|prefork] [--rounds N] [--json]`. One private store,
one worker of each kind, the same pool and slots, interleaved rounds, medians. Figures are per node;
rates of machines differ, so trust the ratios. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import redis
from rich.console import Console
from rich.table import Table

from bench.graphs import LENGTH, SIDE, WIDTH
from bench.meter import Cost, Monitor, measure, middle
from runner import Client, Run
from runner.dev.embedded import EmbeddedStore, embedded_store
from runner.dev.supervised_process import SupervisedProcess
from runner.records.run import Status
from runner.settings import as_broker
from runner.store import open_store

BARE, OURS = 0, 1
SLOTS = {"threads": 8, "solo": 1, "prefork": 2}
NODES = {"chain": LENGTH, "fan": WIDTH + 2, "lattice": SIDE * SIDE}
BATCH = 500
ANSWERS = 40
PATIENCE = 60.0  # seconds


class Bench:
    """A store with a worker of each kind."""

    def __init__(self, store: EmbeddedStore, folder: Path, pool: str) -> None:
        self.socket = urlsplit(store.url).path
        self.urls = [f"unix://{self.socket}?db={number}" for number in (BARE, OURS)]
        self.servers = [redis.Redis.from_url(url) for url in self.urls]
        brokers = [as_broker(url) for url in self.urls]
        backend = f"redis+socket://{self.socket}?virtual_host={BARE}"
        self._environment = {"BENCH_BROKER": brokers[BARE], "BENCH_BACKEND": backend}
        ours = {"RUNNER_REDIS_URL": self.urls[OURS], "RUNNER_GRAPHS": "bench.graphs", "RUNNER_EVENTS": "0"}
        self.workers = [
            _worker("bench.bare:app", pool, folder / "bare.log", self._environment),
            _worker("runner.celery:app", pool, folder / "ours.log", ours),
        ]
        self.client = Client(store=open_store(self.urls[OURS]))
        self._await_ready(folder)

    def _await_ready(self, folder: Path) -> None:
        for name, sign in (("bare.log", " ready."), ("ours.log", "worker.ready:")):
            _wait(
                lambda name=name, sign=sign: sign in (folder / name).read_text(), f"{name} says it is ready"
            )

    def celery(self):  # noqa: ANN201 - Celery is not typed
        """Import the bare app in this process, where it sends."""
        os.environ.update(self._environment)
        from bench import bare  # noqa: PLC0415 - it reads the environment when it is imported

        return bare

    def end(self) -> None:
        """Stop both workers; results of the canvas forget the store, which ends before they do."""
        from celery.result import AsyncResult  # noqa: PLC0415 - only this side needs it

        for result in [found for found in gc.get_objects() if isinstance(found, AsyncResult)]:
            result.backend = None
        for worker in self.workers:
            worker.kill()
            worker.end()


def _worker(app: str, pool: str, log: Path, environment: dict[str, str]) -> SupervisedProcess:
    options = ["--pool", pool, "--concurrency", str(SLOTS[pool]), "--loglevel", "info"]
    quiet = ["--without-gossip", "--without-mingle"]
    command = [
        sys.executable,
        "-m",
        "celery",
        "--app",
        app,
        "worker",
        *options,
        *quiet,
        "--hostname",
        f"{log.stem}@%h",
    ]
    return SupervisedProcess(command, log=log, environment=environment)


def _wait(condition: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.005)


def jobs(bench: Bench) -> dict[str, tuple[int, int, Callable[[], None]]]:
    """Name each piece of work, with its side and its number of nodes."""
    return {
        "celery task": (BARE, BATCH, lambda: _bare_tasks(bench)),
        "celery chain": (BARE, LENGTH, lambda: _canvas(bench, "chain")),
        "celery fan": (BARE, WIDTH + 1, lambda: _canvas(bench, "fan")),
        "celery layers": (BARE, SIDE * SIDE, lambda: _canvas(bench, "layers")),
        "our chain": (OURS, NODES["chain"], lambda: _graph(bench, "chain")),
        "our fan": (OURS, NODES["fan"], lambda: _graph(bench, "fan")),
        "our lattice": (OURS, NODES["lattice"], lambda: _graph(bench, "lattice")),
    }


def _bare_tasks(bench: Bench) -> None:
    task = bench.celery().noop
    for _ in range(BATCH):
        task.apply_async()
    server = bench.servers[BARE]
    _wait(lambda: not server.llen("celery") and not server.zcard("unacked_index"), "the queue is empty")


def _canvas(bench: Bench, kind: str) -> None:
    from celery import chain, chord, group  # noqa: PLC0415 - only this side needs it

    link = bench.celery().link
    if kind == "chain":
        work = chain(link.si() for _ in range(LENGTH))
    elif kind == "fan":
        work = chord(group(link.si() for _ in range(WIDTH)), link.si())
    else:
        work = chain(group(link.si() for _ in range(SIDE)) for _ in range(SIDE)) | link.si()
    work.apply_async().get(timeout=PATIENCE)


def _graph(bench: Bench, name: str) -> None:
    run = bench.client.start(name, None)
    server, key = bench.servers[OURS], f"runner:{{p00}}:r:{run.id}"
    _wait(lambda: (server.hget(key, "run") or b"").startswith(b"completed"), f"{name} has completed")


def latencies(bench: Bench) -> dict[str, list[float]]:
    """Measure hops on an idle chain, and answers; all in milliseconds."""
    hops = []
    for _ in range(3):
        result = bench.client.start("clocked", None).wait(PATIENCE)
        times = [result.results[f"n{place}"].output for place in range(LENGTH)]
        hops += [(later - sooner) * 1000 for sooner, later in pairwise(times)]
    applied, running = [], []
    for _ in range(ANSWERS):
        run = bench.client.start("asking", None)
        _answer(bench, run, applied, running)
    return {"hop": hops, "answer applied": applied, "answer to running": running}


def percentiles(times: list[float]) -> dict[str, float]:
    """Sum times up: the middle one, and those that 95 and 99 of a hundred stay below."""
    cuts = quantiles(times, n=100)
    return {"p50": median(times), "p95": cuts[94], "p99": cuts[98]}


def _answer(bench: Bench, run: Run, applied: list[float], running: list[float]) -> None:
    waiting = run.wait(PATIENCE)
    body = json.dumps({"v": 1, "interrupt_id": waiting.interrupts[0].id, "response": True})
    sent = time.time()
    bench.servers[OURS].xadd("runner:responses", {"body": body})
    _wait(lambda: run.status is Status.COMPLETED, "the answer was used")
    resumed = next(event.at for event in run.events() if event.kind == "node.resumed")
    applied.append(max(0.0, resumed - sent * 1000))
    running.append((run.result().results["ask"].output - sent) * 1000)


def run_all(pool: str, rounds: int) -> dict[str, object]:
    """Run everything and return the figures."""
    with tempfile.TemporaryDirectory() as folder, embedded_store() as store:
        bench = Bench(store, Path(folder), pool)
        try:
            work = jobs(bench)
            costs = _costs(bench, work, rounds)
            times = {name: percentiles(found) for name, found in latencies(bench).items()}
            return {"pool": pool, "costs": costs, "latencies": times}
        finally:
            bench.end()


def _costs(
    bench: Bench, work: dict[str, tuple[int, int, Callable[[], None]]], rounds: int
) -> dict[str, Cost]:
    found: dict[str, list[Cost]] = {name: [] for name in work}
    for turn in range(rounds + 1):
        for name, (side, nodes, job) in work.items():
            cost = measure(bench.servers[side], bench.workers[side].pid, nodes, job)
            if turn:  # the first round warms everything up
                found[name].append(cost)
    counted = {}
    for name, (side, nodes, job) in work.items():
        with Monitor(bench.socket, side) as monitor:
            job()
        commands, trips = monitor.counts()
        counted[name] = (commands / nodes, trips / nodes)
    return {
        name: dataclasses.replace(middle(costs), commands=counted[name][0], trips=counted[name][1])
        for name, costs in found.items()
    }


def show(figures: dict[str, object]) -> None:
    """Print the figures, and their ratios to one bare Celery task."""
    costs: dict[str, Cost] = figures["costs"]  # type: ignore[assignment] - see run_all
    base = costs["celery task"]
    table = Table(title=f"per node, pool {figures['pool']} (in brackets: ratio to one bare Celery task)")
    for column in (
        "",
        "nodes/s",
        "Python CPU us",
        "Redis CPU us",
        "bytes to Redis",
        "commands",
        "round trips",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for name, cost in costs.items():
        cells = [
            f"{value:.{digits}f} ({value / basis:.2f})"
            for value, basis, digits in (
                (cost.rate, base.rate, 0),
                (cost.python_us, base.python_us, 0),
                (cost.redis_us, base.redis_us, 0),
                (cost.bytes_in, base.bytes_in, 0),
                (cost.commands, base.commands, 1),
                (cost.trips, base.trips, 1),
            )
        ]
        table.add_row(name, *cells)
    console = Console(width=140)
    console.print(table)
    pairs = (("chain", "chain"), ("fan", "fan"), ("lattice", "layers"))
    for ours, theirs in pairs:
        ratio = costs[f"our {ours}"].rate / costs[f"celery {theirs}"].rate
        console.print(f"our {ours} against celery {theirs}: {ratio:.1f}x nodes per second")
    for name, times in figures["latencies"].items():  # type: ignore[union-attr, attr-defined] - see run_all
        console.print(f"{name}: " + ", ".join(f"{share} {value:.1f} ms" for share, value in times.items()))


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", choices=sorted(SLOTS), default="threads")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures = run_all(chosen.pool, chosen.rounds)
    if chosen.json:
        plain = {name: dataclasses.asdict(cost) for name, cost in figures["costs"].items()}  # type: ignore[union-attr, attr-defined] - see run_all
        sys.stdout.write(json.dumps({**figures, "costs": plain}) + "\n")
    else:
        show(figures)


if __name__ == "__main__":
    main()
