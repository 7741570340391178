"""The life of a visit: claimed by a worker, settled, retried or returned; and its run's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.definition.model import (
    AFTER_GRAPH,
    HIDDEN,
    UNDO,
    EdgeKind,
    FailurePolicy,
    InEdge,
    Topology,
    map_of,
    shape_name,
)
from runner.limits import slots
from runner.records.run import FINAL, EventKind, NodeRecord, Status, next_fence, status_of
from runner.scheduler.arrivals import spread
from runner.scheduler.changes import (
    CALLBACK_NODE,
    MAX_REDISPATCH_MS,
    AddEvent,
    Changes,
    Dispatch,
    DropTimer,
    SetTimer,
    TimerKind,
    TransitionResult,
    WriteDeadLetter,
    cancel_node,
    dispatch,
    owns,
    refusal,
    stop,
    stops,
    unassigned,
    withdrawals,
)
from runner.scheduler.maps import advance_map, count_failure, rewind


def finish(changes: Changes, node: str, record: NodeRecord, status: Status, edges: str) -> None:
    """Record the end of a visit and send its arrivals; a failure may stop the run."""
    changes.put(
        node,
        replace(
            record,
            status=status,
            edges=edges if status is Status.COMPLETED else "",
            crashes=0,
            releases=0,
            busy=False,
            held=False,
            hold="",
        ),
    )
    kind = EventKind.NODE_COMPLETED if status is Status.COMPLETED else EventKind.NODE_FAILED
    changes.add(AddEvent(kind, node, record.visit))
    owner = map_of(node)
    if owner:
        count_failure(changes, owner, status)
        return
    if status is Status.FAILED:
        rewind(changes, node)
        changes.run = replace(changes.run, failed=changes.run.failed + 1)
        reason = f'node "{node}" failed'
        if node.startswith(UNDO):
            reasons = f"{changes.run.reason}; {reason}".removeprefix("; ")
            changes.run = replace(changes.run, reason=reasons)
        elif changes.topology.policy is FailurePolicy.FAIL_FAST:
            stop(changes, Status.FAILED, reason)
    topology = changes.topology
    if not changes.run.stopping and (topology.outgoing[node] or topology.nodes[node].loops):
        spread(changes, node)


def close(changes: Changes, reply: str) -> TransitionResult:
    """Finish a transition: advance maps, then start an ending run's next undo, end event or callback."""
    for name in sorted(changes.maps):
        advance_map(changes, name)
    status = status_of(changes.run)
    has_after = AFTER_GRAPH in changes.topology.nodes
    # An error in the end event undoes nothing: otherwise it would undo a completed run.
    is_closing = has_after and changes.node(AFTER_GRAPH).status is not Status.PENDING
    if (
        changes.topology.has_undos
        and status in {Status.FAILED, Status.CANCELLED}
        and not is_closing
    ):
        _undo(changes, status)
        status = status_of(changes.run)
    if status in FINAL and has_after:
        record = changes.node(AFTER_GRAPH)
        if record.status is Status.PENDING:
            dispatch(changes, AFTER_GRAPH, replace(record, visit=record.next_visit, attempt=1))
            status = status_of(changes.run)
    if changes.run.on_end and status is not changes.before and status in FINAL:
        changes.run = replace(changes.run, ends=changes.run.ends + 1, unreported=0)
        dispatch_callback(changes)
    return changes.result(reply)


def _undo(changes: Changes, status: Status) -> None:
    """Begin to undo the newest of the run's visits that have an undo; the run ends with this status."""
    todo = changes.node(UNDO)
    if not todo.via:
        return
    changes.put(UNDO, replace(todo, via=todo.via[1:]))
    changes.run = replace(changes.run, stopping=changes.run.stopping or status)
    node = UNDO + todo.via[0][0]
    earlier = changes.node(node)
    record = NodeRecord(
        visit=earlier.next_visit, attempt=1, fence=earlier.fence, via=todo.via[:1]
    )
    dispatch(changes, node, record)


def dispatch_callback(changes: Changes) -> None:
    """Push the `on_end` callback's doorbell to the first entry node's queue; a timer repeats it."""
    run = changes.run
    shape = changes.shape(changes.topology.entries[0])
    wait = min(MAX_REDISPATCH_MS, changes.lease_ms * 2 ** min(run.unreported, 16))
    changes.run = replace(run, unreported=run.unreported + 1)
    changes.add(
        Dispatch(CALLBACK_NODE, run.ends, 1, shape.queue, shape.priority),
        SetTimer(TimerKind.CALLBACK, "", changes.now + wait),
    )


# A worker claims a node.


