"""Waits of a node for its items, a child run, an external task or a migration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.definition.model import HIDDEN, map_of, shape_name
from runner.records.run import (
    ACTIVE,
    FINAL,
    SETTLED,
    EventKind,
    MapRecord,
    Status,
)
from runner.scheduler.changes import (
    AddEvent,
    Changes,
    DropTimer,
    SetTimer,
    TimerKind,
    TransitionResult,
    cancel_node,
    dispatch,
    owns,
    refusal,
    stops,
    unassigned,
    withdrawals,
)
from runner.scheduler.lifecycle import close

LIVE = frozenset({Status.READY, Status.RUNNING, Status.WAITING, Status.RETRYING})
"""Nodes that are neither pending nor settled."""

HANDED = {Status.WAITING: "handed", Status.READY: "ready", Status.CANCELLED: "cancelled"}

EXPANDED = {Status.WAITING: "expanded", Status.READY: "expanded", Status.CANCELLED: "cancelled"}


def expand(
    changes: Changes, node: str, visit: int, fence: int, total: int | None
) -> TransitionResult:
    """Make a running map wait for its items: "expanded", "cancelled", "no_items" or "stale".

    `total` is the number of items; without it, or if this visit already has items, the map
    continues with the existing items.
    """
    record = changes.node(node)
    if reply := refusal(changes, node, visit, fence, EXPANDED):
        return reply
    items = changes.map(node)
    if items.visit != visit and total is None:
        return changes.refuse("no_items")
    changes.add(DropTimer(TimerKind.NODE, node))
    if changes.run.stopping:
        cancel_node(changes, node)
        return close(changes, "cancelled")
    if items.visit != visit:
        changes.add(AddEvent(EventKind.NODE_EXPANDED, node, visit, str(total)))
    changes.maps[node] = items if items.visit == visit else MapRecord(visit, total or 0)
    changes.put(
        node,
        replace(record, status=Status.WAITING, items=True, busy=True, crashes=0, releases=0),
    )
    return close(changes, "expanded")


def delegate(
    changes: Changes, node: str, visit: int, fence: int, child: str
) -> TransitionResult:
    """Make a running node wait only for its child run.

    Its open questions are withdrawn: an answer would run the node at the same time as its child.
    """
    record = changes.node(node)
    if record.status is Status.WAITING and record.child == child:
        return changes.refuse("delegated")
    if not owns(record, visit, fence):
        return changes.refuse("stale")
    changes.add(DropTimer(TimerKind.NODE, node))
    if stops(changes, node):
        cancel_node(changes, node)
        return close(changes, "cancelled")
    changes.add(*withdrawals(node, visit, record.questions))
    waiting = replace(record, status=Status.WAITING, questions=())
    changes.put(node, replace(waiting, child=child, busy=True, crashes=0, releases=0))
    return close(changes, "delegated")


def child_changed(changes: Changes, node: str, child: str, status: Status) -> TransitionResult:
    """Follow a child run: while it waits, the node waits; when it has ended, the node is ready."""
    record = changes.node(node)
    if record.child != child or record.status is not Status.WAITING:
        return changes.refuse("stale")
    if status not in FINAL:
        is_held = status is Status.NEEDS_MIGRATION
        changes.put(node, replace(record, busy=status is Status.EXECUTING, held=is_held))
    elif stops(changes, node):
        cancel_node(changes, node)
    else:
        dispatch(changes, node, record)
    return close(changes, "moved")


def hand_over(
    changes: Changes,
    node: str,
    visit: int,
    fence: int,
    reference: str,
    *,
    description: str = "",
) -> TransitionResult:
    """Make a running node wait for an external task, which is sent next: "handed"; "ready" if it reported.

    Unless `confirm_hand_over` follows within a lease, the node is ready again, to send the task again.
    """
    record = changes.node(node)
    if reply := refusal(
        changes, node, visit, fence, HANDED if record.handed == reference else {}
    ):
        return reply
    changes.add(DropTimer(TimerKind.NODE, node))
    if stops(changes, node):
        cancel_node(changes, node)
        return close(changes, "cancelled")
    waiting = replace(
        unassigned(record),
        status=Status.WAITING,
        handed=reference,
        busy=True,
        crashes=0,
        releases=0,
    )
    if changes.view.reported(reference):
        dispatch(changes, node, waiting)
        return close(changes, "ready")
    changes.put(node, waiting)
    changes.add(SetTimer(TimerKind.NODE, node, changes.now + changes.lease_ms))
    if description and record.handed != reference:
        changes.add(AddEvent(EventKind.NODE_WAITING, node, visit, description))
    return close(changes, "handed")


def confirm_hand_over(
    changes: Changes, node: str, visit: int, fence: int, reference: str, *, timeout_ms: int
) -> TransitionResult:
    """Record that an external task was sent. It must report within `timeout_ms`; 0 means no limit."""
    record = changes.node(node)
    if not record.is_out or (record.visit, record.fence, record.handed) != (
        visit,
        fence,
        reference,
    ):
        return changes.refuse("stale")
    changes.put(node, replace(record, sent=True))
    if timeout_ms:
        changes.add(SetTimer(TimerKind.NODE, node, changes.now + timeout_ms))
    else:
        changes.add(DropTimer(TimerKind.NODE, node))
    return close(changes, "sent")


def report(changes: Changes, node: str, visit: int, reference: str) -> TransitionResult:
    """Accept an external task's report: "reported" (also a repeat's), or "stale" if not stored."""
    if shape_name(node) not in changes.topology.nodes:
        return changes.refuse("stale")
    record = changes.node(node)
    if (record.visit, record.handed) != (visit, reference):
        return changes.refuse("stale")
    if changes.view.reported(reference):
        return changes.refuse("reported")
    if record.status not in LIVE:
        return changes.refuse("stale")
    if record.is_out:
        dispatch(changes, node, record)
    return close(changes, "reported")


def hold(changes: Changes, node: str, visit: int, fence: int) -> TransitionResult:
    """Hold a node whose graph has changed since the run began: the run needs migration."""
    record = changes.node(node)
    if reply := refusal(
        changes, node, visit, fence, {Status.WAITING: "held"} if record.held else {}
    ):
        return reply
    changes.put(node, replace(record, status=Status.WAITING, held=True))
    changes.add(DropTimer(TimerKind.NODE, node), AddEvent(EventKind.NODE_HELD, node, visit))
    return close(changes, "held")


def release(changes: Changes, nodes: Sequence[str]) -> TransitionResult:
    """Make nodes ready that are held, but not by an operator: "released", or "stale" if none is."""
    held_nodes = [
        node
        for node in dict.fromkeys(nodes)
        if (record := changes.node(node)).held and not record.hold
    ]
    for node in held_nodes:
        record = changes.node(node)
        changes.add(AddEvent(EventKind.NODE_RELEASED, node, record.visit))
        dispatch(changes, node, record)
    return close(changes, "released") if held_nodes else changes.refuse("stale")


def intervene(
    changes: Changes, node: str, kind: EventKind, by: str, reference: str = ""
) -> TransitionResult:
    """Hold a node, release it, or let it end with the output of `reference`: "done" or "repeated".

    A node that is held doesn't run; one that ends with an output (see `SKIPPED`) is claimed by a
    worker, which evaluates the conditions of its edges. Refusals: "unknown" (an item of a map, a hook
    or a name that the graph doesn't have), "held" (to release it, but no operator holds it), "ended"
    (it has settled, or its run stops), "skipped" (with another output), "busy" (a worker, a child run,
    items or an external task works for it).
    """
    record = changes.node(node)
    if map_of(node) or node.startswith(HIDDEN) or node not in changes.topology.nodes:
        return changes.refuse("unknown")
    holds = kind is EventKind.NODE_HELD
    skip = "" if record.held or record.hold else record.skip
    if skip == reference if reference else bool(record.hold) == holds:
        return changes.refuse("repeated" if reference or holds or not record.held else "held")
    if changes.run.stopping or changes.run.is_final or record.status in SETTLED:
        return changes.refuse("ended")
    if record.status is Status.RUNNING or record.busy or record.items or record.child:
        return changes.refuse("busy")
    if reference and skip:
        return changes.refuse("skipped")
    is_ready = record.status in ACTIVE or record.held
    # A node that waits for its start time under a rate gets another one when it is released.
    granted = record.granted and record.status is not Status.RETRYING
    record = replace(record, hold=by if holds else "", granted=granted)
    if reference:
        is_ready = record.status in LIVE
        changes.add(*withdrawals(node, record.visit, record.questions))
        record = replace(record, handed=reference, questions=(), unseen=0)
    changes.add(AddEvent(kind, node, record.visit))
    if is_ready:
        dispatch(changes, node, record)
    else:
        changes.put(node, record)
    return close(changes, "done")
