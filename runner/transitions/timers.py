"""What time does: a bell rings again, a node is tried again, a lost worker is replaced."""

from __future__ import annotations

from dataclasses import replace

from runner.actions import Announce, Bury, Dispatch, SetTimer, TimerKind
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.run import NodeRecord, Status
from runner.transitions.closing import close, finish, ring_end
from runner.transitions.questions import due_question
from runner.transitions.runs import drain
from runner.transitions.steps import MAX_RING_MS, cancel_node, ring, stop, stops, withdrawn

CRASH_BUDGET = 5
"""Leases lost in a row before a node fails into the dead letters."""


def due(draft: Draft, kind: TimerKind, key: str) -> Step:
    """Do what a timer was set for; one that no longer applies changes nothing."""
    if kind is TimerKind.CALLBACK and draft.run.untold:
        ring_end(draft)
        return draft.step("rung")
    if draft.run.is_final:
        return draft.refuse("stale")
    match kind:
        case TimerKind.DRAIN:
            return drain(draft)
        case TimerKind.DEADLINE:
            stop(draft, Status.FAILED, f"execution timeout of {draft.topology.timeout_ms / 1000:g} s reached")
            return close(draft, "stopped")
        case TimerKind.NODE:
            return _due_node(draft, key)
        case TimerKind.EXPIRE | TimerKind.REMIND:
            return due_question(draft, kind, key)
        case TimerKind.MAP:
            draft.maps[key] = draft.map(key)
            return close(draft, "advanced")
    return draft.refuse("stale")


def _due_node(draft: Draft, node: str) -> Step:
    """A node's timer: ring again, try again, or its worker is gone."""
    record = draft.node(node)
    match record.status:
        case Status.READY:
            return _ring_again(draft, node, record)
        case Status.RETRYING:
            ring(draft, node, record)
            return close(draft, "ready")
        case Status.RUNNING:
            return _lost(draft, node, record)
        case Status.WAITING if record.is_out:
            ring(draft, node, replace(record, late=record.sent))
            return close(draft, "ready")
    return draft.refuse("stale")


def _ring_again(draft: Draft, node: str, record: NodeRecord) -> Step:
    shape, rings = draft.shape(node), record.rings + 1
    wait = min(MAX_RING_MS, draft.lease_ms * 2 ** min(rings, 16))
    draft.put(node, replace(record, rings=rings))
    draft.add(
        Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority),
        SetTimer(TimerKind.NODE, node, draft.now + wait),
    )
    return close(draft, "rung")


def _lost(draft: Draft, node: str, record: NodeRecord) -> Step:
    """A lease ran out: another worker goes on, until the node has used up its crash budget."""
    draft.add(Announce(EventKind.NODE_LOST, node, record.visit, str(record.attempt)))
    lost = replace(
        record,
        attempt=record.attempt + 1,
        fence=record.fence + 1,
        crashes=record.crashes + 1,
        uncounted=record.uncounted + 1,
    )
    if stops(draft, node):
        cancel_node(draft, node)
        return close(draft, "cancelled")
    if lost.crashes >= CRASH_BUDGET:
        draft.add(Bury(node, record.visit), *withdrawn(node, record.visit, record.questions))
        finish(draft, node, replace(record, questions=(), unseen=0), Status.FAILED, "")
        return close(draft, "dead")
    ring(draft, node, lost)
    return close(draft, "ready")
