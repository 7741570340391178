"""The steps at which processes die in these tests, and what is true of a run afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.celery.workers import MARGIN, RECOVERY
from tests.chaos import journey
from tests.chaos.kill_switch import arm, died_at

WITHIN = RECOVERY + MARGIN
"""Seconds within which the node shows a sign of life again; much of it is for waiting in the queue."""


@dataclass(frozen=True)
class Step:
    """Where a process dies: at a point, of that node; and what is killed."""

    point: str
    node: str = "pay"
    how: str = "self"
    graph: str = "journey"

    def __str__(self) -> str:
        return f"{self.point} {self.node} {self.how}"

    @property
    def branch(self) -> str:
        return self.node.partition("[")[0]

    @property
    def key(self) -> str:
        """The idempotency key of a start by message."""
        return f"key-{self.point}"

    def name(self, run_id: str) -> str:
        if self.point.startswith("start."):
            return self.key
        if self.point.startswith("sweep."):
            return "any"
        if self.point.startswith(("answer.", "done.")):
            return journey.question_of(run_id, self.node)
        return f"{run_id}/{self.node}"

    def arm(self, site, run_id: str) -> None:
        arm(site, self.point, self.name(run_id), self.how)

    def died(self, site, run) -> int:
        return died_at(site, self.point, self.name(run.id))


def repeated(site, run, step, plain, place=None) -> Counter:
    """Hold a run against one that nothing happened to; return the nodes whose code was started once more."""
    assert step.died(site, run), "nothing died"
    assert journey.outputs(run) == journey.outputs(plain)
    assert journey.commits(run) == journey.commits(plain)
    assert set(journey.commits(run).values()) == {1}
    assert all(len(keys) == 1 for keys in journey.keys(site, run).values())
    more = journey.starts(site, run) - journey.starts(place or site, plain)
    # One death loses one lease. A machine so slow that leases run out by themselves loses more of them.
    unexplained = more - journey.lost(run)
    assert not unexplained, f"started again without a lost lease: {unexplained}"
    return more


def gap(site, run, step) -> float:
    """Return the seconds from the death to the node's next sign of life; 0 if nothing was left to do."""
    died = step.died(site, run)
    after = [event.at for event in run.events() if event.node == step.node and event.at > died]
    return (after[0] - died) / 1000 if after else 0
