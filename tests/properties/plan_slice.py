"""Seeded runs of the two stores with plans: `python -m tests.properties.plan_slice FIRST COUNT`.

The machine of `test_stores_agree` without hypothesis: steps are drawn in proportions in which runs get on, so
that most of them are planned. The memory store has the rules as they are; after each step both are equal.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from dataclasses import replace

os.environ["RUNNER_PLANS"] = "1"

from runner.definition.cycles import reach
from runner.definition.model import Definition, EdgeSpec, FailurePolicy, Join, NodeSpec, MapSpec
from runner.definition.topology import topology
from runner.dev.embedded import embedded_store
from runner.errors import DefinitionError
from runner.records.interrupts import Address, Answer
from runner.records.outcomes import Saved
from runner.store.interface import Claim
from runner.store.memory.store import MemoryStore
from runner.store.redis.planned import Planned
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from tests.properties.test_stores_agree import LEASE, Agreement

INVARIANTS = (
    "runs_are_equal",
    "a_replay_of_everything_gives_what_is_there",
    "indexes_are_equal",
    "counters_are_what_a_recount_gives",
    "maps_are_what_a_recount_gives",
)


def draw_graph(rng, name, maps):
    """Draw any graph."""
    while True:
        names = "abcdefg"[: rng.randint(1, 7)]
        pairs = list(dict.fromkeys((rng.choice(names), rng.choice(names)) for _ in range(rng.randint(0, 10))))
        entries = tuple(dict.fromkeys(rng.choice(names) for _ in range(rng.randint(1, 2))))
        onward = {node: [target for source, target in pairs if source == node] for node in names}
        nodes = sorted(reach(list(entries), onward))
        definition = Definition(
            id=name,
            nodes={
                node: NodeSpec(
                    node,
                    executor=None,
                    kind="function",
                    join=rng.choice(list(Join)),
                    resume=rng.choice(["all", "each"]),
                    priority=rng.choice([None, 0, 9]),
                    map=MapSpec("function", None, rng.choice([None, 1, 2]), rng.random() < 0.5)
                    if maps and rng.random() < 0.3
                    else None,
                )
                for node in nodes
            },
            edges=tuple(EdgeSpec(a, b) for a, b in pairs if a in nodes),
            entries=entries,
            policy=rng.choice(list(FailurePolicy)),
            execution_timeout=rng.choice([None, None, 500.0]),
        )
        try:
            return topology(definition)
        except DefinitionError:
            continue


class Slice(Agreement):
    """One seed."""

    def play(self, rng, steps, maps):
        options = {"clock": self.clock, "lease": LEASE}
        self.memory, self.redis = MemoryStore(**options), RedisStore(self.url, push=False, **options)
        self.shapes = [draw_graph(rng, "first", maps), draw_graph(rng, "second", maps)]
        self.versions = list(self.shapes)
        self.both("publish", self.shapes)
        self.start(self, 0, None, None, "") if False else self.begin(rng)
        for _ in range(steps):
            self.step(rng)
            for name in INVARIANTS:
                getattr(self, name)()

    def begin(self, rng):
        from runner.store.interface import Start

        graph, run_id = self.shapes[rng.randint(0, 1)], f"00run{len(self.runs)}"
        start = Start(
            run_id, graph.graph_id, None, "t", tags={"t": "1"}, on_end=rng.choice(["", "shop.done"])
        )
        if self.both("start", start, self.nonce()).word == "started":
            self.runs.append(run_id)

    def choose(self, rng, items):
        return items[-1 - min(rng.choice([0, 0, 1, 1, 2, 3, 5, 8]), len(items) - 1)]

    def step(self, rng):
        what = rng.choice(
            ["take"] * 12
            + ["settle"] * 4
            + ["ask", "park", "park"]
            + ["answer"] * 4
            + ["time", "begin", "cancel", "repeat", "retry", "leave", "save", "withdraw"]
        )
        if what == "take" and self.bells:
            bell = self.choose(rng, self.bells)
            claim = self.both("claim", bell.run_id, bell.node, bell.visit, bell.attempt, self.nonce())
            if isinstance(claim, Claim):
                self.work(rng, claim)
        elif what == "settle" and self.tokens:
            self.finish(rng, self.choose(rng, self.tokens))
        elif what in ("ask", "park") and self.tokens:
            self.question(rng, what, self.choose(rng, self.tokens))
        elif what == "answer":
            asked = list(self.memory.open_interrupts())
            if asked and rng.random() < 0.9:
                picked = rng.sample(asked, min(len(asked), rng.choice([1, 1, 2])))
                self.both(
                    "answer",
                    [Answer(q.id, rng.choice([1, "x"]), "ann") for q in picked],
                    self.nonce(),
                    *([self.memory.interrupts([q.id for q in picked])] if rng.random() < 0.7 else []),
                )
            elif self.questions:
                self.both("answer", [Answer(rng.choice(self.questions), 1, "ann")], self.nonce())
        elif what == "time":
            self.clock.advance(rng.choice([0.7, 20, LEASE, 31]))
            self.both("sweep", rng.choice([1, 100]))
        elif what == "begin" and len(self.runs) < 4:
            self.begin(rng)
        elif what == "cancel" and rng.random() < 0.3:
            self.both("cancel", rng.choice(self.runs), "enough")
        elif what == "repeat" and self.last:
            name, arguments, named = self.last
            self.both(name, *arguments, **named)
        elif what == "retry" and self.tokens:
            self.both("retry", self.choose(rng, self.tokens), 700, {"v": 1}, None)
        elif what == "leave" and self.tokens:
            self.both("leave", self.choose(rng, self.tokens))
        elif what == "save" and self.tokens:
            saved = Saved({"v": 1, "k": "y" * rng.randint(0, 9)}, rng.randint(0, 3), ["one"])
            self.both("save", self.choose(rng, self.tokens), saved)
        elif what == "withdraw" and self.questions:
            self.both("withdraw", rng.choice(self.questions), "no", reask=rng.random() < 0.5)

    def work(self, rng, claim):
        shape = self.shape_of(claim.token.run_id).nodes.get(claim.token.node)
        if shape is not None and shape.map is not None and (claim.map is None or not claim.map.has_ended):
            self.both("expand", claim.token, None if claim.map else list(range(rng.randint(0, 5))))
        elif rng.random() < 0.75:
            self.finish(rng, claim.token)
        elif rng.random() < 0.8:
            self.question(rng, rng.choice(["ask", "park", "park"]), claim.token)

    def finish(self, rng, token):
        self.end(
            token,
            rng.choice([511, 511, rng.randint(0, 511)]),
            rng.random() < 0.06,
            rng.choice([None, None, Saved({"v": 1}, 1, ["m"])]),
            (),
        )

    def question(self, rng, verb, token):
        address = Address(token.run_id, token.node, token.visit)
        names = rng.sample("xyz", rng.randint(1, 2))
        lasts = rng.choice([None, None, 20.0])
        more = rng.choice([{}, {}, {"remind_every": 10}, {"remind_after": [0.7, 15]}])
        asked = [
            address.ask(
                name, "why", scope="function", expires_in=lasts, assignees=["ann"] if lasts else [], **more
            )
            for name in names
        ]
        saved = Saved({"v": 1, "n": "x" * rng.randint(0, 5)}, rng.randint(0, 3), ["m"] * rng.randint(0, 2))
        self.both(verb, token, asked, rng.choice([None, saved]))
        self.questions += [question.id for question in asked if question.id not in self.questions]


def main():
    first, count, maps = int(sys.argv[1]), int(sys.argv[2]), "maps" in sys.argv
    counts = Counter()
    for name in ("claim", "settle", "follow", "ask", "answer"):

        def wrap(name=name, old=getattr(Planned, name)):
            def planned(self, *arguments):
                reply = old(self, *arguments)
                word = "general" if reply is None else getattr(reply, "word", "claimed")
                counts[name, arguments[1].split(" ")[0] if name == "follow" else word] += 1
                return reply

            setattr(Planned, name, planned)

        wrap()
    with embedded_store() as server:
        for seed in range(first, first + count):
            if (seed - first) % 20 == 19:
                print(seed, dict(sorted(counts.items())), flush=True)
            machine = type("Machine", (Slice,), {"url": server.url})()
            try:
                machine.play(random.Random(seed), 60, maps)
            except BaseException:
                print("seed", seed, machine.last)
                raise
            finally:
                machine.teardown()
    print(dict(sorted(counts.items())), flush=True)


if __name__ == "__main__":
    main()
