"""The records of a run (its counters, a node, a loop, a map, a count of arrivals); kinds of events.

A store keeps exactly these; scheduling reads and writes nothing else. All are immutable: a
transition makes new records. A record that was never written has the defaults.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypedDict, TypeVar

from runner.errors import NotFoundError
from runner.immutable import immutable
from runner.records.codec import JSONObject


class Status(enum.StrEnum):
    """The status of a run or a node.

    A run is executing, held, interrupted, failed, cancelled or completed; only the last three are final. A
    node is pending, ready, running, waiting, retrying, held, completed, failed, skipped or cancelled. Python
    and the store call a held run NEEDS_MIGRATION.
    """

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    RETRYING = "retrying"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    EXECUTING = "executing"
    INTERRUPTED = "interrupted"
    NEEDS_MIGRATION = "needs_migration"

    @property
    def shown(self) -> Status:
        """The status for people and JSON: a run with a held node is held, for any reason."""
        return Status.HELD if self is Status.NEEDS_MIGRATION else self


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})

SETTLED = FINAL | {Status.SKIPPED}

ACTIVE = frozenset({Status.READY, Status.RUNNING, Status.RETRYING})

VisitKey = tuple[str, int]
"""A visit of a run: node and number."""

PATH = "/"
"""Separates a graph's name from the node that is a graph inside it."""


def outermost(graph: str) -> str:
    """Return the name of the outermost graph of a path."""
    return graph.partition(PATH)[0]


class VisitEntry(TypedDict, total=False):
    """Record of an ended visit, beside its output. It is stored as JSON without empty fields.

    `kind` is the executor's kind, `ms` how long it ran, `usage` the tokens it counted. `result` is
    packed, and left out if it equals the output; `error` is an `ErrorRecord`. `edges` (in loops,
    and if a question expired) and `reads` (node and visit of the results that conditions read) let
    a run be replayed without some visits. `expired` is the expired question that led elsewhere;
    `undone` says that a retry or a migration has undone the visit; `skipped` is the person who
    gave its output, so that it didn't run.
    """

    v: int
    kind: str
    ms: int
    usage: dict[str, int]
    result: Any
    error: JSONObject
    edges: str
    reads: list[list[Any]]
    expired: str
    undone: bool
    skipped: str


SKIPPED = "skipped:"
"""The external task of a node that an operator skips is this and a digest of its report: the operator
and the output.
"""


@immutable
class NodeRecord:
    """One node of a run. `stamp` is the round of its innermost loop in which the record holds.

    `edges` has a "1" or "0" for each outgoing edge once the node has completed; `via` lists the
    (node, visit) pairs whose back edges asked for this visit; `questions` are the ids still open;
    `unseen` counts answers that came after the last claim; `nonce` is the last request's nonce, and
    names its worker after a colon.
    `items` says that a map waits for its items. `crashes` counts leases lost in a row, `releases`
    how often in a row a stopping worker has released it in the middle of its code without a new
    checkpoint. `uncounted` is how many attempts of this visit the retry policy does not count:
    attempts of lost workers, and attempts before an operator retried the run. `since` is when it
    first requested slots of its limits, while it has them or waits for them; `granted` says that a
    rate limit has assigned a time to its next execution. `handed` is the id of its external task;
    `sent` says that the task was submitted, `late` that no report came in time. `last` is the
    highest number of its visits, kept if a retry or a migration has undone that visit. `awaits` is
    the visit whose question's answer it waits for: run, number and node. `hold` is the operator who
    keeps it from running.
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
    last: int = 0
    releases: int = 0
    awaits: str = ""
    hold: str = ""

    @property
    def worker(self) -> str:
        """The worker that has run the node last; "" outside of workers."""
        return self.nonce.partition(":")[2]

    @property
    def next_visit(self) -> int:
        """The number of its next visit, used only once because keys and question ids contain it."""
        return max(self.visit, self.last) + 1

    def in_round(self, stamp: int) -> NodeRecord:
        """Return the record for a round of its innermost loop: one of an older round is pending."""
        if self.stamp == stamp:
            return self
        return NodeRecord(
            visit=self.visit, fence=self.fence, stamp=stamp, nonce=self.nonce, last=self.last
        )

    @property
    def is_out(self) -> bool:
        """Return whether the node waits only for an external task."""
        waits = self.status is Status.WAITING and self.busy
        return waits and bool(self.handed) and not (self.items or self.child)

    @property
    def skip(self) -> str:
        """The reference of the output with which an operator skips it; "" if it isn't skipped."""
        return self.handed if self.handed.startswith(SKIPPED) else ""

    @property
    def ended(self) -> tuple[int, str]:
        """The visit and status of a result that conditions may read; (0, "") before a result."""
        has_result = self.status in (Status.COMPLETED, Status.FAILED)
        return (self.visit, self.status) if has_result else (0, "")


