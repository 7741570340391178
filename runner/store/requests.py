"""What each request does to the runs of a store, the same in every store: see `walk.UnitOfWork`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runner import scheduler
from runner.approvals.ballots import Use
from runner.records import failures
from runner.records.checkpoints import Saved
from runner.records.codec import JSON
from runner.records.interrupts import (
    Decision,
    Interrupt,
    InterruptStatus,
    Receipt,
    ReceiptStatus,
    address_of,
)
from runner.records.migration import Migration
from runner.records.run import EventKind, Rewrite, RunRecord, Status, VisitEntry
from runner.scheduler.changes import TransitionResult
from runner.store import event_payloads
from runner.store.apply_transition import RunT, StoredRun, UnitOfWork, apply
from runner.store.encoding import replied
from runner.store.interface import Doorbell, Fork, Reply, Settlement, Start, Token
from runner.store.receipts import by_visit, receipts_for

WAITS = frozenset({Status.INTERRUPTED, Status.NEEDS_MIGRATION})
"""The statuses in which a run can be migrated."""


def make(
    unit: UnitOfWork[RunT],
    run_id: str,
    transition: Callable[..., TransitionResult],
    *arguments: object,
    **named: Any,
) -> Reply:
    """Make a transition of a run, with all that follows from it."""
    return replied(*apply(unit, run_id, transition, *arguments, **named))


def visit(
    unit: UnitOfWork[RunT],
    token: Token,
    transition: Callable[..., TransitionResult],
    *arguments: object,
    **named: Any,
) -> Reply:
    """Make a transition of a worker's visit."""
    return make(
        unit, token.run_id, transition, token.node, token.visit, token.fence, *arguments, **named
    )


def owned(unit: UnitOfWork[RunT], token: Token) -> RunT | None:
    """Return the run of a visit that its worker still owns; None when it does not."""
    run = unit.find(token.run_id)
    if run is None:
        return None
    owns = scheduler.owns(unit.changes(run).node(token.node), token.visit, token.fence)
    return run if owns else None


def wait(
    unit: UnitOfWork[RunT],
    token: Token,
    transition: Callable[..., TransitionResult],
    interrupts: Sequence[Interrupt],
    saved: Saved | None,
) -> Reply:
    """Ask questions of a running visit (`ask`), or make it wait for their answers (`park`)."""
    run = owned(unit, token)
    if run is not None:
        run.keep(token.node, saved)
    ids = list(dict.fromkeys(interrupt.id for interrupt in interrupts))
    return visit(unit, token, transition, ids, questions=interrupts)


def start(unit: UnitOfWork[RunT], start: Start) -> Reply:
    """Start a run; a child run also makes its parent's node wait for it."""
    fingerprint = start.fingerprint or unit.current(start.graph_id)
    if not fingerprint or not unit.has_shape(start.graph_id, fingerprint):
        return Reply("unknown_graph")
    first = unit.started_by(start.graph_id, start.idempotency_key) if start.idempotency_key else ""
    if first:
        return Reply("exists", run_id=first)
    if unit.find(start.run_id) is not None:
        return Reply("started", run_id=start.run_id)
    doorbells: list[Doorbell] = []
    if start.parent is not None:
        delegated = visit(unit, start.parent, scheduler.delegate, start.run_id)
        if delegated.word != "delegated":
            return delegated
        doorbells += delegated.doorbells
    _begin(unit, start, fingerprint)
    started = make(unit, start.run_id, scheduler.start)
    return Reply(started.word, [*doorbells, *started.doorbells], start.run_id)


def _begin(unit: UnitOfWork[RunT], start: Start, fingerprint: str) -> RunT:
    parent = start.parent
    above = unit.find(parent.run_id) if parent else None
    record = RunRecord(
        start.run_id,
        start.graph_id,
        fingerprint,
        parent=parent.run_id if parent else "",
        parent_node=parent.node if parent else "",
        root=start.root or (above.record.root if above else start.run_id),
        path=f"{above.record.path}{parent.node}/" if above and parent else "",
        on_end=start.on_end,
        trace=start.trace,
    )
    return unit.begin(record, start)


def settle(unit: UnitOfWork[RunT], token: Token, settlement: Settlement, nonce: str) -> Reply:
    run = owned(unit, token)
    reply = visit(
        unit,
        token,
        scheduler.settle,
        nonce=nonce,
        status=settlement.status,
        edges=settlement.edges,
        reads=settlement.reads,
        insist=settlement.insist,
        effects=[use.interrupt_id for use in settlement.effects],
        payloads=event_payloads.settled(settlement),
    )
    if run is not None and reply.word == "settled":
        result = (settlement.status, settlement.entry, settlement.output)
        run.leave_result(token.node, token.visit, *result)
        run.keep(token.node, settlement.saved)
        if settlement.session is not None:
            run.remember(token.node, settlement.session)
    return reply


