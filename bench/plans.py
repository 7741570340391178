"""Plans beside the general scripts and a bare Celery task, interleaved in one run.

`python -m bench.plans [--rounds N] [--only chain,fan]`. Three workers on one private store; per node: nodes/s,
Python CPU, Redis CPU, microseconds inside scripts, scripts. Trust ratios of one run, CPU more than rates.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import redis

from bench.meter import tree_cpu
from bench.overhead import SLOTS, _wait, _worker, percentiles
from bench.plan_graphs import ITEMS, ROUNDS
from bench.graphs import LENGTH, SIDE, WIDTH
from runner import Client
from runner.dev.embedded import embedded_store
from runner.records.run import Status
from runner.settings import as_broker
from runner.store import open_store

NODES = {
    "chain": LENGTH,
    "fan": WIDTH + 2,
    "lattice": SIDE * SIDE,
    "loop": 3 * ROUNDS + 2,
    "map": ITEMS + 2,
    "asking": 20,
}
BATCH = 500


class Side:
    """A worker with its own database."""

    def __init__(self, name, number, socket, folder, pool, count=1):
        self.name, self.url = name, f"unix://{socket}?db={number}"
        self.server = redis.Redis.from_url(self.url)
        self.log = folder / f"{name}.log"
        plans = "0" if name == "today" else "1"
        if name == "bare":
            self.environment = {
                "BENCH_BROKER": as_broker(self.url),
                "BENCH_BACKEND": f"redis+socket://{socket}?virtual_host={number}",
            }
            os.environ.update(self.environment)
            self.workers = [_worker("bench.bare:app", pool, self.log, self.environment)]
            self.logs = [self.log]
            return
        self.environment = {
            "RUNNER_REDIS_URL": self.url,
            "RUNNER_GRAPHS": "bench.graphs,bench.plan_graphs",
            "RUNNER_EVENTS": "0",
            "RUNNER_PLANS": plans,
            "RUNNER_STAY": "1" if name == "stay" else "0",
        }
        self.logs = [folder / f"{name}{number}.log" for number in range(count)]
        self.workers = [_worker("runner.celery:app", pool, log, self.environment) for log in self.logs]
        os.environ["RUNNER_PLANS"] = plans
        self.client = Client(store=open_store(self.url))

    def ready(self):
        sign = " ready." if self.name == "bare" else "worker.ready:"
        _wait(lambda: all(sign in log.read_text() for log in self.logs), f"{self.name} is ready")

    def run(self, what):
        if what == "task":
            from bench import bare

            for _ in range(BATCH):
                bare.noop.apply_async()
            _wait(lambda: not self.server.llen("celery") and not self.server.zcard("unacked_index"), "empty")
            return
        if what == "asking":
            runs = [self.client.start("asking", None) for _ in range(20)]
            for run in runs:
                asked = run.wait(60).interrupts[0].id
                body = json.dumps({"v": 1, "interrupt_id": asked, "response": True})
                self.server.xadd("runner:responses", {"body": body})
            for run in runs:
                run.wait(60)
                _wait(lambda run=run: run.status is Status.COMPLETED, "answered")
            return
        run = self.client.start(what, list(range(ITEMS)) if what == "map" else None)
        key = f"runner:{{p00}}:r:{run.id}"
        _wait(lambda: (self.server.hget(key, "run") or b"").split(b" ")[0] in (b"completed", b"failed"), what)
        assert self.server.hget(key, "run").startswith(b"completed"), self.server.hget(key, "run")
        self.last = run


def measure(side, what):
    """Return nodes/s, Python us, Redis us, script us, scripts; each per node."""
    nodes = BATCH if what == "task" else NODES[what]
    before, python = side.server.info("all"), sum(tree_cpu(w.pid) for w in side.workers)
    own, began = time.process_time(), time.monotonic()
    side.run(what)
    spent = time.monotonic() - began
    after = side.server.info("all")
    used = sum(after[key] - before[key] for key in ("used_cpu_user", "used_cpu_sys"))
    scripts = [(info.get("cmdstat_evalsha", {"usec": 0, "calls": 0})) for info in (before, after)]
    cpu = sum(tree_cpu(w.pid) for w in side.workers) - python + time.process_time() - own
    return (
        nodes / spent,
        cpu / nodes * 1e6,
        used / nodes * 1e6,
        (scripts[1]["usec"] - scripts[0]["usec"]) / nodes,
        (scripts[1]["calls"] - scripts[0]["calls"]) / nodes,
    )


def answers(side, count):
    """Return ms from sending an answer to applied, and to the node's running."""
    applied, running = [], []
    for _ in range(count):
        run = side.client.start("asking", None)
        waiting = run.wait(60)
        body = json.dumps({"v": 1, "interrupt_id": waiting.interrupts[0].id, "response": True})
        sent = time.time()
        side.server.xadd("runner:responses", {"body": body})
        _wait(lambda: run.status is Status.COMPLETED, "the answer was used")
        resumed = next(event.at for event in run.events() if event.kind == "node.resumed")
        applied.append(max(0.0, resumed - sent * 1000))
        running.append((run.result().results["ask"].output - sent) * 1000)
    return applied, running


