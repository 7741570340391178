"""What transitions are made of: ring for a node, withdraw its questions, cancel it, stop the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runner.actions import Action, Announce, Close, Dispatch, DropTimer, SetTimer, StopChild, TimerKind
from runner.draft import Draft
from runner.events import EventKind
from runner.maps import map_of
from runner.run import NodeRecord, Status

DRAIN_LIMIT = 500
"""Nodes cancelled in one step; the rest follow by a timer, so that no step blocks the store."""

IDLE = frozenset({Status.READY, Status.RETRYING, Status.WAITING})
"""Nodes that are cancelled at once when their run or map stops."""

MAX_RING_MS = 300_000


def holds(record: NodeRecord, visit: int, fence: int) -> bool:
    """Tell whether a worker that claimed with this fence still owns the node."""
    return (record.status, record.visit, record.fence) == (Status.RUNNING, visit, fence)


def refusal(record: NodeRecord, visit: int, fence: int, words: Mapping[Status, str]) -> str:
    """Find the word for a worker that doesn't hold the node: "stale", or what a repeat was told first.

    No other worker has claimed since when the fence is still this one, and a lost lease grows it: so
    the status says what the same request did the first time.
    """
    return words.get(record.status, "stale") if (record.visit, record.fence) == (visit, fence) else "stale"


def stops(draft: Draft, node: str) -> bool:
    """Tell whether a node must not go on: its run stops, or its map does."""
    owner = map_of(node)
    return bool(draft.run.stopping) or (bool(owner) and draft.map(owner).stopped)


def ring(draft: Draft, node: str, record: NodeRecord) -> None:
    """Write a ready node and ring its doorbell; the timer rings again should it be lost."""
    shape = draft.shape(node)
    uncounted = record.uncounted if record.attempt > 1 else 0
    ready = replace(record, status=Status.READY, rings=0, busy=False, held=False, items=False)
    draft.put(node, replace(ready, uncounted=uncounted))
    draft.add(
        Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority),
        SetTimer(TimerKind.NODE, node, draft.now + draft.lease_ms),
    )


def fresh(record: NodeRecord) -> NodeRecord:
    """Forget who works for a node: its next execution begins anew."""
    return replace(record, child="", handed="", sent=False, late=False)


def withdrawn(node: str, visit: int, interrupts: Sequence[str]) -> list[Action]:
    """Take questions back that a node asked."""
    actions: list[Action] = []
    for interrupt in interrupts:
        actions.append(Close(interrupt, "withdrawn"))
        actions.append(Announce(EventKind.INTERRUPT_WITHDRAWN, node, visit, interrupt))
    return actions + quiet(interrupts)


def quiet(interrupts: Iterable[str]) -> list[Action]:
    """Nothing will happen to these questions by time."""
    kinds = (TimerKind.EXPIRE, TimerKind.REMIND)
    return [DropTimer(kind, interrupt) for interrupt in interrupts for kind in kinds]


def stop(draft: Draft, status: Status, reason: str) -> None:
    """Let a run make nothing ready any more; the first reason stands."""
    if draft.run.stopping:
        return
    draft.run = replace(draft.run, stopping=status, reason=reason)
    draft.add(Announce(EventKind.RUN_STOPPING, detail=reason))
    drain_idle(draft)


def drain_idle(draft: Draft) -> None:
    """Cancel what waits in a run that stops; what is more than one step may do follows by a timer."""
    names = sorted({*draft.view.live(), *draft.nodes})
    idle = [name for name in names if draft.node(name).status in IDLE]
    for name in idle[:DRAIN_LIMIT]:
        drop(draft, name)
    if len(idle) > DRAIN_LIMIT:
        draft.add(SetTimer(TimerKind.DRAIN, "", draft.now))


def drop(draft: Draft, node: str) -> None:
    """Cancel an idle node; one whose child run is at work is cancelled when that has ended."""
    record = draft.node(node)
    if record.child:
        draft.add(StopChild(record.child, node))
    if record.is_out:
        # Whoever hears it tells the other system, if it can: see `claim`.
        shape = draft.shape(node)
        draft.add(Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority))
    if record.items or record.is_out or not record.busy:
        cancel_node(draft, node)


def cancel_node(draft: Draft, node: str) -> None:
    """End a node that must not go on."""
    record = draft.node(node)
    draft.add(*withdrawn(node, record.visit, record.questions))
    draft.add(DropTimer(TimerKind.NODE, node))
    ended = replace(record, status=Status.CANCELLED, questions=(), unseen=0)
    draft.put(node, replace(ended, busy=False, held=False, items=False))
    draft.add(Announce(EventKind.NODE_CANCELLED, node, record.visit))
