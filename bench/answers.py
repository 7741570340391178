"""Part `answers`: from an answer on the stream until it is applied, and until its node runs.

With idle slots, and with every slot busy: then more nodes of 0.2 s are queued than the worker can take.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

from bench.counts import TimedStory
from bench.grid import Grid, number
from bench.meter import percentiles
from bench.site import OURS, PATIENCE, Site, site, wait_for
from runner import Run
from runner.dev.embedded import embedded_store
from runner.records.run import Status

ROUNDS = 2
ANSWERS = 40
LOAD = 4
"""Fans of agent-like nodes that keep every slot busy."""

SPREAD = 0.05
"""Seconds between two answers while every slot is busy."""

IDLE, RUNNING, BUSY = "applied, slots idle", "node runs, slots idle", "applied, every slot busy"


VOTES = 500

ANSWER, DECIDING = "an answer", "a vote that decides"
"""Steps of `bench.counts`."""


def run(pool: str, rounds: int, _: list[int]) -> dict[str, Any]:
    """Measure idle and busy slots in turn, then what the server does for answers and votes."""
    times: dict[str, list[float]] = {IDLE: [], RUNNING: [], BUSY: []}
    with site(pool, sides=(OURS,), graphs=("asking", "agents")) as bench:
        for _ in range(rounds):
            _idle(bench, times)
            _busy(bench, times[BUSY])
    with embedded_store() as server:
        times |= TimedStory(urlsplit(server.url).path).people(VOTES)
    return {name: percentiles(found) for name, found in times.items()}


def _idle(bench: Site, times: dict[str, list[float]]) -> None:
    for _ in range(ANSWERS):
        run = bench.client.start("asking", None)
        question = run.wait(PATIENCE).interrupts[0].id
        sent = time.time()
        bench.answer(question)
        wait_for(lambda run=run: run.status is Status.COMPLETED, "the answer was used")
        times[IDLE].append(_applied(run) - sent * 1000)
        times[RUNNING].append((run.result().results["ask"].output - sent) * 1000)


def _busy(bench: Site, times: list[float]) -> None:
    asking = [bench.client.start("asking", None) for _ in range(ANSWERS)]
    questions = [run.wait(PATIENCE).interrupts[0].id for run in asking]
    load = [bench.client.start("agents", None) for _ in range(LOAD)]
    time.sleep(1)  # every slot has a node of 0.2 s now, and there are more
    sent = []
    for question in questions:
        sent.append(time.time())
        bench.answer(question)
        time.sleep(SPREAD)
    for run, at in zip(asking, sent, strict=True):
        wait_for(lambda run=run: _applied(run), "the answer was applied")
        times.append(_applied(run) - at * 1000)
    for run in load:
        run.cancel("the measurement is over")
    for run in asking:
        wait_for(lambda run=run: run.status is Status.COMPLETED, "the queue is empty again")


def _applied(run: Run) -> float:
    """Return when the node was made ready, in ms; 0 while it waits."""
    return next((event.at for event in run.events() if event.kind == "node.resumed"), 0.0)


def grids(pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show the times."""
    rows = [
        [name, *(number(found[share]) for share in ("p50", "p95", "p99"))]
        for name, found in figures.items()
        if name in {IDLE, RUNNING, BUSY}
    ]
    answer = figures[ANSWER]["p50"]
    of_server = [
        [name, number(figures[name]["p50"]), f"{figures[name]['p50'] / answer:.2f}"]
        for name in (ANSWER, "a vote that is counted", DECIDING)
    ]
    note = f"The median of {VOTES} each, in turn: what Redis spends in scripts and counters."
    return [
        Grid(f"Answers, pool {pool}, in ms", ["", "p50", "p95", "p99"], rows),
        Grid("The server's time of a decision", ["", "us", "of an answer"], of_server, note),
    ]
