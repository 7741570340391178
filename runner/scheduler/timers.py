"""Due timers: push a doorbell again, start a retry, replace a lost worker, expire a question."""

from __future__ import annotations

from dataclasses import replace

from runner.records.run import EventKind, NodeRecord, Status
from runner.scheduler.changes import (
    MAX_REDISPATCH_MS,
    AddEvent,
    Changes,
    SetTimer,
    TimerKind,
    TransitionResult,
    cancel_node,
    dispatch,
    doorbell,
    stop,
    stops,
)
from runner.scheduler.lifecycle import close, dispatch_callback, fail_with_letter
from runner.scheduler.questions import due_question
from runner.scheduler.runs import drain, end_delay

CRASH_BUDGET = 5
"""Leases lost in a row before a node fails with a dead letter."""


def due(changes: Changes, kind: TimerKind, key: str) -> TransitionResult:
    """Apply a due timer; a timer that no longer applies changes nothing.

    The reply "lost <next> <worker> <graph>/<node>" names a node whose lease has expired, and says
    whether it is "ready", "cancelled" or "dead" now.
    """
    if kind is TimerKind.CALLBACK and changes.run.unreported:
        dispatch_callback(changes)
        return changes.result("rung")
    if changes.run.is_final:
        return changes.refuse("stale")
    match kind:
        case TimerKind.DRAIN:
            return drain(changes, key)
        case TimerKind.DEADLINE:
            stop(
                changes,
                Status.FAILED,
                f"execution timeout of {changes.topology.timeout_ms / 1000:g} s reached",
            )
            return close(changes, "stopped")
        case TimerKind.BEGIN:
            return end_delay(changes)
        case TimerKind.NODE:
            return _due_node(changes, key)
        case TimerKind.EXPIRE | TimerKind.REMIND | TimerKind.ESCALATE | TimerKind.DECIDE:
            return due_question(changes, kind, key)
        case TimerKind.MAP:
            changes.maps[key] = changes.map(key)
            return close(changes, "advanced")
    return changes.refuse("stale")


def _due_node(changes: Changes, node: str) -> TransitionResult:
    """Apply a node's timer: its meaning depends on the node's status."""
    record = changes.node(node)
    match record.status:
        case Status.READY:
            return _dispatch_again(changes, node, record)
        case Status.RETRYING:
            dispatch(changes, node, record)
            return close(changes, "ready")
        case Status.RUNNING:
            name = f"{changes.topology.graph_id}/{node}"
            lost = _lost(changes, node, record)
            return replace(lost, reply=f"lost {lost.reply} {record.worker} {name}")
        case Status.WAITING if record.is_out or (record.awaits and not record.held):
            dispatch(changes, node, replace(record, late=record.sent))
            return close(changes, "ready")
    return changes.refuse("stale")


def _dispatch_again(changes: Changes, node: str, record: NodeRecord) -> TransitionResult:
    rings = record.rings + 1
    wait = min(MAX_REDISPATCH_MS, changes.lease_ms * 2 ** min(rings, 16))
    changes.put(node, replace(record, rings=rings))
    changes.add(
        doorbell(changes, node, record),
        SetTimer(TimerKind.NODE, node, changes.now + wait),
    )
    return close(changes, "rung")


def _lost(changes: Changes, node: str, record: NodeRecord) -> TransitionResult:
    """Return a node whose lease has expired to the queue, until it has used up its crash budget."""
    changes.add(
        AddEvent(EventKind.NODE_LOST, node, record.visit, str(record.attempt), record.worker)
    )
    lost = replace(
        record,
        attempt=record.attempt + 1,
        fence=record.fence + 1,
        crashes=record.crashes + 1,
        uncounted=record.uncounted + 1,
    )
    if stops(changes, node):
        cancel_node(changes, node)
        return close(changes, "cancelled")
    if lost.crashes >= CRASH_BUDGET:
        return fail_with_letter(changes, node, record)
    dispatch(changes, node, lost)
    return close(changes, "ready")
