"""Reads and changes of a transition: the view, the actions of the store, the result.

`Changes` reads a record through the `View` only when a transition needs it, so the cost of a
transition does not grow with the run, and it keeps the run's counters in step with the nodes that
it writes. Functions that transitions share follow it; the decisions are in the other modules of
this folder.
"""

from __future__ import annotations

import enum
import heapq
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from runner.definition.model import (
    ROOT,
    UNDO,
    NodeTopology,
    Topology,
    index_of,
    map_of,
    shape_name,
)
from runner.immutable import immutable
from runner.limits.concurrency import Concurrency, key_of
from runner.limits.fairness import Share
from runner.limits.slots import LimitAction, LimitUsage, ReturnSlot
from runner.records.interrupts import Interrupt
from runner.records.run import (
    ACTIVE,
    FINAL,
    Arrivals,
    EventKind,
    LoopRecord,
    MapRecord,
    NodeRecord,
    RunRecord,
    Status,
    claim_name,
    status_of,
)

CALLBACK_NODE = "@end"
"""Node name in the doorbell of a run's `on_end` callback; its visit counts the ends of the run."""

DRAIN_LIMIT = 500
"""The most nodes cancelled, or questions withdrawn, in one transition; a timer continues with the
rest, so that no script blocks Redis.
"""

IDLE = frozenset({Status.READY, Status.RETRYING, Status.WAITING})
"""Statuses of nodes that are cancelled at once when their run or map stops."""

MAX_REDISPATCH_MS = 300_000
"""Longest wait before a doorbell that no worker has claimed is pushed again; waits double up to this."""


@immutable
class Dispatch:
    """Push a ready node's doorbell, a queue message with only ids; earlier attempts' doorbells are stale.

    With a `share` it is pushed when the turn of its key comes.
    """

    node: str
    visit: int
    attempt: int
    queue: str
    priority: int
    share: Share | None = None


class TimerKind(enum.StrEnum):
    """The kinds of timer of runs; each has one entry per node, interrupt or run.

    NODE depends on the node's status: it pushes the doorbell again, starts a retry, takes back a node
    whose lease has expired, or lets a worker check an external task or another visit's question. EXPIRE,
    REMIND and ESCALATE are a question's; DECIDE is the end of the time in which its decision can be
    taken back. DRAIN continues to cancel a stopping run's nodes after the node in its key. DEADLINE is
    a run's execution timeout (a node's timeout isn't a timer: its worker watches it). BEGIN is the end
    of a run's debounce. MAP continues a map that has more items than one transition starts or cancels.
    CALLBACK pushes the doorbell of `on_end` again until a worker has confirmed the callback. For timers
    outside runs see `DUE` in store/redis/due_timers.py.
    """

    NODE = "node"
    BEGIN = "begin"
    EXPIRE = "expire"
    REMIND = "remind"
    ESCALATE = "escalate"
    DECIDE = "decide"
    DRAIN = "drain"
    DEADLINE = "deadline"
    MAP = "map"
    CALLBACK = "callback"


@immutable
class SetTimer:
    """Set a timer to `due` (ms of the store's clock), replacing one of the same kind and key."""

    kind: TimerKind
    key: str
    due: int


@immutable
class DropTimer:
    """Delete a timer, if it exists."""

    kind: TimerKind
    key: str


@immutable
class AddEvent:
    """Add an event to the run's stream, and to the notices if its kind is in `NOTICES`."""

    kind: EventKind
    node: str = ""
    visit: int = 0
    detail: str = ""
    worker: str = ""


@immutable
class CloseQuestion:
    """Set a question's final status, "expired" or "withdrawn"."""

    interrupt_id: str
    status: str


@immutable
class EndExpired:
    """Write the output and entry of a node that ends because its question expired.

    `edges` has a bit per outgoing edge, as in `settle`; `records.interrupts` builds the values.
    """

    node: str
    visit: int
    interrupt_id: str
    edges: str


