"""Calls through many gates at once that die at all moments: `python -m tests.doors.gate_soak --calls 10000`.

Each lane is a client with a folder, and so a server of its own. Its gate, its MCP server or the client
itself dies again and again, and the calls without an outcome are made again. One person approves,
rejects or withdraws at random. Whatever happened: no call is made twice, none without approval, and
each outcome that the client got is true.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from runner import Client
from runner.dev.embedded import embedded_store
from tests.doors.gates import gate, paid

BATCH = 50
"""Calls that a client makes at the same time."""

LATE = 3
"""The amount of calls whose approval is soon too old."""

POLICY = f"""
calls:
  - tools: pay
    bounds: {{amount: {{const: {LATE}}}}}
    rule: {{eligible: [ana], use_within: 0.5}}
  - tools: "*"
    rule: {{eligible: [ana]}}
"""

FINAL = {
    "rejected the call": "rejected",
    "withdrawn": "withdrawn",
    "may or may not": "unknown",
    "look at its effect": "unknown",
}
"""Parts of the texts that end a call, and its outcome; after any other the client makes it again."""


@dataclass
class Tally:
    """What became of the calls, by name."""

    outcomes: dict[str, str] = field(default_factory=dict)
    approved: set[str] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)

    def wrong(self):
        """Return the calls made without approval, or twice, or otherwise than their clients were told."""
        told = {"made": {1}, "unknown": {0, 1}}
        return {
            "unapproved": sorted(self.made.keys() - self.approved),
            "doubled": [name for name, count in self.made.items() if count > 1],
            "untrue": [
                f"{name}: {outcome}"
                for name, outcome in self.outcomes.items()
                if self.made[name] not in told.get(outcome, {0})
            ],
        }

    def __str__(self):
        """Return the figures in one line."""
        figures = {
            "calls": len(self.outcomes),
            **Counter(self.outcomes.values()),
            "effects": sum(self.made.values()),
            "asked again": sum(self.asked.values()) - len(self.asked),
            **{f"killed {name}": count for name, count in self.kills.items()},
            **{name: len(each) for name, each in self.wrong().items()},
        }
        return ", ".join(f"{name} {count}" for name, count in figures.items())


def outcome_of(answer):
    """Return the outcome that an answer tells, "" if the call goes on."""
    result = answer.get("result", {})
    text = result.get("content", [{}])[0].get("text", "")
    if "result" in answer and not result.get("isError"):
        return "made"
    return next((outcome for part, outcome in FINAL.items() if part in text), "")


class Lane:
    """One client."""

    def __init__(self, tally, folder, url, *, number, calls, main):
        self.tally, self.folder, self.url, self.main = tally, folder, url, main
        self.chance = random.Random(number)  # noqa: S311 - no secret
        self.todo = [f"p{number}-{each}" for each in range(calls)]
        folder.mkdir(parents=True)
        (folder / "policy.yaml").write_text(POLICY)

    def run(self, until):
        while self.todo and time.monotonic() < until:
            self.session()

    def session(self):
        environment = {"RUNNER_LEASE": "2", "PAUSE": "0.02"}
        with gate(self.folder, self.url, wait=20, main=self.main, env=environment) as client:
            names = {client.begin_call("pay", args(name)): name for name in self.todo[:BATCH]}
            victim = self.chance.choice(["gate", "client", "server", "server"])
            client.until_answered(names.keys(), self.chance.randrange(len(names) + 1))
            time.sleep(self.chance.random() * 0.1)  # the moment of the death
            self.tally.kills[victim] += 1
            if victim == "server":
                children = Path(
                    f"/proc/{client.process.pid}/task/{client.process.pid}/children"
                )
                for child in children.read_text().split():
                    os.kill(int(child), signal.SIGKILL)
                client.until_answered(names.keys(), self.chance.randrange(len(names) + 1), 5)
            if victim == "client":
                client.process.stdin.close()
                client.process.wait(60)
            client.process.kill()
            answers = client.rest()
        for number, name in names.items():
            if outcome := outcome_of(answers.get(number, {})):
                self.tally.outcomes[name] = outcome
                self.todo.remove(name)


def args(name):
    """Return a call's arguments; a twentieth of the approvals are soon too old."""
    return {"to": name, "amount": LATE if name.endswith("7") and name[-2:-1] in "05" else 500}


def decide(people, tally, stop):
    """Decide what is asked, at random, and handle what is due."""
    chance, tried = random.Random(1), set()  # noqa: S311 - no secret
    while not stop.wait(0.05):
        people.engine.sweep()
        for asked in people.interrupts():
            name = asked.action["args"]["to"]
            if asked.id not in tried:
                tried.add(asked.id)
                tally.asked[name] += 1
            lot = chance.random()
            if lot < 0.1:
                people.withdraw(asked.id, "not now")
            else:
                # Before the vote, because its effect may come before its receipt.
                is_approval = lot < 0.85
                if is_approval:
                    tally.approved.add(name)
                people.vote(asked.id, "approve" if is_approval else "reject", by="ana")


def soak(folder, url, calls, *, lanes=4, main="runner.doors.gate", minutes=60.0):
    """Make the calls, or as many as fit into the minutes, and return what became of them."""
    tally, stop = Tally(), threading.Event()
    people, until = Client(url), time.monotonic() + minutes * 60
    each = [
        Lane(tally, folder / f"lane{n}", url, number=n, calls=calls // lanes, main=main)
        for n in range(lanes)
    ]
    with ThreadPoolExecutor(lanes + 1) as threads:
        deciding = threads.submit(decide, people, tally, stop)
        try:
            for done in [threads.submit(lane.run, until) for lane in each]:
                done.result()
        finally:
            stop.set()
        deciding.result()
    for lane in each:
        tally.made.update(line.split()[1] for line in paid(lane.folder))
    return tally


def main():
    """Run it, print the figures, and fail if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=120.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, embedded_store() as store:
        tally = soak(
            Path(folder), store.url, options.calls, lanes=options.lanes, minutes=options.minutes
        )
    print(tally)  # noqa: T201 - a program
    wrong = {name: each for name, each in tally.wrong().items() if each}
    sys.exit(f"wrong: {wrong}" if wrong else 0)


if __name__ == "__main__":
    main()
