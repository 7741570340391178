"""Numbers about a store, for Prometheus: each is one cheap command, however many runs there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runner.listings import RunQuery
from runner.run import Status
from runner.store.keys import DEAD_MESSAGES, RESPONSES, STARTS, Keys
from runner.store.link import Link
from runner.store.roster import Roster

STATUSES = (
    Status.EXECUTING,
    Status.INTERRUPTED,
    Status.NEEDS_MIGRATION,
    Status.COMPLETED,
    Status.FAILED,
    Status.CANCELLED,
)


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number; its labels have few values and never name a run."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def gauges(url: str) -> list[Gauge]:
    """Read all numbers.

    Raises:
        StoreError: the store can't be reached.
    """
    link, roster = Link(url), Roster(url)
    try:
        now = roster.now()
        return [*_runs(link), *_questions(link, now), *_rest(link, now), *_workers(roster, now)]
    finally:
        link.close()
        roster.close()


def _runs(link: Link) -> Iterator[Gauge]:
    keys = Keys()
    for status in STATUSES:
        count = int(link.call("ZCARD", keys.runs(RunQuery(status))[-1]))
        yield Gauge("runner_runs", "Runs that are kept, by status.", count, {"status": str(status)})


def _questions(link: Link, now: int) -> Iterator[Gauge]:
    keys = Keys()
    oldest = link.call("ZRANGE", keys.open, 0, 0, "WITHSCORES")
    age = max(0.0, now - float(oldest[1])) / 1000 if oldest else 0.0
    yield Gauge(
        "runner_questions_open", "Questions that wait for people.", int(link.call("ZCARD", keys.open))
    )
    yield Gauge("runner_question_oldest_seconds", "For how long the oldest open question waits.", age)


def _rest(link: Link, now: int) -> Iterator[Gauge]:
    keys = Keys()
    due = link.call("ZRANGE", f"{keys.prefix}timers", 0, 0, "WITHSCORES")
    late = max(0.0, now - float(due[1])) / 1000 if due else 0.0
    yield Gauge("runner_sweep_late_seconds", "For how long something that is due was not swept.", late)
    for kind, stream in (("message", DEAD_MESSAGES), ("node", keys.dead)):
        count = int(link.call("XLEN", stream))
        yield Gauge("runner_dead_letters", "Dead letters, by kind.", count, {"kind": kind})
    for door, stream in (("responses", RESPONSES), ("starts", STARTS)):
        count = int(link.call("XLEN", stream))
        yield Gauge("runner_messages_pending", "Messages not applied yet.", count, {"stream": door})


def _workers(roster: Roster, now: int) -> Iterator[Gauge]:
    alive = [worker for worker in roster.all() if worker.alive(now)]
    yield Gauge("runner_workers", "Workers that gave a sign of life lately.", len(alive))
    yield Gauge("runner_slots", "Nodes that can run at once.", sum(worker.slots for worker in alive))
    yield Gauge("runner_slots_busy", "Nodes that run now.", sum(worker.busy for worker in alive))
