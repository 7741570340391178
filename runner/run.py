"""What a run is: small records, one for the run, each node, each loop and each place of arrival.

A store keeps exactly these; scheduling reads and writes nothing else. All are values: a
transition makes new ones. A record that was never written has the defaults.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """Where a run or a node stands.

    A run is executing, needs_migration, interrupted, failed, cancelled or completed; only the
    last three are final. A node is pending, ready, running, waiting, retrying, completed, failed,
    skipped or cancelled.
    """

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    EXECUTING = "executing"
    INTERRUPTED = "interrupted"
    NEEDS_MIGRATION = "needs_migration"


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
SETTLED = FINAL | {Status.SKIPPED}
ACTIVE = frozenset({Status.READY, Status.RUNNING, Status.RETRYING})


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of a run. `stamp` is the round of its innermost loop in which all this holds.

    `edges` has a "1" or "0" for each outgoing edge once the node has completed; `via` lists the
    (node, visit) pairs whose back edges asked for this visit, in batches those that are its inputs;
    `questions` are the ids still open;
    `unseen` counts answers that came after the last claim; `nonce` is that of the last request.
    `items` says that a map waits while its items do its work.
    `crashes` counts leases lost in a row; `uncounted` is how many attempts of this visit count for no
    retry policy: those of lost workers, and those before a person said "retry".
    `since` is when it first asked for the places of its limits, while it has them or waits for them;
    `granted` says that a rate has given its next execution a time.
    `handed` names the work that another system does for the node; `sent` says that the system has it,
    `late` that it said nothing in time.
    """

    status: Status = Status.PENDING
    visit: int = 0
    attempt: int = 0
    fence: int = 0
    stamp: int = 0
    crashes: int = 0
    uncounted: int = 0
    edges: str = ""
    via: tuple[tuple[str, int], ...] = ()
    questions: tuple[str, ...] = ()
    unseen: int = 0
    child: str = ""
    busy: bool = False
    held: bool = False
    nonce: str = ""
    rings: int = 0
    items: bool = False
    since: int = 0
    granted: bool = False
    handed: str = ""
    sent: bool = False
    late: bool = False

    @property
    def is_out(self) -> bool:
        """Tell whether the node waits for another system, and for nothing else."""
        waits = self.status is Status.WAITING and self.busy
        return waits and bool(self.handed) and not (self.items or self.child)

    @property
    def ended(self) -> tuple[int, str]:
        """The visit and status of a result that conditions may read; (0, "") while there is none."""
        has_result = self.status in (Status.COMPLETED, Status.FAILED)
        return (self.visit, self.status) if has_result else (0, "")


@dataclass(frozen=True, slots=True)
class MapRecord:
    """The items of a map's visit: how many, which begins `next`, and counts of those begun.

    `stopped` says that an item failed and no more begin; then the idle ones before `swept` have been
    cancelled.
    """

    visit: int = 0
    total: int = 0
    next: int = 0
    active: int = 0
    waiting: int = 0
    failed: int = 0
    stopped: bool = False
    swept: int = 0

    @property
    def has_ended(self) -> bool:
        """Tell whether no item is at work, waits or is still to begin."""
        return not (self.active or self.waiting) and (self.stopped or self.next >= self.total)


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """One loop of a run: its round, how many of its nodes have settled in it, who asked for
    another round, and which of its exits were taken, each with the visit of its source.
    """

    round: int = 0
    settled: int = 0
    asked: tuple[tuple[str, int], ...] = ()
    taken: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What has arrived at one node over the edges of one scope, in that scope's round `stamp`."""

    stamp: int = 0
    arrived: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True)
class Records:
    """All records of a run at once, worked out from its history: see `replay.py`. `failed` counts the
    nodes that have failed; `maps` are those that begin anew; `scopes` name the innermost loop of
    each node that is in one.
    """

    nodes: Mapping[str, NodeRecord]
    loops: Mapping[int, LoopRecord]
    arrivals: Mapping[tuple[int, str], Arrivals]
    failed: int = 0
    maps: Mapping[str, MapRecord] = field(default_factory=dict)
    scopes: Mapping[str, int] = field(default_factory=dict)

    @property
    def started(self) -> int:
        """How many nodes are to run again."""
        return sum(record.status in {Status.READY, Status.WAITING} for record in self.nodes.values())


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An ended run that goes on, with records worked out from what was read at its event `events`.

    `undone` are the (node, visit) that no longer count, each with its entry; nodes in `forgets` lose
    what they kept.
    """

    run_id: str
    events: int
    records: Records
    undone: Mapping[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    forgets: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's own counters. `active` counts nodes that are ready, running or retrying and
    executing children; `waiting` those that wait; `stopping` is "", "failed" or "cancelled".
    `lock` is "" or "until owner": only that node may settle before that time (ms). A child run has
    its `path`, the nodes that lead to it from its root, each with "/". `on_end` is the task that is
    called when the run ends, `ends` counts how often it has; `untold` is how often workers were rung to
    tell its last end, 0 when that was done.
    """

    run_id: str
    graph_id: str
    fingerprint: str
    status: Status = Status.EXECUTING
    active: int = 0
    waiting: int = 0
    held: int = 0
    failed: int = 0
    started: int = 0
    stopping: str = ""
    reason: str = ""
    lock: str = ""
    parent: str = ""
    parent_node: str = ""
    root: str = ""
    path: str = ""
    on_end: str = ""
    ends: int = 0
    untold: int = 0

    @property
    def is_final(self) -> bool:
        """Tell whether nothing more will happen to the run."""
        return self.status in FINAL


def status_of(run: RunRecord) -> Status:
    """Work out a run's status from its counters."""
    if run.active:
        return Status.EXECUTING
    if run.held:
        return Status.NEEDS_MIGRATION
    if run.waiting:
        return Status.INTERRUPTED
    if run.failed or run.stopping == Status.FAILED:
        return Status.FAILED
    return Status.CANCELLED if run.stopping else Status.COMPLETED
