"""A run begins, goes on after its end, moves to another shape, stops, and is told of."""

from __future__ import annotations

from dataclasses import replace

from runner.actions import Announce, DropTimer, SetTimer, StopChild, TimerKind
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.graph import ROOT
from runner.migrating import Migration
from runner.run import Records, Status
from runner.transitions.arrivals import arrive, open_batch
from runner.transitions.closing import close
from runner.transitions.steps import drain_idle, ring, stop, withdrawn


def start(draft: Draft) -> Step:
    """Begin a run: one live arrival at each entry point."""
    draft.add(Announce(EventKind.RUN_STARTED, detail=draft.run.graph_id))
    _set_deadline(draft)
    if draft.topology.batches:
        open_batch(draft, [(node, ()) for node in draft.topology.entries])
        return close(draft, "started")
    settled: list[str] = []
    for node in draft.topology.entries:
        arrive(draft, node, ROOT, live=True, settled=settled)
    return close(draft, "started")


def _set_deadline(draft: Draft) -> None:
    if draft.topology.timeout_ms:
        draft.add(SetTimer(TimerKind.DEADLINE, "", draft.now + draft.topology.timeout_ms))


def reopen(draft: Draft, records: Records) -> Step:
    """Let an ended run go on with other records, from an empty page: "reopened", or "moved"."""
    if not draft.run.is_final:
        return draft.refuse("moved")
    counted = replace(draft.run, failed=records.failed, started=records.started)
    draft.run = replace(counted, stopping="", reason="", lock="", untold=0)
    draft.add(DropTimer(TimerKind.CALLBACK, ""), Announce(EventKind.RUN_RETRIED))
    _set_deadline(draft)
    _fill(draft, records)
    return close(draft, "reopened")


def migrate(draft: Draft, move: Migration) -> Step:
    """Let a waiting run go on in another shape, from an empty page: "migrated", or "moved".

    What is decided already was put under its new names before; what was open there is asked anew. The
    time that the run may take is that of the other shape, from now on.
    """
    if draft.before not in {Status.INTERRUPTED, Status.NEEDS_MIGRATION}:
        return draft.refuse("moved")
    counted = replace(draft.run, active=0, waiting=0, held=0, lock="")
    draft.run = replace(counted, failed=move.records.failed, started=move.started)
    draft.add(Announce(EventKind.RUN_MIGRATED, detail=move.fingerprint))
    for _, new in move.moved:
        draft.add(Announce(EventKind.INTERRUPT_MOVED, new.node_id, new.visit, new.id))
    for node, visit, interrupt in move.withdrawn:
        draft.add(*withdrawn(node, visit, [interrupt]))
    for asked in move.asked:
        draft.add(Announce(EventKind.INTERRUPT_ASKED, asked.node_id, asked.visit, asked.id))
    draft.add(*(StopChild(child, node) for node, child in move.stops))
    draft.add(DropTimer(TimerKind.DEADLINE, ""))
    _set_deadline(draft)
    _fill(draft, move.records)
    return close(draft, "migrated")


def fork(draft: Draft, records: Records, source: str) -> Step:
    """Begin a run from what another has done."""
    draft.run = replace(draft.run, failed=records.failed, started=records.started)
    draft.add(Announce(EventKind.RUN_STARTED, detail=draft.topology.graph_id))
    draft.add(Announce(EventKind.RUN_FORKED, detail=source))
    _set_deadline(draft)
    _fill(draft, records)
    return close(draft, "forked")


def _fill(draft: Draft, records: Records) -> None:
    """Write all records of a run that has none, and ring for the nodes that are ready."""
    draft.loops, draft.arrived, draft.maps = dict(records.loops), dict(records.arrivals), dict(records.maps)
    for node, record in records.nodes.items():
        if record.status is Status.READY:
            ring(draft, node, record)
        else:
            draft.put(node, record)


def cancel(draft: Draft, reason: str) -> Step:
    """Stop a run because somebody asked for it."""
    if draft.run.is_final or draft.run.stopping:
        return draft.refuse("already")
    stop(draft, Status.CANCELLED, reason)
    return close(draft, "cancelled")


def drain(draft: Draft) -> Step:
    """Go on with cancelling what a stopping run still has waiting."""
    if draft.run.stopping and not draft.run.is_final:
        drain_idle(draft)
    return close(draft, "drained")


def told(draft: Draft, end: int) -> Step:
    """Note that a run's end was told: "told", or "stale" when it was another end."""
    if not end or draft.run.ends != end:
        return draft.refuse("stale")
    draft.run = replace(draft.run, untold=0)
    draft.add(DropTimer(TimerKind.CALLBACK, ""))
    return draft.step("told")