def claim(
    changes: Changes, node: str, visit: int, attempt: int, nonce: str
) -> TransitionResult:
    """Assign a ready node to one worker: "claimed", "stale", or "cancelled" if the run stops.

    "limited" means that it waits for a limit's slot or the end of its pause, "limited <ms>" that a
    rate delays it.
    "revoked <reference>" means that its run stopped during its external task: the worker revokes
    the task.
    """
    record = changes.node(node)
    if (
        record.status is Status.CANCELLED
        and record.handed
        and not record.skip
        and (record.visit, record.attempt) == (visit, attempt)
    ):
        return changes.refuse(f"revoked {record.handed}")
    if record.status is Status.RUNNING and record.nonce == nonce:
        return changes.refuse("claimed")
    if record.status is Status.RETRYING and record.granted and record.nonce == nonce:
        return changes.refuse("limited")
    if (record.status, record.visit, record.attempt) != (Status.READY, visit, attempt):
        return changes.refuse("stale")
    if stops(changes, node) and node != AFTER_GRAPH:
        cancel_node(changes, node)
        return close(changes, "cancelled")
    refusal_reply = _limited(changes, node, record, nonce) if changes.shape(node).limits else ""
    if refusal_reply:
        return close(changes, refusal_reply)
    running = replace(
        changes.node(node),
        status=Status.RUNNING,
        fence=next_fence(record.fence, nonce),
        nonce=nonce,
        unseen=0,
        rings=0,
        granted=False,
    )
    changes.put(node, running)
    changes.add(
        SetTimer(TimerKind.NODE, node, changes.now + changes.lease_ms),
        AddEvent(EventKind.NODE_STARTED, node, visit, str(attempt), nonce.partition(":")[2]),
    )
    return close(changes, "claimed")


def may_follow(topology: Topology, node: str, target: str) -> bool:
    """Return whether the worker that settles a node may claim its target at once, without a doorbell.

    The target must have the same queue and priority, so that the worker serves it and nothing more
    urgent waits. It must have no limits, and its graph no fairness: it would skip others' turns. The
    store claims it if nothing else becomes ready.
    """
    settling = topology.nodes[shape_name(node)]
    shape = topology.nodes[target]
    same = (settling.queue, settling.priority) == (shape.queue, shape.priority)
    shares = shape.limits or topology.fairness
    return same and not shares and target != node and not {node[0], target[0]} & {HIDDEN}


def _limited(changes: Changes, node: str, record: NodeRecord, nonce: str) -> str:
    """Apply the node's limits to a claim: "" if it may begin, otherwise the reply that refuses it."""
    node_limits = slots.keyed(changes.shape(node).limits, changes.view, node, record.visit)
    event = AddEvent(EventKind.NODE_LIMITED, node, record.visit)
    paused_until = max((limit.paused_until for limit in node_limits), default=0)
    if paused_until > changes.now:
        # It stays ready: the end of the pause or its timer pushes the doorbell. Its start time will
        # have passed, so it gets another: otherwise all paused nodes would start together and
        # exceed the rate.
        until = int(min(paused_until, changes.now + MAX_REDISPATCH_MS))
        if record.since:  # it keeps `since`, and so its position in the queues
            changes.return_slots(node, record)
        changes.put(node, replace(record, rings=record.rings or 1, granted=False))
        changes.add(SetTimer(TimerKind.NODE, node, until), *([] if record.rings else [event]))
        return "limited"
    wait, times = (
        (0, []) if record.granted else slots.reserve(node_limits, changes.view, changes.now)
    )
    changes.add(*times)
    if wait:
        changes.put(
            node, replace(record, status=Status.RETRYING, granted=True, nonce=nonce, rings=0)
        )
        changes.add(
            SetTimer(TimerKind.NODE, node, changes.now + wait), replace(event, detail=str(wait))
        )
        return f"limited {wait}"
    since = record.since or max(1, changes.now)
    kept_until = changes.now + MAX_REDISPATCH_MS + changes.lease_ms
    free, limit_actions = slots.take(
        node_limits, changes.view, node, since, (changes.now, kept_until)
    )
    changes.add(*limit_actions)
    if not free and not record.since:
        changes.add(event)
    changes.put(node, replace(record, since=since if limit_actions else 0, granted=True))
    return "" if free else "limited"


def offer_slot(changes: Changes, node: str) -> TransitionResult:
    """Push the doorbell of a node whose limit now reserves a slot for it."""
    record = changes.node(node)
    if record.status is not Status.READY:
        return changes.refuse("stale")
    dispatch(changes, node, record)
    return close(changes, "ready")


def live_inputs(changes: Changes, node: str) -> list[tuple[str, int]]:
    """List the (node, visit) pairs whose outputs reach this visit, in edge order, each once."""
    record = changes.node(node)
    sources: dict[tuple[str, int], None] = {}
    for edge in changes.topology.incoming.get(node, ()):
        for arrival in _source(changes, record, edge):
            sources[arrival] = None
    return list(sources)


def _source(changes: Changes, record: NodeRecord, edge: InEdge) -> list[tuple[str, int]]:
    if edge.kind is EdgeKind.BACK:
        return [pair for pair in record.via if pair[0] == edge.source]
    if edge.kind is EdgeKind.EXIT:
        return [
            (name, visit)
            for name, position, visit in changes.loop(edge.loop).taken
            if (name, position) == (edge.source, edge.position)
        ]
    source = changes.node(edge.source)
    live = source.edges[edge.position : edge.position + 1] == "1"
    return [(edge.source, source.visit)] if live else []