@immutable
class NotifyParent:
    """Notify the parent's node of a child run's new status."""

    status: str


@immutable
class StopChild:
    """Cancel the child run of `node`."""

    run_id: str
    node: str


@immutable
class JoinKey:
    """Count the run among its key's open runs."""

    key: str


@immutable
class LeaveKey:
    """Stop counting the run, and begin waiting runs while fewer than `at_most` are open."""

    key: str
    at_most: int


@immutable
class EnterKey:
    """Begin a run whose debounce is over, within its key's bound `at_most` unless that is 0."""

    key: str
    at_most: int


@immutable
class WriteDeadLetter:
    """Write the error and dead letter of a node that was lost or released too often."""

    node: str
    visit: int
    released: bool = False


Action = (
    WriteDeadLetter
    | EndExpired
    | Dispatch
    | SetTimer
    | DropTimer
    | AddEvent
    | CloseQuestion
    | NotifyParent
    | StopChild
    | JoinKey
    | LeaveKey
    | EnterKey
    | LimitAction
)


@immutable
class Arrival:
    """One arrival that the store must count: see `Changes.uncounted`.

    `stamp` is the round of its scope, `own` the round of the node's innermost loop.
    """

    node: str
    scope: int
    stamp: int
    own: int
    live: bool


class View(LimitUsage, Protocol):
    """View of one run for a transition: its records, each read only when it is needed."""

    def run(self) -> RunRecord:
        """Return the run's counters."""

    def node(self, node: str) -> NodeRecord:
        """Return a node's record, or the defaults."""

    def loop(self, loop: int) -> LoopRecord:
        """Return a loop's record, or the defaults."""

    def map(self, node: str) -> MapRecord:
        """Return a map's record, or the defaults."""

    def arrivals(self, scope: int, node: str) -> Arrivals:
        """Return the count of arrivals at a node over the edges of one scope."""

    def idle(self, after_node: str) -> Iterable[str]:
        """List the idle nodes after a node, in the order of `scheduler.drain_order`.

        If more may follow, the last item is the last node that was read; "" if that was idle, or none was.
        """

    def question_status(self, interrupt_id: str) -> str:
        """Return "open", "answered", "expired" or "withdrawn", or "" for a question never asked."""

    def question(self, interrupt_id: str) -> Interrupt | None:
        """Return a question as it was asked, with its count of reminders; None if never asked."""

    def reported(self, reference: str) -> bool:
        """Return whether the external task with this reference has reported its outcome."""


@immutable
class TransitionResult:
    """Decision of a transition: the reply to the caller, the changed records, and actions for the store.

    The store writes all of this in one atomic step.
    """

    reply: str
    run: RunRecord
    nodes: Mapping[str, NodeRecord]
    loops: Mapping[int, LoopRecord]
    arrivals: Mapping[tuple[int, str], Arrivals]
    actions: Sequence[Action]
    maps: Mapping[str, MapRecord]


