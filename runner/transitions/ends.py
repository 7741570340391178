"""A worker gives a node back: it has ended, is tried again, or its worker leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.actions import Announce, DropTimer, SetTimer, TimerKind
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.graph import BATCH
from runner.outcomes import NextBatch
from runner.run import Status
from runner.transitions.arrivals import open_batch
from runner.transitions.closing import close, finish
from runner.transitions.maps import rewind
from runner.transitions.steps import cancel_node, fresh, holds, refusal, ring, stop, stops, withdrawn

LOCK_MS = 1_000
"""How long a node whose conditions were refused too often may keep the others from settling."""

PUT_BACK = {Status.RETRYING: "retrying", Status.CANCELLED: "cancelled"}

LEFT = {Status.READY: "left", Status.CANCELLED: "cancelled"}


def settle(
    draft: Draft,
    node: str,
    visit: int,
    fence: int,
    *,
    nonce: str,
    status: Status,
    edges: str,
    reads: Sequence[tuple[str, int, str]] = (),
    insist: bool = False,
    alone: bool = False,
) -> Step:
    """End a visit: record the status, spread the arrivals. "settled", "stale", "changed" or "locked".

    `edges` has a bit per outgoing edge. `reads` are the (node, visit, status) of the results that the
    conditions looked at, (node, 0, "") where there was none. "changed" means that one is different now
    and the conditions must be asked again; with `insist` the others wait ("locked") meanwhile. A failure
    that is `alone` ends its branch only.
    """
    record = draft.node(node)
    if record.nonce == nonce and record.status is not Status.RUNNING:
        return draft.refuse("settled")
    if not holds(record, visit, fence):
        return draft.refuse("stale")
    until, _, owner = draft.run.lock.partition(" ")
    own = f"{node}.{visit}.{fence}"
    if owner not in ("", own) and draft.now < int(until):
        return draft.refuse("locked")
    if any(draft.node(read).ended != (seen, word) for read, seen, word in reads):
        if not insist:
            return draft.refuse("changed")
        draft.run = replace(draft.run, lock=f"{draft.now + LOCK_MS} {own}")
        return close(draft, "changed")
    draft.run = replace(draft.run, lock="")
    draft.add(DropTimer(TimerKind.NODE, node), *withdrawn(node, visit, record.questions))
    finish(draft, node, replace(record, nonce=nonce, questions=(), unseen=0), status, edges, alone=alone)
    return close(draft, "settled")


def retry(draft: Draft, node: str, visit: int, fence: int, delay_ms: int, *, counts: bool) -> Step:
    """Put a running node back to run again after a delay; `counts` makes it a new attempt."""
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, PUT_BACK))
    draft.add(DropTimer(TimerKind.NODE, node))
    if stops(draft, node):
        cancel_node(draft, node)
        return close(draft, "cancelled")
    if counts:
        rewind(draft, node)
    again = replace(fresh(record), attempt=record.attempt + 1) if counts else record
    draft.put(node, replace(again, status=Status.RETRYING))
    draft.add(
        SetTimer(TimerKind.NODE, node, draft.now + delay_ms),
        Announce(EventKind.NODE_RETRYING, node, visit, str(delay_ms)),
    )
    return close(draft, "retrying")


def leave(draft: Draft, node: str, visit: int, fence: int) -> Step:
    """Ring for a running node anew, whose worker leaves: "left", or "cancelled" when its run stops."""
    record = draft.node(node)
    if not holds(record, visit, fence):
        return draft.refuse(refusal(record, visit, fence, LEFT))
    draft.add(Announce(EventKind.NODE_LEFT, node, visit, str(record.attempt)))
    if stops(draft, node):
        cancel_node(draft, node)
        return close(draft, "cancelled")
    ring(draft, node, record)
    return close(draft, "left")


def advance(draft: Draft, visit: int, fence: int, *, nonce: str, batch: NextBatch) -> Step:
    """Open the batch that follows, or none, and so end the run: "advanced" or "stale"."""
    record = draft.node(BATCH)
    if record.nonce == nonce and record.status is not Status.RUNNING:
        return draft.refuse("advanced")
    if not holds(record, visit, fence):
        return draft.refuse("stale")
    draft.add(DropTimer(TimerKind.NODE, BATCH), Announce(EventKind.NODE_COMPLETED, BATCH, visit))
    draft.put(BATCH, replace(record, status=Status.COMPLETED, nonce=nonce, via=(), crashes=0))
    for node, edges in batch.taken:
        draft.put(node, replace(draft.node(node), edges=edges))
    limit = draft.topology.limit
    if batch.following and batch.reason:
        stop(draft, Status.FAILED, batch.reason)
    elif batch.following and limit and draft.run.started >= limit:
        stop(draft, Status.FAILED, f'max_node_executions ({limit}) reached before "{batch.following[0][0]}"')
    elif batch.following and not draft.run.stopping:
        open_batch(draft, batch.following)
    return close(draft, "advanced")
