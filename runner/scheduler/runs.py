"""Transitions of a whole run: queue, start, reopen, migrate, fork, cancel, confirm its callback."""

from __future__ import annotations

from dataclasses import replace

from runner.definition.model import ROOT
from runner.limits.concurrency import key_of
from runner.records.migration import Migration
from runner.records.run import EventKind, Records, Status
from runner.scheduler.arrivals import arrive
from runner.scheduler.changes import (
    AddEvent,
    Changes,
    DropTimer,
    EnterKey,
    LeaveKey,
    SetTimer,
    StopChild,
    TimerKind,
    TransitionResult,
    cancel_all_idle,
    dispatch,
    stop,
    withdrawals,
)
from runner.scheduler.lifecycle import close


def start(changes: Changes) -> TransitionResult:
    """Start a run: one live arrival at each entry point."""
    changes.add(AddEvent(EventKind.RUN_STARTED, detail=changes.run.graph_id))
    return _enter(changes)


def queue(changes: Changes, reason: str) -> TransitionResult:
    """Accept a run that begins later: it counts as one active node until then."""
    changes.run = replace(changes.run, active=1, reason=reason)
    changes.add(AddEvent(EventKind.RUN_STARTED, detail=changes.run.graph_id))
    changes.add(AddEvent(EventKind.RUN_QUEUED, detail=reason))
    return changes.result("started")


def begin(changes: Changes) -> TransitionResult:
    """Begin a run that was queued: "started", or "stale" if it is no longer queued."""
    if not changes.run.is_queued:
        return changes.refuse("stale")
    changes.run = replace(changes.run, active=0, reason="")
    changes.add(AddEvent(EventKind.RUN_ADMITTED))
    return _enter(changes)


def delay(changes: Changes, reason: str, due: int) -> TransitionResult:
    """Accept a run that begins at a time (ms)."""
    changes.add(SetTimer(TimerKind.BEGIN, "", due))
    return queue(changes, reason)


def put_off(changes: Changes, due: int) -> TransitionResult:
    """Let a delayed run begin at another time (ms): "put_off", or "stale" if it isn't delayed."""
    if not changes.run.is_queued:
        return changes.refuse("stale")
    changes.add(SetTimer(TimerKind.BEGIN, "", due))
    return changes.result("put_off")


def end_delay(changes: Changes) -> TransitionResult:
    """Begin a delayed run whose time has come, once its key has room."""
    rules = changes.topology.admission
    if not changes.run.is_queued or rules is None:
        return changes.refuse("stale")
    key = key_of(changes.run.graph_id, rules.by, changes.view.tag)
    changes.add(EnterKey(key, rules.concurrency.at_most if rules.concurrency else 0))
    return changes.result("due")


def requeue(changes: Changes, reason: str) -> TransitionResult:
    """Change the reason why a queued run waits."""
    changes.run = replace(changes.run, reason=reason)
    changes.add(AddEvent(EventKind.RUN_QUEUED, detail=reason))
    return changes.result("queued")


def leave_key(changes: Changes, key: str, at_most: int) -> TransitionResult:
    """Stop counting the run under a key that it has left: a migration has changed its key."""
    changes.add(LeaveKey(key, at_most))
    return changes.result("left")


def _enter(changes: Changes) -> TransitionResult:
    _set_deadline(changes)
    todo: list[str] = []
    for node in changes.topology.entries:
        arrive(changes, node, ROOT, live=True, todo=todo)
    return close(changes, "started")


def _set_deadline(changes: Changes) -> None:
    if changes.topology.timeout_ms:
        changes.add(SetTimer(TimerKind.DEADLINE, "", changes.now + changes.topology.timeout_ms))