class Changes:
    """Changes of one transition so far, on top of the records that it has read."""

    def __init__(self, view: View, topology: Topology, now: int, lease_ms: int) -> None:
        """Start from a view; `now` and `lease_ms` are milliseconds."""
        self.view = view
        self.topology = topology
        self.now = now
        self.lease_ms = lease_ms
        self.run = view.run()
        self.before = self.run.status
        self.nodes: dict[str, NodeRecord] = {}
        self.loops: dict[int, LoopRecord] = {}
        self.maps: dict[str, MapRecord] = {}
        self.arrived: dict[tuple[int, str], Arrivals] = {}
        self.uncounted: list[Arrival] | None = None
        """Arrivals that the store must count because the view lacks earlier ones: see plan.py."""
        self.actions: list[Action] = []

    def node(self, node: str) -> NodeRecord:
        """Return a node's record in the current round; it is pending if it settled in an earlier one.

        A migrated run may get a message for a node that its graph no longer has: it is pending,
        too.
        """
        record = self.nodes.get(node) or self.view.node(node)
        shape = self.topology.nodes.get(node) or self.topology.nodes.get(shape_name(node))
        scope = shape.scope if shape else ROOT
        return record.in_round(0 if scope == ROOT else self.round(scope))

    def shape(self, node: str) -> NodeTopology:
        """Return the topology of a node; all items of a map share one."""
        return self.topology.nodes[shape_name(node)]

    def map(self, node: str) -> MapRecord:
        return self.maps.get(node) or self.view.map(node)

    def loop(self, loop: int) -> LoopRecord:
        return self.loops.get(loop) or self.view.loop(loop)

    def round(self, scope: int) -> int:
        """Return the number of a scope's current round; 0 outside loops."""
        return 0 if scope == ROOT else self.loop(scope).round

    def put(self, node: str, record: NodeRecord) -> None:
        """Write a node, and update the counters of its run and map and the slots of its limits."""
        previous = self.node(node)
        record = self._without_slots(node, previous, record)
        active, waiting, held_count = map(operator.sub, _counted(record), _counted(previous))
        if active or waiting or held_count:
            self.count(active, waiting, held_count)
            if (owner := map_of(node)) and not self.run.stopping:
                # A stop needs no counters of maps, and its steps would conflict over them.
                items = self.map(owner)
                self.maps[owner] = replace(
                    items,
                    active=items.active + active,
                    waiting=items.waiting + waiting + held_count,
                )
        self.nodes[node] = record

    def _without_slots(self, node: str, previous: NodeRecord, record: NodeRecord) -> NodeRecord:
        """Return a node's slots, unless it runs, or was ready and still is."""
        stays = record.status is Status.RUNNING or (
            record.status is previous.status is Status.READY
        )
        if stays or not previous.since:
            return record
        self.return_slots(node, previous)
        return replace(record, since=0)

    def return_slots(self, node: str, record: NodeRecord) -> None:
        """Return a node's slots, and its positions in queues."""
        ran = claim_name(record) if record.status is Status.RUNNING else ""
        for limit in self.shape(node).limits:
            key = limit.key(self.view, node, record.visit) if limit.concurrency else None
            if key is not None:
                self.add(ReturnSlot(key, node, limit.concurrency, ran))

    def count(self, active: int = 0, waiting: int = 0, held_count: int = 0) -> None:
        run = self.run
        self.run = replace(
            run,
            active=run.active + active,
            waiting=run.waiting + waiting,
            held=run.held + held_count,
        )

    def add(self, *actions: Action) -> None:
        self.actions.extend(actions)

    def result(self, reply: str) -> TransitionResult:
        """Finish the transition: compute the run's status from its counters and record a change."""
        status = status_of(self.run)
        if status is not self.before:
            self.run = replace(self.run, status=status)
            kind = EventKind.RUN_ENDED if status in FINAL else EventKind.RUN_STATUS
            self.add(AddEvent(kind, detail=status))
            if status in FINAL and self.topology.timeout_ms:
                self.add(DropTimer(TimerKind.DEADLINE, ""))
            if self.run.parent:
                self.add(NotifyParent(status))
            elif self.topology.admission and self.topology.admission.concurrency:
                self._count_open(self.topology.admission.concurrency, status)
        return TransitionResult(
            reply,
            self.run,
            self.nodes,
            self.loops,
            self.arrived,
            tuple(self.actions),
            self.maps,
        )

    def _count_open(self, concurrency: Concurrency, status: Status) -> None:
        """Take a place in the run's key, or return it."""
        if concurrency.counts(self.before) != concurrency.counts(status):
            key = key_of(self.run.graph_id, concurrency.by, self.view.tag)
            takes = concurrency.counts(status)
            self.add(JoinKey(key) if takes else LeaveKey(key, concurrency.at_most))

    def refuse(self, reply: str) -> TransitionResult:
        """Discard all changes; the caller gets the reason."""
        return TransitionResult(reply, self.view.run(), {}, {}, {}, (), {})


