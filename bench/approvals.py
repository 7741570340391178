"""Approvals at scale, ours beside LangGraph, DBOS and Temporal: `make approvals-bench [WAITING=100000]`.

Each side asks, until so many questions wait at once, lists the first 50, and decides some of them. The
time of a decision ends when the code that it allows runs. Ours takes the votes of two people, binds them to
the call and judges them once more before it runs; the others have one answer and no people.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import redis
from rich.console import Console

from bench import graphs, results
from bench.fill import Filler, copy_runs
from bench.grid import Grid, number
from bench.meter import percentiles
from bench.peers import __main__ as peers
from bench.peers.program import FIRST, OUTSTANDING, approval_jobs
from bench.site import OURS, PATIENCE, Site, site, wait_for
from runner.operations.doctor import examine, read_facts
from runner.settings import Settings
from runner.store.redis.keys import Keys

GRAPH = "refund"
ASKED, DECIDED, PEERS_WAIT = 500, 100, 2_000
"""Questions that a worker asks; that are decided one at a time, then together; that wait in a peer."""
EXECUTED = 20_000
"""Runs of ours that are executed; more that wait are copies."""


class Ours:
    """A worker of threads; after those that it asks, an engine in this process asks the others."""

    def __init__(self, bench: Site) -> None:
        """Take a site that serves the graph."""
        self._bench, self._client = bench, bench.client
        self._server: redis.Redis = bench.servers[OURS]
        self._settings = Settings(redis_url=bench.urls[OURS])
        self.first_votes: list[float] = []
        self.jobs = approval_jobs(
            self._ask, lambda: self._client.interrupts(limit=FIRST), self._decide
        )

    def _ask(self) -> str:
        action = {"order": 1042, "amount": 250}
        return self._client.start(GRAPH, action, requester="eva").id

    def _decide(self, run_id: str) -> float:
        run = self._client.run(run_id)
        (question,) = run.interrupts()
        began = perf_counter()
        self._client.vote(question.id, "approve", by="ana")
        self.first_votes.append((perf_counter() - began) * 1000)
        self._client.vote(question.id, "approve", by="ben")
        return run.wait(PATIENCE).results["refund"].output

    def waiting(self) -> int:
        """Return how many questions wait."""
        return int(self._server.zcard(f"{Keys().prefix}runs:interrupted:{GRAPH}"))

    def do(self, job: str) -> dict[str, Any]:
        """Do a job with its count; it has asked when the questions wait."""
        name, *counts = job.split()
        goal, began = self.waiting() + sum(map(int, counts)), perf_counter()
        times = self.jobs[name](*map(int, counts))
        if name == "ask":
            wait_for(lambda: self.waiting() == goal, f"{goal} questions wait")
        return {"seconds": perf_counter() - began, "times": times or []}

    def fill(self, goal: int) -> None:
        """Let so many wait: the first ones are executed, the others are copies of them."""
        filler = Filler(self._bench.urls[OURS], {GRAPH: graphs.FACTORIES[GRAPH]})
        for order in range(min(goal, EXECUTED) - self.waiting()):
            filler.start(GRAPH, {"order": order, "amount": 250}, requester={"id": "eva"})
        copy_runs(self._server, GRAPH, max(0, goal - self.waiting()))

    def bytes(self) -> int:
        """Return the memory that the server uses."""
        return int(self._server.info("memory")["used_memory"])

    def doctor(self) -> float:
        """Return the milliseconds of a look at everything."""
        began = perf_counter()
        examine(read_facts(self._settings))
        return (perf_counter() - began) * 1000


def measure_ours(levels: list[int]) -> dict[str, Any]:
    """Ask up to each level, and measure there."""
    figures: dict[str, Any] = {}
    with site("threads", sides=(OURS,), graphs=(GRAPH,)) as bench:
        ours = Ours(bench)
        ours.do(f"ask {DECIDED}")
        ours.do(f"decide {DECIDED}")
        empty = ours.bytes()
        for level in levels:
            found = _ask(ours, ASKED)
            ours.fill(level)
            ours.first_votes.clear()
            found |= {
                "waiting": ours.waiting(),
                "bytes": (ours.bytes() - empty) / ours.waiting(),
                "doctor": median(ours.doctor() for _ in range(3)),
                **_look_and_decide(ours),
                "vote": percentiles(
                    ours.first_votes[:DECIDED]
                ),  # those alone, before many at once
            }
            figures[f"ours, {level:,}"] = found
    return figures


def measure_peers(python: str, only: list[str], waiting: int) -> dict[str, Any]:
    """Start each peer that can be started, alone, and measure it; a reason is its figure otherwise."""
    figures: dict[str, Any] = {}
    for place, (name, (program, *options)) in enumerate(peers.PEERS.items()):
        wanted = "Restate" not in name and "async" not in name
        if not wanted or (only and not any(word.lower() in name.lower() for word in only)):
            continue
        with ExitStack() as stack:
            try:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                url = ""
                if "postgres" in options:
                    url = peers.make_database(stack.enter_context(peers.postgres()), place)
                    options[0] = url
                peer = peers.Peer([python, program, *options], folder / "log")
                stack.callback(peer.end)
                for job in ("ask", "decide"):
                    peer.do(f"{job} 10")
                empty = peers.database_bytes(url) if url else 0
                figures[name] = {**_ask(peer, waiting), "waiting": waiting}
                if url:
                    figures[name]["bytes"] = (peers.database_bytes(url) - empty) / waiting
                figures[name] |= _look_and_decide(peer)
            except (peers.Unavailable, OSError, subprocess.CalledProcessError) as error:
                figures[name] = {"error": str(error)}
    return figures


def _ask(side: Ours | peers.Peer, count: int) -> dict[str, Any]:
    return {"asked": count / side.do(f"ask {count}")["seconds"]}


def _look_and_decide(side: Ours | peers.Peer) -> dict[str, Any]:
    """Return the figures of the first page, and of decisions one at a time and together."""
    return {
        "page": median(side.do("page")["times"]),
        "decide": percentiles(side.do(f"decide {DECIDED}")["times"]),
        "decided": DECIDED / side.do(f"decide_all {DECIDED}")["seconds"],
    }


COLUMNS = {
    "waiting": "wait",
    "asked": "asked/s",
    "bytes": "bytes each",
    "page": "first 50 ms",
    "decide": "decision to effect ms p50, p95",
    "decided": f"decided/s, {OUTSTANDING} at once",
    "vote": "a vote ms p50, p95",
    "doctor": "doctor ms",
}


def grids(_: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each side, and the reason where there is no figure."""
    rows = [
        [name, *(_cell(found.get(column)) for column in COLUMNS)]
        for name, found in figures.items()
    ]
    reasons = [f"{name}: {each['error']}." for name, each in figures.items() if "error" in each]
    return [Grid("Approvals", ["", *COLUMNS.values()], rows, " ".join(reasons))]


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{number(value['p50'])}, {number(value['p95'])}"
    return "-" if value is None else number(value)


def main() -> None:
    """Read the command line, measure, print."""
    peers.end_all_at_termination()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="", help="the interpreter that has the peers")
    parser.add_argument("--only", default="", help="parts of their names, with commas between")
    parser.add_argument("--waiting", default="1000,100000", help="questions that wait, of ours")
    parser.add_argument("--peers-waiting", type=int, default=PEERS_WAIT, help="of each peer")
    chosen = parser.parse_args()
    before, only = results.machine(), [word for word in chosen.only.split(",") if word]
    figures: dict[str, Any] = {}
    if chosen.python:
        python = str(Path(chosen.python).absolute())
        figures |= measure_peers(python, only, chosen.peers_waiting)
    if not only or "ours" in only:
        figures |= measure_ours([int(level) for level in chosen.waiting.split(",")])
    results.write("approvals", "", figures, before)
    console = Console(width=180)
    for grid in grids("", figures):
        grid.show(console)
        console.print(grid.note)


if __name__ == "__main__":
    main()