# A worker returns a node, because it ended, must be retried, or the worker shuts down.


LOCK_MS = 1_000
"""Time during which a run's other nodes may not settle while a node evaluates its conditions again."""

PUT_BACK = {Status.RETRYING: "retrying", Status.CANCELLED: "cancelled"}

RELEASE_BUDGET = 10
"""Releases in a row, each in the middle of a node's code, before it fails with a dead letter."""

LEFT = {Status.READY: "left", Status.CANCELLED: "cancelled"}


def settle(
    changes: Changes,
    node: str,
    visit: int,
    fence: int,
    *,
    nonce: str,
    status: Status,
    edges: str,
    reads: Sequence[tuple[str, int, str]] = (),
    insist: bool = False,
    effects: Sequence[str] = (),
    skipped: bool = False,
) -> TransitionResult:
    """End a visit: record the status, send the arrivals. "settled", "stale", "changed" or "locked".

    `edges` has a bit per outgoing edge. `reads` are the (node, visit, status) of the results that
    the conditions read, (node, 0, "") for a missing result. "changed" means that a result has
    changed since, so the conditions must be evaluated again; with `insist` other nodes wait
    ("locked") meanwhile. `effects` are the questions whose approved effects ended with the visit. A
    node that was `skipped` has nothing to undo.
    """
    record = changes.node(node)
    if record.nonce == nonce and record.status is not Status.RUNNING:
        return changes.refuse("settled")
    if not owns(record, visit, fence):
        return changes.refuse("stale")
    until, _, owner = changes.run.lock.partition(" ")
    holder = f"{node}.{visit}.{fence}"
    if owner not in ("", holder) and changes.now < int(until):
        return changes.refuse("locked")
    if any(
        changes.node(source).ended != (source_visit, source_status)
        for source, source_visit, source_status in reads
    ):
        if not insist:
            return changes.refuse("changed")
        changes.run = replace(changes.run, lock=f"{changes.now + LOCK_MS} {holder}")
        return close(changes, "changed")
    changes.run = replace(changes.run, lock="")
    changes.add(DropTimer(TimerKind.NODE, node), *withdrawals(node, visit, record.questions))
    changes.add(
        *(AddEvent(EventKind.EFFECT_ENDED, node, visit, question) for question in effects)
    )
    if status is Status.COMPLETED and UNDO + node in changes.topology.nodes and not skipped:
        todo = changes.node(UNDO)
        changes.put(UNDO, replace(todo, via=((node, visit), *todo.via)))
    finish(changes, node, replace(record, nonce=nonce, questions=(), unseen=0), status, edges)
    return close(changes, "settled")


def retry(
    changes: Changes, node: str, visit: int, fence: int, delay_ms: int, *, counts: bool
) -> TransitionResult:
    """Schedule a running node to run again after a delay; `counts` makes it a new attempt."""
    record = changes.node(node)
    if reply := refusal(changes, node, visit, fence, PUT_BACK):
        return reply
    changes.add(DropTimer(TimerKind.NODE, node))
    if stops(changes, node):
        cancel_node(changes, node)
        return close(changes, "cancelled")
    if counts:
        rewind(changes, node)
    again = replace(unassigned(record), attempt=record.attempt + 1) if counts else record
    changes.put(node, replace(again, status=Status.RETRYING))
    changes.add(
        SetTimer(TimerKind.NODE, node, changes.now + delay_ms),
        AddEvent(EventKind.NODE_RETRYING, node, visit, str(delay_ms)),
    )
    return close(changes, "retrying")


def leave(
    changes: Changes, node: str, visit: int, fence: int, *, stalled: bool | None = None
) -> TransitionResult:
    """Return a node whose worker shuts down to the queue: "left", or "cancelled" if its run stops.

    If the node's code had started, `stalled` says whether it was cut off before it stored anything
    new. The reply is "dead" when that has happened `RELEASE_BUDGET` times in a row.
    """
    record = changes.node(node)
    if reply := refusal(changes, node, visit, fence, LEFT):
        return reply
    changes.add(AddEvent(EventKind.NODE_LEFT, node, visit, str(record.attempt)))
    if stops(changes, node):
        cancel_node(changes, node)
        return close(changes, "cancelled")
    if stalled is not None:
        record = replace(record, releases=record.releases + 1 if stalled else 0)
    if record.releases >= RELEASE_BUDGET:
        changes.add(DropTimer(TimerKind.NODE, node))
        return fail_with_letter(changes, node, record, released=True)
    dispatch(changes, node, record)
    return close(changes, "left")


def fail_with_letter(
    changes: Changes, node: str, record: NodeRecord, *, released: bool = False
) -> TransitionResult:
    """Fail a node with a dead letter after too many lost leases or releases: "dead"."""
    changes.add(
        WriteDeadLetter(node, record.visit, released=released),
        *withdrawals(node, record.visit, record.questions),
    )
    finish(changes, node, replace(record, questions=(), unseen=0), Status.FAILED, "")
    return close(changes, "dead")