@immutable
class MapRecord:
    """The items of a map's visit: their number, the index of the `next` one, and counts by status.

    `stopped` says that an item failed and no more items start; then the idle items before index
    `swept` have been cancelled.
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
        """Return whether no item is active, waiting or still to start."""
        return not (self.active or self.waiting) and (self.stopped or self.next >= self.total)


@immutable
class LoopRecord:
    """One loop of a run: its round, how many nodes have settled in it, the (node, visit) pairs that
    asked for another round, and the exits that were taken, each with the visit of its source.
    """

    round: int = 0
    settled: int = 0
    asked: tuple[tuple[str, int], ...] = ()
    taken: tuple[tuple[str, int, int], ...] = ()


@immutable
class Arrivals:
    """Arrivals at one node over the edges of one scope, in that scope's round `stamp`."""

    stamp: int = 0
    arrived: int = 0
    live: int = 0


@immutable
class Records:
    """All records of a run, derived from its history: see `operations.recovery`. `failed` counts
    the nodes that have failed; `maps` are the maps that start again.
    """

    nodes: Mapping[str, NodeRecord]
    loops: Mapping[int, LoopRecord]
    arrivals: Mapping[tuple[int, str], Arrivals]
    failed: int = 0
    maps: Mapping[str, MapRecord] = field(default_factory=dict)

    def node(self, name: str) -> NodeRecord:
        """Return the record of a node; a new one if it was not reached."""
        return self.nodes.get(name, NodeRecord())

    @property
    def started(self) -> int:
        """Number of nodes to run again; they count as executions."""
        return sum(
            record.status in {Status.READY, Status.WAITING} for record in self.nodes.values()
        )


@immutable
class Rewrite:
    """An ended run that continues, with records derived at its event number `events`.

    `undone` are the visits that no longer count, each with its new entry; the documents of nodes in
    `forgets` are deleted.
    """

    run_id: str
    events: int
    records: Records
    undone: Mapping[VisitKey, VisitEntry] = field(default_factory=dict)
    forgets: Sequence[str] = ()


@immutable
class RunRecord:
    """A run's own counters. `active` counts nodes that are ready, running or retrying and executing
    children; `waiting` those that wait; `stopping` is "", "failed" or "cancelled". `lock` is "" or
    "until owner": only that node may settle before that time (ms). A child run's `path` names the
    nodes that lead to it from its root, each with "/". `on_end` is the task that is called when the
    run ends, `ends` counts how often it has ended; `unreported` counts the doorbells of its last
    callback, and is 0 once it is confirmed. `trace` is the traceparent of the program that started
    it.
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
    unreported: int = 0
    trace: str = ""

    @property
    def place(self) -> dict[str, str]:
        """The place of the run's questions, as they record it."""
        return {
            "root": self.root,
            "graph": self.graph_id,
            "fingerprint": self.fingerprint,
            "path": self.path,
        }

    @property
    def is_queued(self) -> bool:
        """Return whether the run was accepted and hasn't begun; `reason` says why."""
        return bool(self.reason) and not (self.started or self.stopping or self.is_final)

    @property
    def is_final(self) -> bool:
        """Return whether the run has ended; only a retry can continue it."""
        return self.status in FINAL


def status_of(run: RunRecord) -> Status:
    """Compute a run's status from its counters: without active, held or waiting nodes it's over."""
    if run.active:
        return Status.EXECUTING
    if run.held:
        return Status.NEEDS_MIGRATION
    if run.waiting:
        return Status.INTERRUPTED
    if run.failed or run.stopping == Status.FAILED:
        return Status.FAILED
    return Status.CANCELLED if run.stopping else Status.COMPLETED


# Fences: the number that each claim of a visit raises, and that every later write of it carries.


DIGITS = 5


def next_fence(fence: int, nonce: str) -> int:
    """Raise a fence for a claim, by an amount derived from its nonce.

    So a claim that is repeated because its reply was lost gets the same fence; no other claim does.
    """
    mark = hashlib.sha1(nonce.encode(), usedforsecurity=False).hexdigest()[:DIGITS]
    return fence + 1 + int(mark, 16)