def busy_answers(side, count):
    """Return ms from sending an answer to applied while every slot is busy."""
    waiting = []
    for _ in range(count):
        run = side.client.start("asking", None)
        waiting.append((run, run.wait(60).interrupts[0].id))
    loads = [side.client.start("slow", None) for _ in range(4)]
    time.sleep(0.5)
    applied = []
    for run, interrupt_id in waiting:
        sent = time.time()
        side.server.xadd(
            "runner:responses", {"body": json.dumps({"v": 1, "interrupt_id": interrupt_id, "response": True})}
        )
        found = []
        _wait(lambda: found or found.extend(e for e in run.events() if e.kind == "node.resumed"), "applied")
        applied.append(max(0.0, found[0].at - sent * 1000))
    for load in loads:
        load.cancel("enough")
    for run in loads:
        run.wait(60)
    return applied


def hops(side, count):
    """Return ms between the nodes of an idle chain."""
    times = []
    for _ in range(count):
        result = side.client.start("clocked", None).wait(60)
        moments = [result.results[f"n{place}"].output for place in range(LENGTH)]
        times += [(b - a) * 1000 for a, b in pairwise(moments)]
    return times


def joins(side, count):
    """Return ms from the last of 500 to the join's start, and of whole fans."""
    late, whole = [], []
    for _ in range(count):
        began = time.monotonic()
        side.run("fan")
        whole.append((time.monotonic() - began) * 1000)
        events = list(side.last.events())
        done = max(e.at for e in events if e.kind == "node.completed" and e.node.startswith("n"))
        started = next(e.at for e in events if e.kind == "node.started" and e.node == "join")
        late.append(started - done)
    return late, whole


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", default="threads")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="task,chain,fan,lattice")
    parser.add_argument("--latencies", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="of rounds, at most")
    chosen = parser.parse_args()
    work = chosen.only.split(",")
    with tempfile.TemporaryDirectory() as folder, embedded_store() as store:
        socket = urlsplit(store.url).path
        sides = [
            Side(n, i, socket, Path(folder), chosen.pool, chosen.workers)
            for i, n in enumerate(("bare", "today", "plans", "stay"))
        ]
        try:
            for side in sides:
                side.ready()
            bare, today, plans, stay = sides
            found = {}
            ends = time.monotonic() + chosen.seconds
            for turn in range(chosen.rounds + 1):
                if time.monotonic() > ends:
                    break
                for what in work:
                    for side in (
                        [bare] if what == "task" else ([today, plans, stay] if turn % 2 else [stay, plans, today])
                    ):
                        figures = measure(side, what)
                        if turn:
                            found.setdefault((what, side.name), []).append(figures)
            show(found)
            print(
                "conflicts:",
                plans.server.hgetall("runner:{p00}:conflicts"),
                "applied:",
                sum(len(v) for v in found.values()),
                flush=True,
            )
            if chosen.latencies:
                for name, take in (
                    ("answer idle", answers),
                    ("hop", hops),
                    ("join", joins),
                    ("answer busy", busy_answers),
                ):
                    n = {"answer idle": 40, "hop": 3, "join": 6, "answer busy": 40}[name]
                    rounds = {today.name: [], plans.name: []}
                    for _ in range(chosen.latencies):
                        for side in (today, plans):
                            rounds[side.name].append(take(side, n))
                    for side, results in rounds.items():
                        parts = list(zip(*results)) if isinstance(results[0], tuple) else [results]
                        for place, part in enumerate(parts):
                            times = [t for r in part for t in r]
                            said = percentiles(times)
                            print(
                                f"{name} {place} {side:6}",
                                " ".join(f"{k} {v:.1f}" for k, v in said.items()),
                                "ms",
                                len(times),
                                flush=True,
                            )
        except BaseException:
            for side in sides[1:]:
                print(side.logs[0].read_text()[-3000:])
            raise
        finally:
            for side in sides:
                for worker in side.workers:
                    worker.kill()
                    worker.end()


def show(found):
    base = [median(v) for v in zip(*found[("task", "bare")])] if ("task", "bare") in found else None
    for (what, name), rows in found.items():
        rate, python, server, script, calls = (median(v) for v in zip(*rows))
        ratio = (
            f"redis/bare {server / base[2]:.2f} python/bare {python / base[1]:.2f} rate/bare {rate / base[0]:.2f}"
            if base
            else ""
        )
        print(
            f"{what:8} {name:6} nodes/s {rate:6.0f} python {python:6.0f} redis {server:6.0f} script {script:6.1f} calls {calls:5.2f}  {ratio}"
        )
    for what in dict.fromkeys(w for w, _ in found):
        if (what, "plans") in found and (what, "today") in found:
            pairs = [
                median(
                    b[i] / a[i] if a[i] else 0 for a, b in zip(found[(what, "today")], found[(what, "plans")])
                )
                for i in range(5)
            ]
            print(
                f"{what:8} plans/today: nodes/s {pairs[0]:.2f} python {pairs[1]:.2f} redis {pairs[2]:.2f} script {pairs[3]:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