def retry(
    unit: UnitOfWork[RunT],
    token: Token,
    delay_ms: int,
    entry: VisitEntry | None,
    saved: Saved | None,
) -> Reply:
    run = owned(unit, token)
    if run is not None:
        run.keep(token.node, saved)
        if entry is not None:
            run.note_error(token.node, token.visit, entry)
    payloads = event_payloads.retried(entry)
    return visit(
        unit, token, scheduler.retry, delay_ms, counts=entry is not None, payloads=payloads
    )


def hold(unit: UnitOfWork[RunT], token: Token, entry: VisitEntry | None) -> Reply:
    """Hold a visit; with an entry it failed in what a person must look at, which its dead letter says."""
    run, error = owned(unit, token), event_payloads.error(entry)
    reply = visit(unit, token, scheduler.hold, payloads={EventKind.NODE_HELD: error})
    if run is not None and entry is not None and reply.word == "held":
        run.note_error(token.node, token.visit, entry)
        unit.write_dead_letter(
            token.run_id, token.node, token.visit, str(failures.load(entry["error"]))
        )
    return reply


def report(unit: UnitOfWork[RunT], work: tuple[str, str, int, str], outcome: JSON) -> Reply:
    """Take the outcome of an external task: of a run, node and visit, by its reference."""
    run_id, node, number, reference = work
    run = unit.find(run_id)
    if run is None:
        return Reply("unknown")
    reply = make(unit, run_id, scheduler.report, node, number, reference)
    if reply.word == "reported" and not run.reported(reference):
        run.put_report(reference, outcome)
    return reply


def answer(
    unit: UnitOfWork[RunT], answers: Sequence[Decision], nonce: str
) -> tuple[list[Receipt], Reply]:
    """Judge a set of answers, and apply all of them or none."""
    runs = {each.interrupt_id: asking(unit, each.interrupt_id) for each in answers}
    names = [(each.interrupt_id, runs[each.interrupt_id]) for each in answers]
    current = [run.question(name) if run else None for name, run in names]

    def winner(interrupt_id: str) -> str:
        run = runs[interrupt_id]
        return run.winner(interrupt_id) if run else ""

    receipts, fresh = receipts_for(answers, current, winner, nonce, unit.clock())
    doorbells: list[Doorbell] = []
    if all(receipt.status is ReceiptStatus.ACCEPTED for receipt in receipts):
        for (run_id, node, number), group in by_visit(fresh).items():
            for each in group:
                run = runs[each.interrupt_id]
                if run is not None:
                    run.decide(each, nonce, unit.clock())
            payloads = {each.interrupt_id: event_payloads.answer(each) for each in group}
            reply = make(
                unit, run_id, scheduler.answer, node, number, list(payloads), payloads=payloads
            )
            doorbells += reply.doorbells
    return receipts, Reply("answered", doorbells)


def use(unit: UnitOfWork[RunT], token: Token, use: Use, saved: Saved) -> Reply:
    """Record what is about to be done by a decision, or has been done, with the checkpoint of that."""
    run = owned(unit, token)
    if run is None:
        return Reply("stale")
    question = run.question(use.interrupt_id)
    if (
        question is None
        or question.status is not InterruptStatus.ANSWERED
        or not use.allowed(question.used)
    ):
        return Reply("spent")
    run.keep(token.node, saved)
    if use.result:
        if "result" not in (question.used or {}):  # not a repeat
            run.note_use(question, {**(question.used or {}), "result": use.result})
            note(unit, run, EventKind.EFFECT_ENDED, use.interrupt_id, event_payloads.effect(use))
    elif question.used is None or question.used["key"] != use.key:
        run.note_use(question, {"key": use.key, "effect": use.effect, "at": unit.clock()})
        data: dict[str, JSON] = {"key": use.key, "effect": use.effect}
        note(unit, run, EventKind.INTERRUPT_USED, use.interrupt_id, data)
    return Reply("used")


def note(
    unit: UnitOfWork[RunT], run: RunT, kind: EventKind, interrupt_id: str, data: JSON
) -> Reply:
    """Add an event of a question that stays open."""
    return make(unit, run.record.run_id, scheduler.note, kind, interrupt_id, payloads={kind: data})


def asking(unit: UnitOfWork[RunT], interrupt_id: str) -> RunT | None:
    """Find the run that asked a question, by the question's id."""
    address = address_of(interrupt_id)
    return unit.find(address.run_id) if address else None