def reopen(changes: Changes, records: Records, by: str = "") -> TransitionResult:
    """Continue an ended run with other records: "reopened", or "moved" if it is no longer final.

    `by` is the principal who asked for it, "" if unknown.
    """
    if not changes.run.is_final:
        return changes.refuse("moved")
    with_counters = replace(changes.run, failed=records.failed, started=records.started)
    changes.run = replace(with_counters, stopping="", reason="", lock="", unreported=0)
    changes.add(DropTimer(TimerKind.CALLBACK, ""), AddEvent(EventKind.RUN_RETRIED, detail=by))
    _set_deadline(changes)
    _fill(changes, records)
    return close(changes, "reopened")


def migrate(changes: Changes, move: Migration) -> TransitionResult:
    """Continue a waiting run with its graph's new shape: "migrated", or "moved" if not waiting.

    Decided questions already have their new names; open questions are withdrawn and asked again.
    The execution timeout of the new shape starts now.
    """
    if changes.before not in {Status.INTERRUPTED, Status.NEEDS_MIGRATION}:
        return changes.refuse("moved")
    with_counters = replace(changes.run, active=0, waiting=0, held=0, lock="")
    changes.run = replace(with_counters, failed=move.records.failed, started=move.started)
    changes.add(AddEvent(EventKind.RUN_MIGRATED, detail=move.fingerprint))
    for _, moved_question in move.moved:
        changes.add(
            AddEvent(
                EventKind.INTERRUPT_MOVED,
                moved_question.node_id,
                moved_question.visit,
                moved_question.id,
            )
        )
    for node, visit, interrupt in move.withdrawn:
        changes.add(*withdrawals(node, visit, [interrupt]))
    for question in move.replacements:
        changes.add(
            AddEvent(EventKind.INTERRUPT_ASKED, question.node_id, question.visit, question.id)
        )
    changes.add(*(StopChild(child, node) for node, child in move.stops))
    changes.add(DropTimer(TimerKind.DEADLINE, ""))
    _set_deadline(changes)
    _fill(changes, move.records)
    return close(changes, "migrated")


def fork(changes: Changes, records: Records, source: str) -> TransitionResult:
    """Start a run from records of the run `source`: "forked"."""
    changes.run = replace(changes.run, failed=records.failed, started=records.started)
    changes.add(AddEvent(EventKind.RUN_STARTED, detail=changes.topology.graph_id))
    changes.add(AddEvent(EventKind.RUN_FORKED, detail=source))
    _set_deadline(changes)
    _fill(changes, records)
    return close(changes, "forked")


def _fill(changes: Changes, records: Records) -> None:
    """Write all records of a run, and dispatch the nodes that are ready."""
    changes.loops = dict(records.loops)
    changes.arrived = dict(records.arrivals)
    changes.maps = dict(records.maps)
    for node, record in records.nodes.items():
        if record.status is Status.READY:
            dispatch(changes, node, record)
        else:
            changes.put(node, record)


def cancel(changes: Changes, reason: str, delay_ms: int = 0) -> TransitionResult:
    """Stop a run on request; "already" if it is final or stopping."""
    if changes.run.is_final or changes.run.stopping:
        return changes.refuse("already")
    stop(changes, Status.CANCELLED, reason, delay_ms)
    return close(changes, "cancelled")


def drain(changes: Changes, after_node: str, delay_ms: int = 0) -> TransitionResult:
    """Continue to cancel a stopping run's idle nodes: "after <node>" if more follow, or "drained"."""
    is_stopping = changes.run.stopping and not changes.run.is_final
    last_node = cancel_all_idle(changes, after_node, delay_ms) if is_stopping else None
    return close(changes, "drained" if last_node is None else f"after {last_node}")


def end_reported(changes: Changes, end: int) -> TransitionResult:
    """Confirm the `on_end` callback of a run's end: "end_reported", or "stale" for an earlier end."""
    if not end or changes.run.ends != end:
        return changes.refuse("stale")
    changes.run = replace(changes.run, unreported=0)
    changes.add(DropTimer(TimerKind.CALLBACK, ""))
    return changes.result("end_reported")
