"""Plans beside the general scripts, driven by one process without workers: server CPU and script time per node."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from statistics import median

import redis

from bench import graphs, plan_graphs
from runner.celery.doorbells import make_template
from runner.definition.registry import plan
from runner.dev.embedded import embedded_store
from runner.records.run import Status
from runner.store.interface import Claim, Settlement, Start
from runner.store.redis.store import RedisStore


class Bell:
    """A doorbell out of the queue."""

    def __init__(self, message):
        self.run_id, rest = json.loads(message)["headers"]["id"].split(".", 1)
        self.node, visit, attempt = rest.rsplit(".", 2)
        self.visit, self.attempt = int(visit), int(attempt)


def drive(store, server, topology, run):
    """Start a run and do all its nodes in order; returns the number of nodes."""
    reply = store.start(Start(run, topology.graph_id, topology.fingerprint, list(range(200))), "n")
    nodes = 0
    while message := server.rpop(QUEUE):
        bell = Bell(message)
        claim = store.claim(bell.run_id, bell.node, bell.visit, bell.attempt, f"c{nodes}")
        assert isinstance(claim, Claim), claim
        nodes += 1
        edges = "1" * len(topology.outgoing[bell.node]) if not bell.node.endswith("]") else ""
        if bell.node in topology.nodes and topology.nodes[bell.node].map and claim.map is None:
            todo = [store.expand(claim.token, claim.task)]
        else:
            if topology.graph_id == "loop" and bell.node == "c":
                edges = "10" if bell.visit < plan_graphs.ROUNDS else "01"
            todo = [
                store.settle(
                    claim.token,
                    Settlement(Status.COMPLETED, edges, None, {"v": 1, "kind": "function", "ms": 0}),
                    f"s{run}{nodes}",
                )
            ]
        while todo:
            reply = todo.pop()
            todo += [store.follow(*each) for each in reply.follow]
    assert store.peek(run).status == "completed", store.peek(run)
    return nodes


QUEUE = "runner\x06\x163"


def template(store):
    """Store a message as Celery writes it."""
    from runner.celery import app

    made = make_template(app)
    store.install_doorbell(made)


def main():
    rounds, names = int(sys.argv[1]), sys.argv[2].split(",")
    with embedded_store() as server:
        os.environ["RUNNER_REDIS_URL"] = server.url
        client = redis.Redis.from_url(server.url)
        stores = {}
        for name in ("today", "plans"):
            os.environ["RUNNER_PLANS"] = "1" if name == "plans" else "0"
            stores[name] = RedisStore(server.url, lease=30)
            template(stores[name])
        found = {}
        for turn in range(rounds + 1):
            for graph in names:
                make = getattr(graphs, graph, None) or getattr(
                    plan_graphs, {"map": "mapped"}.get(graph, graph)
                )
                topology = plan(replace(make().definition, id=graph)).topology
                for name in ["today", "plans"] if turn % 2 else ["plans", "today"]:
                    store = stores[name]
                    store.publish([topology])
                    before = client.info("all")
                    nodes = drive(store, client, topology, f"00run{graph}{name}{turn}")
                    after = client.info("all")
                    cpu = sum(after[k] - before[k] for k in ("used_cpu_user", "used_cpu_sys")) / nodes * 1e6
                    usec = (
                        after["cmdstat_evalsha"]["usec"] - before.get("cmdstat_evalsha", {"usec": 0})["usec"]
                    ) / nodes
                    calls = {
                        k[8:]: (v["calls"] - before.get(k, {"calls": 0})["calls"]) / nodes
                        for k, v in after.items()
                        if k.startswith("cmdstat_")
                    }
                    if turn:
                        found.setdefault((graph, name), []).append((cpu, usec, sum(calls.values())))
                        last = calls
        for (graph, name), rows in found.items():
            cpu, usec, calls = (median(v) for v in zip(*rows))
            low = [min(v) for v in zip(*rows)]
            print(
                f"{graph:8} {name:6} server CPU {cpu:6.1f} (min {low[0]:.1f}) in scripts {usec:6.1f} (min {low[1]:.1f}) us/node, commands {calls:.1f}"
            )
        for graph in names:
            a, b = found[graph, "today"], found[graph, "plans"]
            ratio = [median(y[i] / x[i] for x, y in zip(a, b)) for i in range(3)]
            print(f"{graph:8} plans/today CPU {ratio[0]:.2f} scripts {ratio[1]:.2f} commands {ratio[2]:.2f}")


if __name__ == "__main__":
    main()
