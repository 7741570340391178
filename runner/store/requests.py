"""Requests: changes to a store as values, each with a plan that every store shares.

A plan reads and writes runs through a `UnitOfWork`. Each request has a nonce or is idempotent by its state:
repeating it changes nothing. Docstrings list the words that a reply may have. A visit's token is "stale" when
another worker has taken over the node, or the run has gone on without it.
"""

from __future__ import annotations

import base64
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner import scheduler
from runner.approvals.absences import Absence
from runner.approvals.ballots import Use
from runner.approvals.digests import payload_digest
from runner.approvals.grants import GrantRecord
from runner.audit.entries import of_change
from runner.definition.model import Topology
from runner.immutable import immutable
from runner.limits.concurrency import (
    Admission,
    Concurrency,
    Debounce,
    bound_refusal,
    key_of,
    label,
    tag_of,
)
from runner.limits.fairness import window
from runner.limits.limit import check_tags
from runner.limits.setting import LimitPause, LimitSetting
from runner.records import failures
from runner.records.budgets import Spending, Tagged
from runner.records.checkpoints import Saved
from runner.records.codec import JSON
from runner.records.interrupts import (
    Decision,
    Interrupt,
    InterruptStatus,
    ReceiptStatus,
    run_of,
)
from runner.records.migration import Migration
from runner.records.run import SKIPPED, EventKind, Rewrite, RunRecord, Status, VisitEntry
from runner.records.size_limits import MAX_RESULT
from runner.scheduler.changes import Changes, TimerKind, TransitionResult
from runner.store.apply_transition import (
    DELAYED,
    OPEN,
    QUEUED,
    RecoverableRun,
    RecoverableT,
    RunT,
    SharedUnit,
    UnitOfWork,
    admitted,
    answer_payload,
    apply,
    effect_payload,
    error_payload,
    migration_payloads,
    retry_payloads,
    settle_payloads,
)
from runner.store.encoding import pack_copy, replied
from runner.store.interface import (
    Claim,
    Doorbell,
    Fork,
    Reply,
    Request,
    Settlement,
    Start,
    Token,
)
from runner.store.receipts import by_visit, receipts_for

WAITS = frozenset({Status.INTERRUPTED, Status.NEEDS_MIGRATION})
"""The statuses in which a run can be migrated."""

CALLER_MS = 1_000
"""Time in which the caller of `cancel` does each step of a stop; a sweep beside it would conflict."""


def make(
    transaction: UnitOfWork[RunT],
    run_id: str,
    transition: Callable[..., TransitionResult],
    *arguments: object,
    **named: Any,
) -> Reply:
    """Make a transition of a run, and everything that follows from it."""
    return replied(*apply(transaction, run_id, transition, *arguments, **named))


def visit(
    transaction: UnitOfWork[RunT],
    token: Token,
    transition: Callable[..., TransitionResult],
    *arguments: object,
    **named: Any,
) -> Reply:
    """Make a transition of the visit that a worker holds."""
    return make(
        transaction,
        token.run_id,
        transition,
        token.node,
        token.visit,
        token.fence,
        *arguments,
        **named,
    )


def owned(transaction: UnitOfWork[RunT], token: Token) -> RunT | None:
    """Return a visit's run while the worker still owns the visit, otherwise None."""
    run = transaction.find(token.run_id)
    if run is None:
        return None
    owns = scheduler.owns(transaction.changes(run).node(token.node), token.visit, token.fence)
    return run if owns else None


def note(
    transaction: UnitOfWork[RunT], run: RunT, kind: EventKind, interrupt_id: str, data: JSON
) -> Reply:
    """Add an event about a question that stays open."""
    return make(
        transaction,
        run.record.run_id,
        scheduler.note,
        kind,
        interrupt_id,
        payloads={kind: data},
    )


def asking(transaction: UnitOfWork[RunT], interrupt_id: str) -> RunT | None:
    """Find the run that asked a question, by the question's id."""
    run_id = run_of(interrupt_id)
    return transaction.find(run_id) if run_id else None


def new_nonce(worker: str = "") -> str:
    """Make a text that no other request has; for a claim it names the worker after a colon.

    It joins a random prefix of 72 bits and a number, so most nonces need no system call. A forked process
    would repeat both, so it makes a new prefix when it sees that its process id has changed. Threads may do
    so at the same moment; each then counts from its own prefix.
    """
    global _nonces  # noqa: PLW0603 - one for the process
    source = _nonces
    if source[0] != os.getpid():
        source = _nonces = _begin_nonces()
    nonce = f"{source[1]}{next(source[2])}"
    return f"{nonce}:{worker}" if worker else nonce


def _begin_nonces() -> tuple[int, str, Iterator[int]]:
    """Return this process's id, a random prefix of fixed length, and a counter."""
    return (
        os.getpid(),
        base64.urlsafe_b64encode(os.urandom(9)).decode("ascii"),
        itertools.count(),
    )