def claim_name(record: NodeRecord) -> str:
    """Name a running node's claim, or a ready node's next one: its visit and the previous fence."""
    raised = next_fence(0, record.nonce) if record.status is Status.RUNNING else 0
    return f"{record.visit}.{record.fence - raised}"


Value = TypeVar("Value")


def no_such_run(run_id: str) -> NotFoundError:
    """Build the error for a run that never existed, or has ended and expired."""
    return NotFoundError(f"there is no run {run_id!r} in this store; finished runs expire.")


def existing(value: Value | None, run_id: str) -> Value:
    """Return a store's value of a run unless it is None.

    Raises:
        NotFoundError: it is None.
    """
    if value is None:
        raise no_such_run(run_id)
    return value


# Events are for readers of one run; notices are for services that act on questions and ends of all runs.


class EventKind(enum.StrEnum):
    """The kinds of a run's events."""

    RUN_STARTED = "run.started"
    RUN_QUEUED = "run.queued"
    RUN_ADMITTED = "run.admitted"
    RUN_STATUS = "run.status"
    RUN_STOPPING = "run.stopping"
    RUN_ENDED = "run.ended"
    RUN_RETRIED = "run.retried"
    RUN_FORKED = "run.forked"
    RUN_MIGRATED = "run.migrated"
    NODE_STARTED = "node.started"
    NODE_COMPLETED = "node.completed"
    NODE_FAILED = "node.failed"
    NODE_SKIPPED = "node.skipped"
    NODE_CANCELLED = "node.cancelled"
    NODE_WAITING = "node.waiting"
    NODE_RESUMED = "node.resumed"
    NODE_RETRYING = "node.retrying"
    NODE_EXPANDED = "node.expanded"
    NODE_LIMITED = "node.limited"
    NODE_HELD = "node.held"
    NODE_FROZEN = "node.frozen"
    NODE_RELEASED = "node.released"
    NODE_OVERRIDDEN = "node.overridden"
    NODE_UNSERVED = "node.unserved"
    NODE_LOST = "node.lost"
    NODE_LEFT = "node.left"
    INTERRUPT_ASKED = "interrupt.asked"
    INTERRUPT_ANSWERED = "interrupt.answered"
    INTERRUPT_EXPIRED = "interrupt.expired"
    INTERRUPT_REMINDED = "interrupt.reminded"
    INTERRUPT_WITHDRAWN = "interrupt.withdrawn"
    INTERRUPT_MOVED = "interrupt.moved"
    INTERRUPT_VOTED = "interrupt.voted"
    INTERRUPT_REFUSED = "interrupt.refused"
    INTERRUPT_CLAIMED = "interrupt.claimed"
    INTERRUPT_RELEASED = "interrupt.released"
    INTERRUPT_DELEGATED = "interrupt.delegated"
    INTERRUPT_COMMENTED = "interrupt.commented"
    INTERRUPT_ESCALATED = "interrupt.escalated"
    INTERRUPT_USED = "interrupt.used"
    EFFECT_ENDED = "interrupt.effect_ended"
    GRANT_USED = "grant.used"
    RECEIPT = "receipt"
    PROGRESS = "progress"
    AGENT = "agent"


OF_RUNS = "run."
"""Prefix of the kinds that concern a whole run; a child run's aren't among its root's events."""

OF_VOTES = frozenset(
    {
        EventKind.INTERRUPT_VOTED,
        EventKind.INTERRUPT_REFUSED,
        EventKind.INTERRUPT_CLAIMED,
        EventKind.INTERRUPT_RELEASED,
        EventKind.INTERRUPT_DELEGATED,
        EventKind.INTERRUPT_COMMENTED,
        EventKind.INTERRUPT_ESCALATED,
        EventKind.INTERRUPT_USED,
    }
)
"""Events of questions with a rule: people's actions before the decision, and its use."""

NOTICES = frozenset(
    {
        EventKind.INTERRUPT_ASKED,
        EventKind.INTERRUPT_ANSWERED,
        EventKind.INTERRUPT_EXPIRED,
        EventKind.INTERRUPT_REMINDED,
        EventKind.INTERRUPT_WITHDRAWN,
        EventKind.NODE_HELD,
        EventKind.RUN_ENDED,
        EventKind.RUN_MIGRATED,
        *(OF_VOTES - {EventKind.INTERRUPT_REFUSED, EventKind.INTERRUPT_USED}),
    }
)
"""Events that also go to the partition's notices, for approval services."""
