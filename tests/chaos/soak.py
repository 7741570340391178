"""Mixed load for minutes while a fault strikes every two seconds: `python -m tests.chaos.soak --minutes 20`.

Whatever happened: no run is lost or ends otherwise than it should, no visit is committed twice, every
question takes one answer, and memory stays flat. The seed is printed; it draws the load and the faults, not
their timing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import redis

from runner import Client, Status
from runner.dev.embedded import embedded_store
from runner.errors import NotFoundError, RunnerError
from runner.store.redis.store import RedisStore
from tests.celery.workers import LEASE, Site
from tests.chaos.soak_faults import Faults
from tests.chaos.soak_graphs import SHAPES, expected

EVERY = 2.0
"""Seconds between two faults."""
IN_FLIGHT = 30
CANCELLED = 0.06
"""How many runs are cancelled in the middle."""
RETENTION = "90"
DRAIN = 90.0
"""Seconds without faults in which every run must have ended."""
REPLIES = "soak:replies"
FLAT = 0.15
"""How much memory may grow from the second third of the time to the last."""


@dataclass
class Watched:
    """A run that was accepted, and what people said in it: all answers sent, and those with a receipt."""

    shape: str
    task: int
    cancel_at: float = 0.0
    cancelled: bool = False
    sent: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


@dataclass
class Tally:
    """What became of everything."""

    accepted: int = 0
    completed: int = 0
    cancelled: int = 0
    visits: int = 0
    again: int = 0
    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    unanswerable: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    memory: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @property
    def faultless(self) -> bool:
        return not (
            self.wrong or self.doubled or self.unanswerable or self.lost or self.growing()
        )

    def growing(self) -> list[str]:
        """Name what has grown by too much."""
        return [name for name in self.memory if self.growth(name) > FLAT]

    def growth(self, name: str) -> float:
        """By which part of itself a memory has grown from the second third to the last one."""
        sizes = [value for _, value in self.memory[name]]
        third = len(sizes) // 3
        if third < 20:
            return 0.0
        earlier, later = sorted(sizes[third : 2 * third]), sorted(sizes[-third:])
        return later[third // 2] / earlier[third // 2] - 1

    def slope(self, name: str) -> float:
        """How fast a memory grows in the last two thirds, in MB a minute (least squares)."""
        points = self.memory[name][len(self.memory[name]) // 3 :]
        if len(points) < 2:
            return 0.0
        mean_x = sum(second for second, _ in points) / len(points)
        mean_y = sum(size for _, size in points) / len(points)
        spread = sum((second - mean_x) ** 2 for second, _ in points)
        return 60 * sum((second - mean_x) * (size - mean_y) for second, size in points) / spread


class People:
    """Whoever starts, answers and cancels runs: they repeat what was not acknowledged, and check the ends."""

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site, self.rng, self.tally = site, rng, Tally()
        self.runs: dict[str, Watched] = {}
        self.receipts: dict[str, set[str]] = defaultdict(set)
        self._starting: tuple[str, Watched] | None = None
        self._seen = "0"
        self.client = Client(
            store=RedisStore(site.url, lease=LEASE, retention=float(RETENTION))
        )

    def turn(self, *, begins: bool) -> None:
        """Do a little of everything; an outage only puts it off."""
        steps = [self._answer, self._read_receipts, self._cancel, self._check]
        for step in [self._begin, *steps] if begins or self._starting else steps:
            try:
                step()
            except (RunnerError, redis.RedisError):
                continue

    def _begin(self) -> None:
        while len(self.runs) < IN_FLIGHT:
            if self._starting is None:
                watched = Watched(self.rng.choice(SHAPES), self.rng.randrange(1000))
                if self.rng.random() < CANCELLED:
                    watched.cancel_at = time.monotonic() + self.rng.uniform(0.1, 3.0)
                self._starting = f"soak{self.rng.getrandbits(64):x}", watched
            key, watched = self._starting
            run = self.client.start(watched.shape, watched.task, idempotency_key=key)
            self._starting = None
            self.runs[run.id] = watched
            self.tally.accepted += 1

    def _answer(self) -> None:
        """Answer what is open, sometimes twice: by a message, from here, or both."""
        for question in self.client.interrupts(limit=200):
            watched = self.runs.get(self._root(question.run_id))
            if watched is None or self.rng.random() < 0.3:
                continue
            response = f"{question.node_id}{self.rng.randrange(10**6)}"
            watched.sent[question.id].add(response)
            if self.rng.random() < 0.6:
                self._send(question.id, response)
            if self.rng.random() < 0.6:
                other = f"{response}+"
                watched.sent[question.id].add(other)
                receipt = self.client.respond(question.id, other, idempotency_key=other)
                if receipt.status == "accepted":
                    self.receipts[question.id].add(other)

    def _root(self, run_id: str) -> str:
        record = self.client.engine.store.peek(run_id) if run_id not in self.runs else None
        return record.root or run_id if record else run_id

    def _send(self, question: str, response: str) -> None:
        body = {
            "v": 1,
            "interrupt_id": question,
            "response": response,
            "idempotency_key": response,
        }
        self.site.send(json.dumps({**body, "reply_to": REPLIES}))

    def _read_receipts(self) -> None:
        for key, fields in self.site.redis.xrange(
            REPLIES, f"({self._seen}" if self._seen != "0" else "-"
        ):
            self._seen = key.decode()
            receipt = json.loads(fields[b"body"])
            if receipt["status"] == "accepted":
                self.receipts[receipt["interrupt_id"]].add("?")
        self.site.redis.xtrim(REPLIES, maxlen=1000)

    def _cancel(self) -> None:
        for run_id, watched in self.runs.items():
            if (
                watched.cancel_at
                and not watched.cancelled
                and time.monotonic() > watched.cancel_at
            ):
                self.client.run(run_id).cancel("the soak cancels it")
                watched.cancelled = True

    def _check(self) -> None:
        """Look at what has ended, and forget it."""
        for run_id, watched in list(self.runs.items()):
            try:
                if self.client.run(run_id).status in (
                    Status.COMPLETED,
                    Status.CANCELLED,
                    Status.FAILED,
                ):
                    self._judge(run_id, watched)
                    del self.runs[run_id]
            except NotFoundError:
                self.tally.lost.append(f"{run_id} ({watched.shape}) is gone")
                del self.runs[run_id]

    def _judge(self, run_id: str, watched: Watched) -> None:
        tally, run = self.tally, self.client.run(run_id)
        result, events = run.result(), list(run.events())
        once = [
            event for event in events if event.kind in ("node.completed", "interrupt.answered")
        ]
        commits = Counter((event.kind, event.node, event.visit, event.detail) for event in once)
        tally.doubled += [
            f"{run_id} {commit}" for commit, count in commits.items() if count > 1
        ]
        tally.visits += sum(event.kind == "node.completed" for event in once)
        tally.again += sum(entry.kind in ("node.lost", "node.left") for entry in events)
        by_question = {
            event.detail: event.data for event in once if event.kind == "interrupt.answered"
        }
        tally.answered += len(by_question)
        if watched.cancelled and result.status is Status.CANCELLED:
            tally.cancelled += 1
            return
        answers = {}
        for question, answer in by_question.items():
            response = answer["response"]
            answers[question.split(".")[1]] = response
            if response not in watched.sent[question]:
                tally.wrong.append(f"{run_id}: nobody sent {response!r} to {question}")
        output = result.results["z"].output if "z" in result.results else None
        if result.status is Status.COMPLETED and output == expected(
            watched.shape, watched.task, answers
        ):
            tally.completed += 1
        else:
            last = [f"{event.kind} {event.node} {event.detail}" for event in events[-12:]]
            what = (
                f"{run_id} ({watched.shape} of {watched.task}) is {result.status}: {output!r}"
            )
            tally.wrong.append(f"{what} after {answers}; {last}")

    def close(self) -> None:
        """Say what has not ended: lost, or with a question that takes no answer."""
        for question, accepted in self.receipts.items():
            if len(accepted) > 1:
                self.tally.doubled.append(f"{question} accepted {accepted}")
        for run_id, watched in self.runs.items():
            status = self.client.run(run_id).status
            into = self.tally.unanswerable if status is Status.INTERRUPTED else self.tally.lost
            into.append(f"{run_id} ({watched.shape}) is {status}")


def resident(pid: int) -> float:
    """The memory of a process, in MB."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(
    minutes: float, seed: int, *, drain: float = DRAIN, **settings: str
) -> tuple[Tally, Faults]:
    """Run load and faults for so long, then let everything come to its end."""
    rng, fault_rng = random.Random(seed), random.Random(seed + 1)  # noqa: S311 - no secret
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded_store(appendonly=True, directory=Path(folder) / "data") as store,
    ):
        site = Site(store.url, Path(folder))
        faults = Faults(site, store, fault_rng, {"RUNNER_RETENTION": RETENTION, **settings})
        try:
            site.workers[0].wait_ready()
            people = People(site, rng)
            storm(people, faults, minutes)
            faults.heal()
            ends = time.monotonic() + drain
            while people.runs and time.monotonic() < ends:
                people.turn(begins=False)
                faults.mend()
                threading.Event().wait(0.05)
            people.close()
            return people.tally, faults
        finally:
            site.end()