_nonces = _begin_nonces()


# One visit on a worker


@immutable
class StartRun(Request[Reply]):
    """Begin a run: "started", "exists" (with the key's run), "unknown_graph" or "full".

    A child run also makes its parent's node wait for it. UsageError: a tag is too long for a key.
    """

    verb = "start"
    start: Start

    @property
    def run_id(self) -> str:
        return self.start.run_id

    def plan(self, transaction: SharedUnit[RecoverableT]) -> Reply:
        start = self.start
        fingerprint = start.fingerprint or transaction.current(start.graph_id)
        topology = transaction.shape(start.graph_id, fingerprint) if fingerprint else None
        if topology is None:
            return Reply("unknown_graph")
        if start.idempotency_key and (
            first := transaction.started_by(start.graph_id, start.idempotency_key)
        ):
            return Reply("exists", run_id=first)
        if transaction.find(start.run_id) is not None:
            return Reply("started", run_id=start.run_id)
        doorbells: list[Doorbell] = []
        owner = transaction.find(start.parent.run_id) if start.parent else None
        check_tags(topology.key_tags, owner.tag if owner else tag_of(start.tags))
        if start.parent is None:
            if reply := _turned_away(transaction, start, topology):
                return reply
        else:
            delegated = visit(transaction, start.parent, scheduler.delegate, start.run_id)
            if delegated.word != "delegated":
                return delegated
            doorbells += delegated.doorbells
        _begin(transaction, start, fingerprint)
        if start.parent is None and topology.admission and topology.admission.debounce:
            return _delay(transaction, start, topology.admission)
        if start.parent is None and topology.admission and topology.admission.concurrency:
            return _start_of_key(transaction, start, topology.admission.concurrency)
        started = make(transaction, start.run_id, scheduler.start)
        return Reply(started.word, [*doorbells, *started.doorbells], start.run_id)


def _key_of_run(transaction: UnitOfWork[RunT], run: RunT) -> tuple[str, int] | None:
    """Return the key in which a run takes a place, and its number of places; None if it takes none."""
    record = run.record
    topology = transaction.changes(run).topology
    concurrency = topology.admission.concurrency if topology.admission else None
    if record.parent or concurrency is None or not concurrency.counts(record.status):
        return None
    return key_of(record.graph_id, concurrency.by, run.tag), concurrency.at_most


def _turned_away(
    transaction: SharedUnit[RecoverableT], start: Start, topology: Topology
) -> Reply | None:
    """Return the reply to a start that is refused or joins another run; None if it may begin one."""
    rules = topology.admission
    if rules and rules.debounce and (reply := _debounced(transaction, start, rules)):
        return reply
    when_full = rules.concurrency.when_full if rules and rules.concurrency else "queue"
    if when_full in {"refuse", "skip"} and (
        refusal := _kept_out(transaction, topology, tag_of(start.tags))
    ):
        if when_full == "refuse":
            return refusal
        if start.idempotency_key:
            transaction.note_start(start.graph_id, start.idempotency_key, refusal.run_id)
        return Reply("exists", run_id=refusal.run_id)
    reason = _refused(transaction, topology)
    return Reply("full", detail=reason) if reason else None


def _debounced(
    transaction: SharedUnit[RecoverableT], start: Start, rules: Admission
) -> Reply | None:
    """Give a new start's input to the delayed run of its key; return None if no run is delayed."""
    delayed = DELAYED + key_of(start.graph_id, rules.by, tag_of(start.tags))
    if not transaction.lists.count(delayed, 1) or rules.debounce is None:
        return None
    for run_id in transaction.lists.first(delayed, 1):
        run = transaction.find(run_id)
        if run is not None:
            requester = _joint(run.requester(), start.requester or {})
            if requester is None:
                name = label(rules.by, tag_of(start.tags))
                return Reply("full", detail=OTHER_REQUESTER.format(run_id=run_id, key=name))
            due = rules.debounce.due(run.created_at, transaction.clock())
            make(transaction, run_id, scheduler.put_off, due)
            run.replace_input(replace(start, requester=requester))
            if start.idempotency_key:
                transaction.note_start(start.graph_id, start.idempotency_key, run_id)
            return Reply("exists", run_id=run_id)
        transaction.lists.remove(delayed, run_id)
    return None


OTHER_REQUESTER = (
    "run {run_id} waits for other starts of {key}, and can't have this requester beside its own: "
    "nothing was changed. Start again when it has begun."
)
"""The refusal of a debounced start whose task would be attributed to another requester."""


