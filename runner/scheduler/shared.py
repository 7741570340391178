"""The parts that transitions share: dispatch a node, withdraw its questions, cancel it, stop the run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.definition.model import index_of, map_of
from runner.records.run import EventKind, NodeRecord, Status
from runner.scheduler.changes import (
    Action,
    AddEvent,
    Changes,
    CloseQuestion,
    Dispatch,
    DropTimer,
    SetTimer,
    StopChild,
    TimerKind,
)

DRAIN_LIMIT = 500
"""Nodes cancelled, or their questions withdrawn, in one transition; a timer continues with the rest, so that
no script blocks Redis.
"""

IDLE = frozenset({Status.READY, Status.RETRYING, Status.WAITING})
"""Nodes that are cancelled at once when their run or map stops."""

MAX_REDISPATCH_MS = 300_000
"""Longest wait before a doorbell that no worker has claimed is pushed again; waits double up to this."""


def owns(record: NodeRecord, visit: int, fence: int) -> bool:
    """Return whether the worker that claimed with this fence still owns the node."""
    return (record.status, record.visit, record.fence) == (Status.RUNNING, visit, fence)


def refusal(record: NodeRecord, visit: int, fence: int, replies: Mapping[Status, str]) -> str:
    """Return the reply to a worker that doesn't own the node: "stale", or to a repeat the first reply.

    While the fence is still this one, no other worker has claimed the node and no lease was lost, so the
    status shows what the same request did the first time.
    """
    return (
        replies.get(record.status, "stale")
        if (record.visit, record.fence) == (visit, fence)
        else "stale"
    )


def stops(changes: Changes, node: str) -> bool:
    """Return whether a node must not continue, because its run or its map stops."""
    owner = map_of(node)
    return bool(changes.run.stopping) or (bool(owner) and changes.map(owner).stopped)


def dispatch(changes: Changes, node: str, record: NodeRecord) -> None:
    """Make a node ready and push its doorbell; a timer pushes it again in case it is lost."""
    shape = changes.shape(node)
    uncounted_attempts = record.uncounted if record.attempt > 1 else 0
    ready = replace(record, status=Status.READY, rings=0, busy=False, held=False, items=False)
    changes.put(node, replace(ready, uncounted=uncounted_attempts))
    changes.add(
        Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority),
        SetTimer(TimerKind.NODE, node, changes.now + changes.lease_ms),
    )


def unassigned(record: NodeRecord) -> NodeRecord:
    """Clear the child run or external task of a node: its next execution starts from the beginning."""
    return replace(record, child="", handed="", sent=False, late=False)


def withdrawals(node: str, visit: int, interrupts: Sequence[str]) -> list[Action]:
    """Withdraw questions of a node, with their events and timers."""
    actions: list[Action] = []
    for interrupt in interrupts:
        actions.append(CloseQuestion(interrupt, "withdrawn"))
        actions.append(AddEvent(EventKind.INTERRUPT_WITHDRAWN, node, visit, interrupt))
    return actions + drop_timers(interrupts)


def drop_timers(interrupts: Iterable[str]) -> list[Action]:
    kinds = (TimerKind.EXPIRE, TimerKind.REMIND)
    return [DropTimer(kind, interrupt) for interrupt in interrupts for kind in kinds]


def stop(changes: Changes, status: Status, reason: str) -> None:
    """Stop a run: no node becomes ready from now on, idle ones are cancelled. The first reason counts."""
    if changes.run.stopping:
        return
    changes.run = replace(changes.run, stopping=status, reason=reason)
    changes.add(AddEvent(EventKind.RUN_STOPPING, detail=reason))
    cancel_all_idle(changes)


def drain_order(node: str) -> tuple[str, int]:
    """Where a node is in the order in which a stop looks at all: by name, each map before its items."""
    index = index_of(node)
    return map_of(node) or node, -1 if index is None else index


def cancel_all_idle(changes: Changes, after_node: str = "") -> None:
    """Cancel the idle nodes of a stopping run that come after one, `DRAIN_LIMIT` at a time.

    A timer continues after the last of them. Nodes before it become idle no more: a run that stops makes
    none ready, and those that run are cancelled when they return.
    """
    last_node, budget = after_node, DRAIN_LIMIT
    for node in _idle(changes, after_node):
        if budget <= 0:
            changes.add(SetTimer(TimerKind.DRAIN, last_node, changes.now))
            return
        budget -= max(1, len(changes.node(node).questions))
        cancel_idle(changes, node)
        last_node = node


def _idle(changes: Changes, after_node: str) -> Iterator[str]:
    """Name the idle nodes after one in order, also those that this transition has made ready."""
    ready_now = sorted(
        (node for node in changes.nodes if drain_order(node) > drain_order(after_node)),
        key=drain_order,
    )
    last_node = after_node
    for node in heapq.merge(ready_now, changes.view.idle(after_node), key=drain_order):
        if node != last_node and changes.node(node).status in IDLE:
            yield node
        last_node = node


def cancel_idle(changes: Changes, node: str) -> None:
    """Cancel an idle node; one with an active child run is cancelled when the child has ended."""
    record = changes.node(node)
    if record.child:
        changes.add(StopChild(record.child, node))
    if record.is_out:
        # The worker that gets this doorbell revokes the external task: see `claim`.
        shape = changes.shape(node)
        changes.add(Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority))
    if record.items or record.is_out or not record.busy:
        cancel_node(changes, node)


def cancel_node(changes: Changes, node: str) -> None:
    """Cancel a node, and withdraw its questions."""
    record = changes.node(node)
    changes.add(*withdrawals(node, record.visit, record.questions))
    changes.add(DropTimer(TimerKind.NODE, node))
    cancelled_record = replace(record, status=Status.CANCELLED, questions=(), unseen=0)
    changes.put(node, replace(cancelled_record, busy=False, held=False, items=False))
    changes.add(AddEvent(EventKind.NODE_CANCELLED, node, record.visit))
