"""How a visit ends, and how every transition does."""

from __future__ import annotations

from dataclasses import replace

from runner.actions import END, Announce, Dispatch, SetTimer, TimerKind
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.graph import AFTER_GRAPH, FailurePolicy
from runner.maps import map_of
from runner.run import FINAL, NodeRecord, Status, status_of
from runner.transitions.arrivals import end_batch, spread
from runner.transitions.maps import count_failure, move_map, rewind
from runner.transitions.steps import MAX_RING_MS, ring, stop


def finish(
    draft: Draft, node: str, record: NodeRecord, status: Status, edges: str, *, alone: bool = False
) -> None:
    """Record how a visit ended, and spread it; a failure that is not `alone` may stop the run."""
    taken = edges if status is Status.COMPLETED else ""
    draft.put(node, replace(record, status=status, edges=taken, crashes=0, busy=False, held=False))
    kind = EventKind.NODE_COMPLETED if status is Status.COMPLETED else EventKind.NODE_FAILED
    draft.add(Announce(kind, node, record.visit))
    owner = map_of(node)
    if owner:
        count_failure(draft, owner, status)
        return
    if status is Status.FAILED:
        rewind(draft, node)
        draft.run = replace(draft.run, failed=draft.run.failed + 1)
        if draft.topology.policy is FailurePolicy.FAIL_FAST and not alone:
            stop(draft, Status.FAILED, f'node "{node}" failed')
    if not draft.run.stopping:
        spread(draft, node)


def close(draft: Draft, reply: str) -> Step:
    """End a transition: maps go on first, a run that would end opens its next batch or fires its event."""
    for name in sorted(draft.maps):
        move_map(draft, name)
    ends = status_of(draft.run) in FINAL and not end_batch(draft)
    if ends and AFTER_GRAPH in draft.topology.nodes:
        record = draft.node(AFTER_GRAPH)
        if record.status is Status.PENDING:
            ring(draft, AFTER_GRAPH, replace(record, visit=record.visit + 1, attempt=1))
    status = status_of(draft.run)
    if draft.run.on_end and status is not draft.before and status in FINAL:
        draft.run = replace(draft.run, ends=draft.run.ends + 1, untold=0)
        ring_end(draft)
    return draft.step(reply)


def ring_end(draft: Draft) -> None:
    """Ring for somebody who tells that the run has ended, where its first nodes ring; again if need be."""
    run, shape = draft.run, draft.shape(draft.topology.entries[0])
    wait = min(MAX_RING_MS, draft.lease_ms * 2 ** min(run.untold, 16))
    draft.run = replace(run, untold=run.untold + 1)
    draft.add(
        Dispatch(END, run.ends, 1, shape.queue, shape.priority),
        SetTimer(TimerKind.CALLBACK, "", draft.now + wait),
    )