def storm(people: People, faults: Faults, minutes: float) -> None:
    """Load, and a fault every two seconds."""
    pause, began = threading.Event(), time.monotonic()
    next_fault, next_look = began + EVERY, began
    while (now := time.monotonic()) < began + minutes * 60:
        people.turn(begins=True)
        faults.mend()
        if now >= next_fault:
            next_fault = now + EVERY
            faults.strike()
        if now >= next_look:
            next_look = now + 1.0
            look(people, faults, now - began)
        pause.wait(0.05)


def look(people: People, faults: Faults, second: float) -> None:
    """Note how much memory the store and the worker that is never ended take."""
    memory = people.tally.memory
    try:
        memory["worker"].append((second, resident(faults.survivor.pid)))
        client = people.site.redis
        # The two streams grow until they have as many entries as they may have.
        bounded = sum(
            client.memory_usage(name) or 0 for name in ("runner:{p00}:notices", "runner:dead")
        )
        memory["store"].append((second, (client.info("memory")["used_memory"] - bounded) / 1e6))
    except (OSError, redis.RedisError):
        return


def report(tally: Tally, faults: Faults, minutes: float, seed: int) -> str:
    """Write what happened, one fact a line."""
    lines = [
        f"seed {seed}, {minutes:g} minutes",
        f"runs: {tally.accepted} accepted, {tally.completed} completed, {tally.cancelled} cancelled",
        f"lost: {len(tally.lost)}, wrong: {len(tally.wrong)}, unanswerable: {len(tally.unanswerable)}",
        f"visits: {tally.visits} committed, {len(tally.doubled)} twice; {tally.again} begun again",
        f"questions answered: {tally.answered}",
        f"faults: {sum(faults.done.values())} ({counted(faults.done)})",
        f"workers that ended: {counted(faults.ended)}",
    ]
    for name, points in tally.memory.items():
        size, slope, growth = points[-1][1], tally.slope(name), tally.growth(name)
        lines.append(
            f"memory of the {name}: {size:.1f} MB, {slope:+.2f} MB a minute, {growth:+.1%} at the end"
        )
    for kind in ("lost", "wrong", "unanswerable", "doubled"):
        lines += [f"{kind}: {line}" for line in getattr(tally, kind)[:20]]
    return "\n".join(lines)


def counted(counts: Counter[str]) -> str:
    """Write counts as words."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def main() -> int:
    """Run from the command line; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    sys.stdout.write(f"seed {seed}\n")
    sys.stdout.flush()
    tally, faults = soak(options.minutes, seed)
    sys.stdout.write(f"{report(tally, faults, options.minutes, seed)}\n")
    return 0 if tally.faultless else 1


if __name__ == "__main__":
    sys.exit(main())