def _joint(first: Mapping[str, JSON], second: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Combine the requesters of two starts of one run; return None if they can't be stored together.

    A rule that excludes requesters must not miss the person who gave the task. A signature covers one start
    alone, and proves nothing about a start that isn't signed.
    """
    people = _people(first)
    others = _people(second)
    if not people and "body" not in second:
        return second
    more = [name for name in others if name not in people]
    if not others or (more if "body" in second else "body" in first):
        return None
    behalf: Any = first.get("on_behalf_of") or ()
    joint = {**first, "on_behalf_of": [*behalf, *more]} if more else first
    return {**joint, "inherited": True} if second.get("inherited") else joint


def _people(requester: Mapping[str, Any]) -> dict[str, None]:
    names = (requester.get("principal"), *(requester.get("on_behalf_of") or ()))
    return dict.fromkeys(filter(None, names))


def _delay(transaction: UnitOfWork[RunT], start: Start, rules: Admission) -> Reply:
    """Begin a run that waits for other starts of its key."""
    tag = tag_of(start.tags)
    now = transaction.clock()
    transaction.lists.add(DELAYED + key_of(start.graph_id, rules.by, tag), start.run_id)
    debounce = rules.debounce or Debounce(0)
    reason = f"waits for other starts of {label(rules.by, tag)}"
    reply = make(transaction, start.run_id, scheduler.delay, reason, debounce.due(now, now))
    return replace(reply, run_id=start.run_id)


def _kept_out(
    transaction: UnitOfWork[RunT], topology: Topology, tag: Callable[[str], str]
) -> Reply | None:
    """Return the refusal of a run whose key has no free place, with an open run; None if it may begin."""
    concurrency = topology.admission.concurrency if topology.admission else None
    if concurrency is None:
        return None
    opened = OPEN + key_of(topology.graph_id, concurrency.by, tag)
    if (count := transaction.lists.count(opened, concurrency.at_most)) < concurrency.at_most:
        return None
    (other,) = transaction.lists.first(opened, 1) or ("",)
    detail = concurrency.refusal(label(concurrency.by, tag), count, other)
    return Reply("full", run_id=other, detail=detail)


def _start_of_key(
    transaction: UnitOfWork[RunT], start: Start, concurrency: Concurrency
) -> Reply:
    """Begin a run of a key; if the key has no free place, queue the run, and perhaps stop another."""
    lists = transaction.lists
    tag = tag_of(start.tags)
    at_most = concurrency.at_most
    key = key_of(start.graph_id, concurrency.by, tag)
    has_room = lists.count(OPEN + key, at_most) < at_most
    if has_room and not lists.count(QUEUED + key, 1):
        lists.add(OPEN + key, start.run_id)
        return replace(make(transaction, start.run_id, scheduler.start), run_id=start.run_id)
    others = [*lists.first(OPEN + key, at_most), *lists.first(QUEUED + key, at_most)]
    lists.add(QUEUED + key, start.run_id)
    reason = f"waits for {label(concurrency.by, tag)}"
    doorbells = list(make(transaction, start.run_id, scheduler.queue, reason).doorbells)
    if has_room:
        for other in admitted(transaction, key, at_most):
            doorbells += make(transaction, other.record.run_id, scheduler.begin).doorbells
    elif concurrency.when_full == "replace":
        runs = [run for name in others if (run := transaction.find(name)) is not None]
        going = [run.record.run_id for run in runs if not run.record.stopping]
        for name in going[: len(going) - at_most + 1]:
            why = f"replaced by {start.run_id}"
            doorbells += make(transaction, name, scheduler.cancel, why).doorbells
    return Reply("started", doorbells, start.run_id)


def _refused(transaction: SharedUnit[RecoverableT], topology: Topology) -> str:
    """Return why a graph's new run is refused (too many are open); "" if it may begin."""
    declared = topology.admission.max_open_runs if topology.admission else 0
    for graph_id, most in ((topology.graph_id, declared), ("", 0)):
        bound = transaction.bound(graph_id, most)
        if bound is not None and (count := transaction.open_runs(graph_id, bound)) >= bound:
            return bound_refusal(graph_id, count, bound)
    return ""


def _begin(transaction: UnitOfWork[RunT], start: Start, fingerprint: str) -> RunT:
    parent = start.parent
    above = transaction.find(parent.run_id) if parent else None
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
    return transaction.begin(record, start)


@immutable
class ClaimVisit(Request[Claim | Reply]):
    """Claim a ready visit; otherwise "stale", "cancelled", "unknown" or "limited" (it has to wait)."""

    verb = "claim"
    run_id: str
    node: str
    visit: int
    attempt: int
    nonce: str

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        """Take the visit; the store then builds the claim."""
        if transaction.find(self.run_id) is None:
            return Reply("unknown")
        arguments = (self.node, self.visit, self.attempt, self.nonce)
        return make(transaction, self.run_id, scheduler.claim, *arguments)


@immutable
class PassOver(Request[Reply]):
    """Remove the doorbell of a visit that isn't claimed now from the window of its queue: "passed"."""

    verb = "pass"
    run_id: str
    node: str
    visit: int
    attempt: int
    fingerprint: str


@immutable
class VisitRequest(Request[Reply]):
    """A request by the worker that holds a visit."""

    token: Token

    @property
    def run_id(self) -> str:
        return self.token.run_id


@immutable
class SaveCheckpoint(VisitRequest):
    """Checkpoint a running visit: "saved" or "stale"."""

    verb = "save"
    saved: Saved

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        run = owned(transaction, self.token)
        if run is None:
            return Reply("stale")
        run.keep(self.token.node, self.saved)
        return Reply("saved")


@immutable
class AskQuestions(VisitRequest):
    """Publish questions of a running visit at once: "asked", "stopping" or "stale"."""

    verb = "ask"
    interrupts: Sequence[Interrupt]
    saved: Saved | None

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        return self._wait(transaction, scheduler.ask)

    def _wait(
        self, transaction: UnitOfWork[RunT], transition: Callable[..., TransitionResult]
    ) -> Reply:
        run = owned(transaction, self.token)
        if run is not None:
            run.keep(self.token.node, self.saved)
        ids = list(dict.fromkeys(interrupt.id for interrupt in self.interrupts))
        return visit(transaction, self.token, transition, ids, questions=self.interrupts)


@immutable
class ParkVisit(AskQuestions):
    """Make a visit wait for answers: "waiting", "ready", "cancelled", "nothing_open" or "stale".

    With `awaits` one of them is the answer to a question that the named visit asked: see `WakeVisit`.
    """

    verb = "park"
    awaits: str = ""

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        return self._wait(transaction, functools.partial(scheduler.park, awaits=self.awaits))


@immutable
class WakeVisit(Request[Reply]):
    """Continue a visit that awaits the answer to another node's question: "woken" or "stale"."""

    verb = "wake"
    run_id: str
    node: str
    visit: int

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        if transaction.find(self.run_id) is None:
            return Reply("stale")
        return make(transaction, self.run_id, scheduler.wake, self.node, self.visit)


@immutable
class SettleVisit(VisitRequest):
    """End a visit: "settled", "changed" (evaluate conditions again), "locked" (wait), "stale"."""

    verb = "settle"
    settlement: Settlement
    nonce: str

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        token = self.token
        settlement = self.settlement
        run = owned(transaction, token)
        reply = visit(
            transaction,
            token,
            scheduler.settle,
            nonce=self.nonce,
            status=settlement.status,
            edges=settlement.edges,
            reads=settlement.reads,
            insist=settlement.insist,
            effects=[use.interrupt_id for use in settlement.effects],
            skipped="skipped" in settlement.entry,
            payloads=settle_payloads(settlement),
        )
        if run is not None and reply.word == "settled":
            result = (settlement.status, settlement.entry, settlement.output)
            run.leave_result(token.node, token.visit, *result)
            run.keep(token.node, settlement.saved)
            if settlement.session is not None:
                run.remember(token.node, settlement.session)
        return reply


@immutable
class RetryVisit(VisitRequest):
    """Run a visit again later: "retrying", "cancelled" or "stale".

    With an `entry` (the visit's error) the next run is a new attempt. `reason` is given when the node itself
    asked to run later; it then also pauses the key of the named `limit`.
    """

    verb = "retry"
    delay_ms: int
    entry: VisitEntry | None
    saved: Saved | None
    reason: str = ""
    limit: str | None = None

    @property
    def by(self) -> str:
        """The name of the node that pauses the key."""
        return f"node {self.token.node} of run {self.token.run_id}"

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        token = self.token
        entry = self.entry
        run = owned(transaction, token)
        if run is not None:
            self._pause(transaction, transaction.changes(run))
            run.keep(token.node, self.saved)
            if entry is not None:
                run.note_error(token.node, token.visit, entry)
        counts = entry is not None
        payloads = retry_payloads(entry, self.reason)
        return visit(
            transaction, token, scheduler.retry, self.delay_ms, counts=counts, payloads=payloads
        )

    def _pause(self, transaction: UnitOfWork[RunT], changes: Changes) -> None:
        """Pause the key of the limit, unless it is paused for longer."""
        node = self.token.node
        now = changes.now
        until = changes.now + self.delay_ms
        for limit in changes.shape(node).limits:
            key = limit.key(changes.view, node, self.token.visit)
            if limit.name != self.limit or key is None:
                continue
            setting = transaction.limit_setting(limit.name) or LimitSetting(limit.name)
            if setting.v and setting.paused_until(key) < until:
                pause = LimitPause(key, until, self.reason, self.by, now)
                transaction.put_limit_setting(setting.at_time(now).pause(pause), None)


@immutable
class ExpandMap(VisitRequest):
    """Start a map's items, None for its stored ones: "expanded", "cancelled", "no_items", "stale"."""

    verb = "expand"
    items: Sequence[JSON] | None

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        run = owned(transaction, self.token)
        token = self.token
        items = self.items
        reply = visit(
            transaction, token, scheduler.expand, None if items is None else len(items)
        )
        if items is not None and run is not None and reply.word == "expanded":
            run.put_items(token.node, token.visit, items)
        return reply


@immutable
class HoldVisit(VisitRequest):
    """Hold a visit until it is released, or its run is migrated: "held" or "stale".

    An `entry` holds the error that caused it, which also writes a dead letter.
    """

    verb = "hold"
    entry: VisitEntry | None = None

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        token = self.token
        entry = self.entry
        run = owned(transaction, token)
        error = error_payload(entry)
        reply = visit(transaction, token, scheduler.hold, payloads={EventKind.NODE_HELD: error})
        if run is not None and entry is not None and reply.word == "held":
            run.note_error(token.node, token.visit, entry)
            reason = str(failures.load(entry["error"]))
            transaction.write_dead_letter(token.run_id, token.node, token.visit, reason)
        return reply


@immutable
class LeaveVisit(VisitRequest):
    """Ring again for a running visit whose worker shuts down: "left", "cancelled", "dead" or "stale".

    `stalled` is True if the node's code ran and stored nothing new since the claim; the reply is "dead" when
    this has happened too often in a row.
    """

    verb = "leave"
    stalled: bool | None = None

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        return visit(transaction, self.token, scheduler.leave, stalled=self.stalled)


# External tasks: another system works for a node, which waits without a worker. First the node is made to
# wait, then the system is called, then the call is recorded. If any step is lost, the node is rung again and
# calls the system again under the same reference.


@immutable
class HandOver(VisitRequest):
    """Make a visit wait for a result: "handed", "ready" (the result is in), "cancelled" or "stale"."""

    verb = "hand"
    reference: str
    description: str = ""

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        return visit(
            transaction,
            self.token,
            scheduler.hand_over,
            self.reference,
            description=self.description,
        )


@immutable
class ConfirmHandOver(VisitRequest):
    """Record that the system has the task, due in `timeout_ms` (0: no limit): "sent" or "stale"."""

    verb = "sent"
    reference: str
    timeout_ms: int

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        return visit(
            transaction,
            self.token,
            scheduler.confirm_hand_over,
            self.reference,
            timeout_ms=self.timeout_ms,
        )


@immutable
class ReportResult(Request[Reply]):
    """Record an external task's packed result once: "reported" (also a repeat), "stale" or "unknown"."""

    verb = "report"
    run_id: str
    node: str
    visit: int
    reference: str
    outcome: JSON

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        run = transaction.find(self.run_id)
        if run is None:
            return Reply("unknown")
        reply = make(
            transaction, self.run_id, scheduler.report, self.node, self.visit, self.reference
        )
        if reply.word == "reported" and not run.reported(self.reference):
            run.put_report(self.reference, self.outcome)
        return reply


# Questions


@immutable
class AnswerQuestions(Request[Reply]):
    """Apply all answers of a set or none, each of at most `max_bytes`: "answered", with receipts."""

    verb = "answer"
    answers: Sequence[Decision]
    nonce: str
    max_bytes: int = MAX_RESULT

    @property
    def run_id(self) -> str:
        return run_of(self.answers[0].interrupt_id) if self.answers else ""

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        answers = self.answers
        runs = {each.interrupt_id: asking(transaction, each.interrupt_id) for each in answers}
        questions = {name: run.question(name) if run else None for name, run in runs.items()}
        current = [questions[each.interrupt_id] for each in answers]

        def winner(interrupt_id: str) -> str:
            run = runs[interrupt_id]
            return run.winner(interrupt_id) if run else ""

        now = transaction.clock()
        receipts, fresh = receipts_for(
            answers, current, winner, self.nonce, now, max_bytes=self.max_bytes
        )
        doorbells: list[Doorbell] = []
        if all(receipt.status is ReceiptStatus.ACCEPTED for receipt in receipts):
            for (run_id, node, number), group in by_visit(fresh).items():
                for each in group:
                    run = runs[each.interrupt_id]
                    question = questions[each.interrupt_id]
                    if run and question:
                        run.decide(question, each, self.nonce, now)
                payloads = {each.interrupt_id: answer_payload(each) for each in group}
                doorbells += make(
                    transaction,
                    run_id,
                    scheduler.answer,
                    node,
                    number,
                    list(payloads),
                    payloads=payloads,
                ).doorbells
        return Reply("answered", doorbells, receipts=receipts)


@immutable
class UseDecision(VisitRequest):
    """Record that the decision's effect begins or has ended, with the checkpoint that goes with it.

    The reply is "used", "spent" (the decision was used for another effect, or was never made) or "stale".
    """

    verb = "use"
    use: Use
    saved: Saved

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        run = owned(transaction, self.token)
        use = self.use
        if run is None:
            return Reply("stale")
        if use.grant:
            run.keep(self.token.node, self.saved)
            if not use.result:
                data: dict[str, JSON] = {
                    "grant": use.grant,
                    "key": use.key,
                    "effect": use.effect,
                }
                payloads = {EventKind.GRANT_USED: data}
                visit(transaction, self.token, scheduler.granted, use.grant, payloads=payloads)
            return Reply("used")
        question = run.question(use.interrupt_id)
        if (
            question is None
            or question.status is not InterruptStatus.ANSWERED
            or not use.allowed(question.used)
        ):
            return Reply("spent")
        run.keep(self.token.node, self.saved)
        if use.result:
            if "result" not in (question.used or {}):  # not a repeat
                run.note_use(question, {**(question.used or {}), "result": use.result})
                note(
                    transaction,
                    run,
                    EventKind.EFFECT_ENDED,
                    use.interrupt_id,
                    effect_payload(use),
                )
        elif question.used is None or question.used["key"] != use.key:
            data = {"key": use.key, "effect": use.effect}
            note(transaction, run, EventKind.INTERRUPT_USED, use.interrupt_id, data)
            # Last: until the time is known, the decision can't be read again.
            run.note_use(question, {**data, "role": use.role, "at": transaction.clock()})
        return Reply("used")


@immutable
class WithdrawQuestion(Request[Reply]):
    """Withdraw an open question: "withdrawn", "closed" (answered, expired or withdrawn) or "unknown".

    `to` lists the assignees of the question when it is asked again.
    """

    verb = "withdraw"
    interrupt_id: str
    reason: str
    reask: bool
    by: str = ""
    to: Sequence[str] = ()

    @property
    def run_id(self) -> str:
        return run_of(self.interrupt_id)

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        name = self.interrupt_id
        reask = self.reask
        run = asking(transaction, name)
        question = run.question(name) if run else None
        if run is None or question is None:
            return Reply("unknown")
        withdrawal: dict[str, JSON] = {"reason": self.reason, "reask": reask}
        if self.by:
            withdrawal["by"] = self.by
        if self.to:
            withdrawal["to"] = [*self.to]
        if (
            question.withdrawal is not None
            and question.withdrawal.items() >= withdrawal.items()
        ):
            return Reply("withdrawn")
        attempt = transaction.changes(run).node(question.node_id).attempt
        payloads: dict[str, JSON] = {EventKind.INTERRUPT_WITHDRAWN: withdrawal}
        reply = make(
            transaction, self.run_id, scheduler.withdraw, name, reask=reask, payloads=payloads
        )
        if reply.word == "closed":
            return reply
        run.note_withdrawal(name, attempt, withdrawal)
        return Reply("withdrawn", reply.doorbells)


# Operations of people on runs


@immutable
class CancelRun(Request[Reply]):
    """Stop a run: "cancelled" (detail "active" until it has ended), "already" (it stops) or "unknown"."""

    verb = "cancel"
    run_id: str
    reason: str
    nonce: str = ""

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        run = transaction.find(self.run_id)
        if run is None:
            return Reply("unknown")
        reply = make(transaction, self.run_id, scheduler.cancel, self.reason, CALLER_MS)
        if reply.word == "already" and self.nonce and run.cancelled == self.nonce:
            return Reply("cancelled")
        if reply.word == "cancelled":
            run.cancelled = self.nonce
            return replace(reply, detail="" if run.record.is_final else "active")
        return reply


@immutable
class DrainRun(Request[Reply]):
    """Cancel a stopping run's idle nodes before its timer: "after" (`detail`, more follow) or "drained"."""

    verb = "drain"
    run_id: str
    last_node: str

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        transaction.drop_timer(TimerKind.DRAIN, self.run_id, self.last_node)
        return make(transaction, self.run_id, scheduler.drain, self.last_node, CALLER_MS)


@immutable
class ForkRun(Request[Reply]):
    """Begin a run from the results of a source run: "forked", "unknown" (no source) or "unknown_graph".

    "full" as for a start. "moved" when the source was retried or migrated since it was read, or a node whose
    memory the fork takes over has begun another visit.
    """

    verb = "fork"
    fork: Fork

    @property
    def run_id(self) -> str:
        return self.fork.source

    def plan(self, transaction: SharedUnit[RecoverableT]) -> Reply:
        fork = self.fork
        start = self.fork.start
        if transaction.find(start.run_id) is not None:
            return Reply("forked", run_id=start.run_id)
        source = transaction.find(fork.source)
        if source is None:
            return Reply("unknown")
        fingerprint = start.fingerprint or ""
        topology = transaction.shape(start.graph_id, fingerprint)
        if topology is None:
            return Reply("unknown_graph")
        check_tags(topology.key_tags, tag_of(start.tags))
        if reply := _kept_out(transaction, topology, tag_of(start.tags)):
            return reply
        if reason := _refused(transaction, topology):
            return Reply("full", detail=reason)
        if not _as_planned(source, fork):
            return Reply("moved")
        run = _begin(transaction, start, fingerprint)
        if topology.admission and (concurrency := topology.admission.concurrency):
            key = key_of(start.graph_id, concurrency.by, tag_of(start.tags))
            transaction.lists.add(OPEN + key, start.run_id)
        reply = make(transaction, start.run_id, scheduler.fork, fork.records, fork.source)
        run.copy_results(source, fork)
        return Reply(reply.word, reply.doorbells, start.run_id)


def _as_planned(source: RecoverableRun, fork: Fork) -> bool:
    """Return whether a run still has the results and memories that its fork was planned from."""
    visits = all(map(source.has_entry, fork.results))
    nodes = fork.records.nodes
    memories = all(source.node(node).visit == nodes[node].visit for node in fork.remembers)
    return source.reopened == fork.reopened and visits and memories


@immutable
class MigrateRuns(Request[Reply]):
    """Move waiting runs to other shapes, a parent before its children: all or none.

    "migrated", "moved" (a run has changed since it was read, or isn't waiting), "unknown" or
    "unknown_graph".
    """

    verb = "migrate"
    runs: Sequence[Migration]
    nonce: str

    @property
    def run_id(self) -> str:
        return self.runs[0].run_id

    def plan(self, transaction: SharedUnit[RecoverableT]) -> Reply:
        runs = self.runs
        nonce = self.nonce
        pairs = [
            (run, move) for move in runs if (run := transaction.find(move.run_id)) is not None
        ]
        if len(pairs) < len(runs):
            return Reply("unknown")
        if all(run.reopened == nonce for run, _ in pairs):
            return Reply("migrated")
        if not all(transaction.shape(move.graph_id, move.fingerprint) for move in runs):
            return Reply("unknown_graph")
        if any(
            run.record.status not in WAITS or run.last_event() != move.events
            for run, move in pairs
        ):
            return Reply("moved")
        doorbells: list[Doorbell] = []
        for run, move in pairs:
            old_key = _key_of_run(transaction, run)
            run.migrate(move)
            key = _key_of_run(transaction, run)
            if (old_key and old_key[0]) != (key and key[0]):
                if old_key:
                    doorbells += make(
                        transaction, move.run_id, scheduler.leave_key, *old_key
                    ).doorbells
                if key:
                    transaction.lists.add(OPEN + key[0], move.run_id)
            run.reopened = nonce
            doorbells += make(
                transaction,
                move.run_id,
                scheduler.migrate,
                move,
                questions=move.replacements,
                payloads=migration_payloads(move),
            ).doorbells
        return Reply("migrated", doorbells)


@immutable
class RewriteRuns(Request[Reply]):
    """Reopen ended runs, a parent before its children: all ("reopened") or none.

    None are reopened with "moved", "unknown" or "full". `by` is the principal who asks for it.
    """

    verb = "rewrite"
    runs: Sequence[Rewrite]
    nonce: str
    by: str = ""

    @property
    def run_id(self) -> str:
        return self.runs[0].run_id

    def plan(self, transaction: SharedUnit[RecoverableT]) -> Reply:
        runs = self.runs
        nonce = self.nonce
        pairs = [
            (run, rewrite) for rewrite in runs if (run := transaction.find(rewrite.run_id))
        ]
        if len(pairs) < len(runs):
            return Reply("unknown")
        if all(run.reopened == nonce for run, _ in pairs):
            return Reply("reopened")
        if any(
            not run.record.is_final or run.last_event() != rewrite.events
            for run, rewrite in pairs
        ):
            return Reply("moved")
        outermost = pairs[0][0]
        topology = transaction.changes(outermost).topology
        if not outermost.record.parent and (
            reply := _kept_out(transaction, topology, outermost.tag)
        ):
            return reply
        doorbells: list[Doorbell] = []
        for run, rewrite in pairs:
            run.erase(rewrite.undone, rewrite.forgets)
            run.reopened = nonce
            doorbells += make(
                transaction, rewrite.run_id, scheduler.reopen, rewrite.records, self.by
            ).doorbells
        return Reply("reopened", doorbells)


@immutable
class ReleaseNodes(Request[Reply]):
    """Make held nodes ready again: "released", or "stale" when none is held, except by an operator."""

    verb = "release"
    run_id: str
    nodes: Sequence[str]

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        return make(transaction, self.run_id, scheduler.release, self.nodes)


@immutable
class Intervene(Request[Reply]):
    """Hold a node, release it, or let it end with an output, by the kind of the event.

    "done", or "repeated" if that is so already; "stale" without the run, or why it is refused.
    """

    verb = "intervene"
    run_id: str
    node: str
    kind: EventKind
    by: str
    reason: str = ""
    outputs: Sequence[JSON] = ()

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        data = {self.kind: {"by": self.by, "reason": self.reason}}
        report = [self.by, *self.outputs]
        reference = SKIPPED + payload_digest(report) if self.outputs else ""
        run = transaction.find(self.run_id)
        arguments = (self.node, self.kind, self.by, reference)
        reply = make(transaction, self.run_id, scheduler.intervene, *arguments, payloads=data)
        if (
            run is not None
            and reference
            and reply.word == "done"
            and not run.reported(reference)
        ):
            run.put_report(reference, report)
        return reply


@immutable
class RemoveRun(Request[Reply]):
    """Remove an ended run before it expires: "removed", "goes_on", "inside" (another run) or "unknown".

    The run and its idempotency key are removed at once, the runs inside it by the next sweeps.
    """

    verb = "remove"
    run_id: str


@immutable
class ReportEnd(Request[Reply]):
    """Record that the callback for a run's end was called: "end_reported" or "stale"."""

    verb = "end_reported"
    run_id: str
    end: int

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        return make(transaction, self.run_id, scheduler.end_reported, self.end)


@immutable
class FreezeScope(Request[Reply]):
    """Stop the effects in a scope: "frozen" or "already". See runner/approvals/freezes.py."""

    verb = "freeze"
    run_id = ""
    scope: str
    reason: str
    by: str


@immutable
class ThawScope(FreezeScope):
    """End a freeze: "thawed", or "unknown" if nothing is frozen."""

    verb = "thaw"


@immutable
class ChangeGrant(Request[Reply]):
    """Make or change a grant: "changed" or "same". `change` depends on the stored record alone.

    `event` is the audit entry's type, `by` the person who acts; `drop` lists long-ended grants to delete.
    See runner/approvals/granting.py.
    """

    verb = "grant"
    run_id = ""
    grant_id: str
    change: Callable[[GrantRecord | None], GrantRecord | None]
    event: str
    by: str
    reason: str = ""
    drop: Sequence[str] = ()


@immutable
class ChangeAbsence(Request[Reply]):
    """Store that a person is away, or with None is back: "changed", or "unknown" if they weren't away.

    `by` is the person who reports it.
    """

    verb = "absence"
    run_id = ""
    who: str
    absence: Absence | None
    by: str


@immutable
class UseGrant(Request[Reply]):
    """Count one use of a grant: "used", "spent", or "over" if the grant no longer applies.

    `digest` is the digest of the grant as it was judged. `key` is the effect's key: a repeat is counted once.
    `amounts` are added to its sums, as decimal numbers.
    """

    verb = "use_grant"
    run_id = ""
    grant_id: str
    digest: str
    key: str
    amounts: Mapping[str, str]
    effect: str
    about_run: str
    node: str


@immutable
class ShareSlots(Request[Reply]):
    """Size the windows of queues that keys share, by the slots that serve each queue: "sized"."""

    verb = "windows"
    run_id = ""
    slots: Mapping[str, int]
    partitions: int = 1

    def plan(self, transaction: SharedUnit[RecoverableT]) -> Reply:
        for queue, slots in self.slots.items():
            transaction.size_window(queue, window(slots, self.partitions))
        return Reply("sized")


@immutable
class ChangeLimit(Request[Reply]):
    """Replace a limit's setting: "changed", or "relaxed" if nodes may start now.

    It writes an audit entry unless `event` is "", as when graphs have changed, or when the setting is copied
    from another partition. The result of `change` depends on the setting alone, so a repeat changes nothing.
    """

    verb = "limit"
    run_id = ""
    name: str
    change: Callable[[LimitSetting], LimitSetting]
    event: str
    scope: str

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        before = transaction.limit_setting(self.name)
        readable = before if before and before.v else LimitSetting(self.name)
        after = self.change(readable)
        if after == readable and not self.event:
            return Reply("changed")
        if after != before:
            entry = of_change(
                self.event, self.scope, after.reason, after.by, transaction.clock()
            )
            audited = entry if self.event and transaction.audits != "off" else None
            transaction.put_limit_setting(after, audited)
        return Reply("changed" if len(after.pauses) > len(readable.pauses) else "relaxed")


@immutable
class EmitEvent(Request[None]):
    """Add an event to a run; do nothing if the run is gone."""

    verb = "emit"
    run_id: str
    kind: str
    node: str
    visit: int
    data: JSON

    def plan(self, transaction: UnitOfWork[RunT]) -> None:
        run = transaction.find(self.run_id)
        if run is not None:
            transaction.event(run, self.kind, self.node, self.visit, data=pack_copy(self.data))


@immutable
class OpenRaise(Request[str]):
    """Let a visit ask to raise a sum's bound, or wait: see `open_raise` in records/budgets.py."""

    verb = "open_raise"
    run_id: str
    tagged: Tagged | None
    counter: str
    visit: str
    instead_of: str = ""


@immutable
class CloseRaise(Request[list[str]]):
    """End a visit's request to raise a sum's bound; return the visits that waited for it."""

    verb = "close_raise"
    run_id: str
    tagged: Tagged | None
    counter: str
    visit: str
    refusal: str = ""


@immutable
class SpendBudget(Request[str]):
    """Add to a sum; return "", or the counter whose bound is reached, in which case nothing is added.

    Without `tagged` the sum belongs to the outermost run. A run that is gone has no sum: "".
    """

    verb = "spend"
    run_id: str
    tagged: Tagged | None
    spending: Spending