def _counted(record: NodeRecord) -> tuple[int, int, int]:
    """Return a node's contribution to its run's counts of active, waiting and held nodes."""
    waits = record.status is Status.WAITING
    is_active = record.status in ACTIVE or (waits and record.busy)
    return is_active, waits and not (record.busy or record.held), record.held


# Shared by transitions: dispatch a node, withdraw its questions, cancel it, stop the run.


def owns(record: NodeRecord, visit: int, fence: int) -> bool:
    """Return whether the worker that claimed with this fence still owns the node."""
    return (record.status, record.visit, record.fence) == (Status.RUNNING, visit, fence)


def refusal(
    changes: Changes, node: str, visit: int, fence: int, replies: Mapping[Status, str]
) -> TransitionResult | None:
    """Refuse a worker that doesn't own the node with "stale", or a repeat's first reply; None if it does.

    While the fence is unchanged, no other worker has claimed the node and no lease was lost, so the
    status shows how the same request ended the first time.
    """
    record = changes.node(node)
    if owns(record, visit, fence):
        return None
    is_repeat = (record.visit, record.fence) == (visit, fence)
    return changes.refuse(replies.get(record.status, "stale") if is_repeat else "stale")


def stops(changes: Changes, node: str) -> bool:
    """Return whether a node must not continue, because its run or its map stops."""
    owner = map_of(node)
    return (bool(changes.run.stopping) and not node.startswith(UNDO)) or (
        bool(owner) and changes.map(owner).stopped
    )


def doorbell(changes: Changes, node: str, record: NodeRecord) -> Dispatch:
    """Return the doorbell of a node's visit, for its queue.

    It has no share if a limit keeps a slot for the node or gave it a start time: it already had its
    turn.
    """
    shape = changes.shape(node)
    fairness = changes.topology.fairness
    share = None
    if fairness is not None and not record.granted:
        share = fairness.share(changes.view.tag(fairness.tag))
    return Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority, share)


def dispatch(changes: Changes, node: str, record: NodeRecord) -> None:
    """Make a node ready and push its doorbell; a timer pushes it again in case it is lost.

    A node that an operator holds is held instead.
    """
    ready = replace(
        record,
        status=Status.WAITING if record.hold else Status.READY,
        rings=0,
        busy=False,
        held=bool(record.hold),
        items=False,
        uncounted=record.uncounted if record.attempt > 1 else 0,
        awaits="",
    )
    changes.put(node, ready)
    if record.hold:
        changes.add(DropTimer(TimerKind.NODE, node))
        return
    changes.add(
        doorbell(changes, node, record),
        SetTimer(TimerKind.NODE, node, changes.now + changes.lease_ms),
    )


def unassigned(record: NodeRecord) -> NodeRecord:
    """Clear the child run or external task of a node: its next execution starts from the beginning.

    A node that an operator skips stays skipped.
    """
    return replace(record, child="", handed=record.skip, sent=False, late=False)


def withdrawals(node: str, visit: int, interrupts: Sequence[str]) -> list[Action]:
    """Return the actions that withdraw a node's questions, with their events and timers."""
    actions: list[Action] = []
    for interrupt in interrupts:
        actions.append(CloseQuestion(interrupt, "withdrawn"))
        actions += [
            DropTimer(kind, interrupt) for kind in (TimerKind.ESCALATE, TimerKind.DECIDE)
        ]
        actions.append(AddEvent(EventKind.INTERRUPT_WITHDRAWN, node, visit, interrupt))
    return actions + drop_timers(interrupts)


def drop_timers(interrupts: Iterable[str]) -> list[Action]:
    kinds = (TimerKind.EXPIRE, TimerKind.REMIND)
    return [DropTimer(kind, interrupt) for interrupt in interrupts for kind in kinds]


