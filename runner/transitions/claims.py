"""A worker takes a node: whether it may, and what has reached the visit."""

from __future__ import annotations

from dataclasses import replace

from runner import fences, limits
from runner.actions import Announce, SetTimer, TimerKind
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.graph import AFTER_GRAPH, EdgeKind, InEdge
from runner.run import NodeRecord, Status
from runner.transitions.closing import close
from runner.transitions.steps import MAX_RING_MS, cancel_node, ring, stops


def claim(draft: Draft, node: str, visit: int, attempt: int, nonce: str) -> Step:
    """Give a ready node to one worker: "claimed", or "stale", or "cancelled" when the run stops.

    "limited" means that it waits for a place, "limited <ms>" that it begins so much later. "revoked
    <reference>" says that its run stopped while another system was at work: that may stop, too.
    """
    record = draft.node(node)
    if (
        record.status is Status.CANCELLED
        and record.handed
        and (record.visit, record.attempt) == (visit, attempt)
    ):
        return draft.refuse(f"revoked {record.handed}")
    if record.status is Status.RUNNING and record.nonce == nonce:
        return draft.refuse("claimed")
    if record.status is Status.RETRYING and record.granted and record.nonce == nonce:
        return draft.refuse("limited")
    if (record.status, record.visit, record.attempt) != (Status.READY, visit, attempt):
        return draft.refuse("stale")
    if stops(draft, node) and node != AFTER_GRAPH:
        cancel_node(draft, node)
        return close(draft, "cancelled")
    refused = _limited(draft, node, record, nonce) if draft.shape(node).limits else ""
    if refused:
        return close(draft, refused)
    claimed = replace(
        draft.node(node),
        status=Status.RUNNING,
        fence=fences.next_fence(record.fence, nonce),
        nonce=nonce,
        unseen=0,
        rings=0,
        granted=False,
    )
    draft.put(node, claimed)
    draft.add(
        SetTimer(TimerKind.NODE, node, draft.now + draft.lease_ms),
        Announce(EventKind.NODE_STARTED, node, visit, str(attempt)),
    )
    return close(draft, "claimed")


def _limited(draft: Draft, node: str, record: NodeRecord, nonce: str) -> str:
    """Judge a claim by the node's limits: "" lets it begin, else the word of the refusal."""
    shape, said = draft.shape(node).limits, Announce(EventKind.NODE_LIMITED, node, record.visit)
    wait, times = (0, []) if record.granted else limits.reserve(shape, draft.view, draft.now)
    draft.add(*times)
    if wait:
        draft.put(node, replace(record, status=Status.RETRYING, granted=True, nonce=nonce, rings=0))
        draft.add(SetTimer(TimerKind.NODE, node, draft.now + wait), replace(said, detail=str(wait)))
        return f"limited {wait}"
    since = record.since or max(1, draft.now)
    kept_until = draft.now + MAX_RING_MS + draft.lease_ms
    free, places = limits.take(shape, draft.view, node, since, (draft.now, kept_until))
    draft.add(*places)
    if not free and not record.since:
        draft.add(said)
    draft.put(node, replace(record, since=since if places else 0, granted=True))
    return "" if free else "limited"


def pass_on(draft: Draft, node: str) -> Step:
    """Ring a node that waits for a place of a limit: one is kept for it."""
    record = draft.node(node)
    if record.status is not Status.READY:
        return draft.refuse("stale")
    ring(draft, node, record)
    return close(draft, "ready")


def live_inputs(draft: Draft, node: str) -> list[tuple[str, int]]:
    """List the (node, visit) whose outputs reach this visit, in edge order, each once."""
    record = draft.node(node)
    found: dict[tuple[str, int], None] = {}
    for edge in draft.topology.incoming.get(node, ()):
        for arrival in _source(draft, record, edge):
            found[arrival] = None
    return list(found)


def _source(draft: Draft, record: NodeRecord, edge: InEdge) -> list[tuple[str, int]]:
    if edge.kind in {EdgeKind.BACK, EdgeKind.BATCH}:
        return [pair for pair in record.via if pair[0] == edge.source]
    if edge.kind is EdgeKind.EXIT:
        taken = draft.loop(edge.loop).taken
        return [
            (name, visit) for name, place, visit in taken if (name, place) == (edge.source, edge.position)
        ]
    source = draft.node(edge.source)
    live = source.edges[edge.position : edge.position + 1] == "1"
    return [(edge.source, source.visit)] if live else []