def withdraw(unit: UnitOfWork[RunT], interrupt_id: str, reason: str, *, reask: bool) -> Reply:
    run = asking(unit, interrupt_id)
    question = run.question(interrupt_id) if run else None
    if run is None or question is None:
        return Reply("unknown")
    withdrawal: dict[str, JSON] = {"reason": reason, "reask": reask}
    if question.withdrawal is not None and question.withdrawal.items() >= withdrawal.items():
        return Reply("withdrawn")
    attempt = unit.changes(run).node(question.node_id).attempt
    payloads: dict[str, JSON] = {EventKind.INTERRUPT_WITHDRAWN: withdrawal}
    run_id = run.record.run_id
    reply = make(unit, run_id, scheduler.withdraw, interrupt_id, reask=reask, payloads=payloads)
    if reply.word == "closed":
        return reply
    run.note_withdrawal(interrupt_id, attempt, withdrawal)
    return Reply("withdrawn", reply.doorbells)


def cancel(unit: UnitOfWork[RunT], run_id: str, reason: str, nonce: str) -> Reply:
    run = unit.find(run_id)
    if run is None:
        return Reply("unknown")
    reply = make(unit, run_id, scheduler.cancel, reason)
    if reply.word == "already" and nonce and run.cancelled == nonce:
        return Reply("cancelled")
    if reply.word == "cancelled" and nonce:
        run.cancelled = nonce
    return reply


def expand(unit: UnitOfWork[RunT], token: Token, items: Sequence[JSON] | None) -> Reply:
    run, total = owned(unit, token), None if items is None else len(items)
    reply = visit(unit, token, scheduler.expand, total)
    if items is not None and run is not None and reply.word == "expanded":
        run.put_items(token.node, token.visit, items)
    return reply


def fork(unit: UnitOfWork[RunT], fork: Fork) -> Reply:
    """Start a run from the results of another, with the records that follow from them."""
    start = fork.start
    if unit.find(start.run_id) is not None:
        return Reply("forked", run_id=start.run_id)
    source = unit.find(fork.source)
    if source is None:
        return Reply("unknown")
    fingerprint = start.fingerprint or ""
    if not unit.has_shape(start.graph_id, fingerprint):
        return Reply("unknown_graph")
    if not _as_planned(source, fork):
        return Reply("moved")
    run = _begin(unit, start, fingerprint)
    reply = make(unit, start.run_id, scheduler.fork, fork.records, fork.source)
    run.copy_results(source, fork)
    return Reply(reply.word, reply.doorbells, start.run_id)


def _as_planned(source: StoredRun, fork: Fork) -> bool:
    """Whether a run still has what its fork takes over, as it was read."""
    visits, nodes = all(map(source.has_entry, fork.results)), fork.records.nodes
    memories = all(source.node(node).visit == nodes[node].visit for node in fork.remembers)
    return source.reopened == fork.reopened and visits and memories


def migrate(unit: UnitOfWork[RunT], runs: Sequence[Migration], nonce: str) -> Reply:
    """Continue waiting runs in other shapes: all of them, or none when one has moved since it was read."""
    pairs = [(run, move) for move in runs if (run := unit.find(move.run_id)) is not None]
    if len(pairs) < len(runs):
        return Reply("unknown")
    if all(run.reopened == nonce for run, _ in pairs):
        return Reply("migrated")
    if not all(unit.has_shape(move.graph_id, move.fingerprint) for move in runs):
        return Reply("unknown_graph")
    if any(
        run.record.status not in WAITS or run.last_event() != move.events for run, move in pairs
    ):
        return Reply("moved")
    doorbells: list[Doorbell] = []
    for run, move in pairs:
        run.migrate(move)
        run.reopened = nonce
        data = event_payloads.migration(move)
        questions = move.replacements
        reply = make(unit, move.run_id, scheduler.migrate, move, questions=questions, payloads=data)
        doorbells += reply.doorbells
    return Reply("migrated", doorbells)


def rewrite(unit: UnitOfWork[RunT], runs: Sequence[Rewrite], nonce: str) -> Reply:
    """Reopen ended runs with other records: all of them, or none when one has moved since it was read."""
    pairs = [(run, rewrite) for rewrite in runs if (run := unit.find(rewrite.run_id)) is not None]
    if len(pairs) < len(runs):
        return Reply("unknown")
    if all(run.reopened == nonce for run, _ in pairs):
        return Reply("reopened")
    if any(not run.record.is_final or run.last_event() != rewrite.events for run, rewrite in pairs):
        return Reply("moved")
    doorbells: list[Doorbell] = []
    for run, rewrite in pairs:
        run.erase(rewrite.undone, rewrite.forgets)
        run.reopened = nonce
        doorbells += make(unit, rewrite.run_id, scheduler.reopen, rewrite.records).doorbells
    return Reply("reopened", doorbells)