def stop(changes: Changes, status: Status, reason: str, delay_ms: int = 0) -> None:
    """Stop a run: no more nodes become ready, idle nodes are cancelled. The first reason counts."""
    if changes.run.stopping:
        return
    if changes.run.is_queued:
        changes.run = replace(changes.run, active=0)
        if changes.topology.admission and changes.topology.admission.debounce:
            key = key_of(changes.run.graph_id, changes.topology.admission.by, changes.view.tag)
            changes.add(DropTimer(TimerKind.BEGIN, ""), LeaveKey(key, 0))
    changes.run = replace(changes.run, stopping=status, reason=reason)
    changes.add(AddEvent(EventKind.RUN_STOPPING, detail=reason))
    cancel_all_idle(changes, "", delay_ms)


def drain_order(node: str) -> tuple[str, int]:
    """Return the sort key of nodes in a stop: by name, each map before its items.

    Items are in reverse order, because workers take them from the first on.
    """
    index = index_of(node)
    return map_of(node) or node, -(1 << 62) if index is None else -index


def cancel_all_idle(changes: Changes, after_node: str, delay_ms: int) -> str | None:
    """Cancel a stopping run's idle nodes after `after_node`, `DRAIN_LIMIT` at a time.

    Return the node after which a timer continues in `delay_ms`, or None if all are cancelled.
    Nodes before it don't become idle again: a stopping run makes no node ready, and a running node
    ends, or is cancelled if it would wait or run again. A node with too many questions for one step is
    cancelled with the last of them.
    """
    last_node, budget = after_node, DRAIN_LIMIT
    for node in _idle(changes, after_node):
        record = changes.node(node)
        cost = max(1, len(record.questions))
        if record.status not in IDLE or node.startswith(UNDO):
            if changes.view.node(node).status in IDLE:
                continue  # it has ended in this step
            last_node = node or last_node
            cost = budget + 1
        elif cost > budget:
            now = record.questions[:budget]
            later = record.questions[budget:]
            changes.add(*withdrawals(node, record.visit, now))
            changes.put(node, replace(record, questions=later))
        if cost > budget:
            changes.add(SetTimer(TimerKind.DRAIN, last_node, changes.now + delay_ms))
            return last_node
        budget -= cost
        cancel_idle(changes, node)
        last_node = node
    return None


def _idle(changes: Changes, after_node: str) -> Iterator[str]:
    """Yield idle nodes after a node in order: those that the view lists, and those just made ready."""
    ready = (node for node, record in changes.nodes.items() if record.status in IDLE)
    ready_now = sorted(
        (node for node in ready if drain_order(node) > drain_order(after_node)), key=drain_order
    )
    last_node = None
    for node in heapq.merge(ready_now, changes.view.idle(after_node), key=drain_order):
        if node != last_node:
            yield node
        last_node = node


def cancel_idle(changes: Changes, node: str) -> None:
    """Cancel an idle node; if it waits for a child run, it is cancelled when the child has ended."""
    record = changes.node(node)
    if record.child:
        changes.add(StopChild(record.child, node))
    if record.is_out:
        # The worker that gets this doorbell revokes the external task: see `claim`.
        changes.add(doorbell(changes, node, record))
    own_wait = record.questions or record.awaits or record.held
    waits = record.child and record.status is Status.WAITING and not own_wait
    if record.items or record.is_out or not (record.busy or waits):
        cancel_node(changes, node)


def cancel_node(changes: Changes, node: str) -> None:
    """Cancel a node, and withdraw its questions; an operator's hold or skip stays, for a retry of the run."""
    record = changes.node(node)
    changes.add(*withdrawals(node, record.visit, record.questions))
    changes.add(DropTimer(TimerKind.NODE, node))
    cancelled_record = replace(
        record,
        status=Status.CANCELLED,
        questions=(),
        unseen=0,
        busy=False,
        held=False,
        items=False,
        awaits="",
    )
    changes.put(node, cancelled_record)
    changes.add(AddEvent(EventKind.NODE_CANCELLED, node, record.visit))
