"""A node waits for others: for its items, for a child run, for another system, or for its graph of old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.actions import Announce, DropTimer, SetTimer, TimerKind
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.maps import shape_name
from runner.run import FINAL, MapRecord, Status
from runner.transitions.closing import close
from runner.transitions.steps import cancel_node, fresh, holds, refusal, ring, stops, withdrawn

LIVE = frozenset({Status.READY, Status.RUNNING, Status.WAITING, Status.RETRYING})
"""Nodes that are neither pending nor settled."""

HANDED = {Status.WAITING: "handed", Status.READY: "ready", Status.CANCELLED: "cancelled"}

EXPANDED = {Status.WAITING: "expanded", Status.READY: "expanded", Status.CANCELLED: "cancelled"}


def expand(draft: Draft, node: str, visit: int, fence: int, total: int | None) -> Step:
    """Let a running map wait for its items: "expanded", "cancelled", "no_items" or "stale".

    `total` says how many items there are; without it, or when this visit has items already, the map
    goes on with those.
    """
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, EXPANDED))
    found = draft.map(node)
    if found.visit != visit and total is None:
        return draft.refuse("no_items")
    draft.add(DropTimer(TimerKind.NODE, node))
    if draft.run.stopping:
        cancel_node(draft, node)
        return close(draft, "cancelled")
    if found.visit != visit:
        draft.add(Announce(EventKind.NODE_EXPANDED, node, visit, str(total)))
    draft.maps[node] = found if found.visit == visit else MapRecord(visit, total or 0)
    draft.put(node, replace(record, status=Status.WAITING, items=True, busy=True, crashes=0))
    return close(draft, "expanded")


def delegate(draft: Draft, node: str, visit: int, fence: int, child: str) -> Step:
    """Let a running node wait for the child run that does its work, and for nothing else.

    A question that it left open is withdrawn: an answer would wake the node beside its child.
    """
    record = draft.node(node)
    if record.status is Status.WAITING and record.child == child:
        return draft.refuse("delegated")
    if not holds(record, visit, fence):
        return draft.refuse("stale")
    draft.add(DropTimer(TimerKind.NODE, node))
    if stops(draft, node):
        cancel_node(draft, node)
        return close(draft, "cancelled")
    draft.add(*withdrawn(node, visit, record.questions))
    waiting = replace(record, status=Status.WAITING, questions=())
    draft.put(node, replace(waiting, child=child, busy=True, crashes=0))
    return close(draft, "delegated")


def child_moved(draft: Draft, node: str, child: str, status: Status) -> Step:
    """Follow a child run: its pause is the node's pause, its end makes the node ready."""
    record = draft.node(node)
    if record.child != child or record.status is not Status.WAITING:
        return draft.refuse("stale")
    if status not in FINAL:
        held = status is Status.NEEDS_MIGRATION
        draft.put(node, replace(record, busy=status is Status.EXECUTING, held=held))
    elif stops(draft, node):
        cancel_node(draft, node)
    else:
        ring(draft, node, record)
    return close(draft, "moved")


def hand(draft: Draft, node: str, visit: int, fence: int, reference: str) -> Step:
    """Let a running node wait for another system, which is told next: "handed", or "ready" if it reported.

    Until `sent` says that the system has it, the node is rung after a lease to tell it again.
    """
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, HANDED if record.handed == reference else {}))
    draft.add(DropTimer(TimerKind.NODE, node))
    if stops(draft, node):
        cancel_node(draft, node)
        return close(draft, "cancelled")
    handed = replace(fresh(record), status=Status.WAITING, handed=reference, busy=True, crashes=0)
    if draft.view.reported(reference):
        ring(draft, node, handed)
        return close(draft, "ready")
    draft.put(node, handed)
    draft.add(SetTimer(TimerKind.NODE, node, draft.now + draft.lease_ms))
    return close(draft, "handed")


def sent(draft: Draft, node: str, visit: int, fence: int, reference: str, *, timeout_ms: int) -> Step:
    """Note that another system has the work: with a `timeout_ms` above 0 it must report within that."""
    record = draft.node(node)
    if not record.is_out or (record.visit, record.fence, record.handed) != (visit, fence, reference):
        return draft.refuse("stale")
    draft.put(node, replace(record, sent=True))
    if timeout_ms:
        draft.add(SetTimer(TimerKind.NODE, node, draft.now + timeout_ms))
    else:
        draft.add(DropTimer(TimerKind.NODE, node))
    return close(draft, "sent")


def report(draft: Draft, node: str, visit: int, reference: str) -> Step:
    """Take what another system says of a node's work: "reported" (a repeat too), or "stale" and not kept."""
    if shape_name(node) not in draft.topology.nodes:
        return draft.refuse("stale")
    record = draft.node(node)
    if (record.visit, record.handed) != (visit, reference):
        return draft.refuse("stale")
    if draft.view.reported(reference):
        return draft.refuse("reported")
    if record.status not in LIVE:
        return draft.refuse("stale")
    if record.is_out:
        ring(draft, node, record)
    return close(draft, "reported")


def hold(draft: Draft, node: str, visit: int, fence: int) -> Step:
    """Set a node aside whose graph has changed under it: the run needs migration."""
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, {Status.WAITING: "held"} if record.held else {}))
    draft.put(node, replace(record, status=Status.WAITING, held=True))
    draft.add(DropTimer(TimerKind.NODE, node), Announce(EventKind.NODE_HELD, node, visit))
    return close(draft, "held")


def release(draft: Draft, nodes: Sequence[str]) -> Step:
    """Let nodes go on that were set aside: "released", or "stale" when none of them is."""
    held = [node for node in dict.fromkeys(nodes) if draft.node(node).held]
    for node in held:
        record = draft.node(node)
        draft.add(Announce(EventKind.NODE_RELEASED, node, record.visit))
        ring(draft, node, record)
    return close(draft, "released") if held else draft.refuse("stale")
