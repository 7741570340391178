"""Application of a transition and its consequences: events, timers, parent and child runs.

It is the same for every store: a `UnitOfWork` holds the runs during one atomic step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, Self, TypeVar

from runner import scheduler
from runner.approvals import ballots
from runner.approvals.ballots import Standing, Use
from runner.approvals.calendars import escalates_at
from runner.approvals.rules import Rule
from runner.audit import entries as audit_entries
from runner.audit.entries import Mode
from runner.definition.model import Topology
from runner.errors import CorruptDocument, DamagedRun
from runner.limits.concurrency import label
from runner.limits.setting import LimitSetting
from runner.limits.slots import LimitAction
from runner.records import codec, interrupts
from runner.records.checkpoints import Saved, SessionUpdate
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.interrupts import Decision, Interrupt
from runner.records.migration import Migration
from runner.records.run import OF_VOTES, EventKind, RunRecord, Status, VisitEntry, VisitKey
from runner.records.size_limits import WIDEST
from runner.scheduler.changes import (
    Action,
    AddEvent,
    Changes,
    CloseQuestion,
    Dispatch,
    DropTimer,
    EndExpired,
    EnterKey,
    JoinKey,
    LeaveKey,
    NotifyParent,
    SetTimer,
    StopChild,
    TimerKind,
    TransitionResult,
    View,
    WriteDeadLetter,
)
from runner.store.interface import Doorbell, Fork, Settlement, Start

OPEN, QUEUED, DELAYED = "key:o:", "key:q:", "key:d:"
"""Prefixes of the lists of a key's runs: open runs, queued runs, and the run that is debounced."""

OF_INTERRUPTS = "interrupt."
"""Prefix of the kinds of events whose detail is a question's id."""

OF_QUESTIONS = frozenset(
    {
        EventKind.INTERRUPT_WITHDRAWN,
        EventKind.INTERRUPT_EXPIRED,
        EventKind.INTERRUPT_REMINDED,
        *OF_VOTES,
    }
)
"""Events whose data are found by kind, although their detail is a question's id."""


CRASHED: Final[JSONObject] = {
    "type": "runner.errors:NodeFailed",
    "message": "the worker process died five times in a row while it ran this node; "
    "see `runner dead list`, fix the node and start the run again.",
    "bases": ["runner.errors:RunnerError", "builtins:Exception", "builtins:BaseException"],
}
"""The error of a node that used up its crash budget."""

RELEASED: Final[JSONObject] = {
    **CRASHED,
    "message": "ten workers in a row were stopped while they ran this node, and released it before it had "
    "stored anything new; set RUNNER_SHUTDOWN_GRACE and the time of the process manager above that of the "
    "node, then retry the run.",
}
"""The error of a node that was released too often."""


class StoredRun(View, Protocol):
    """One stored run: a view for transitions, and methods that change it."""

    record: RunRecord
    cancelled: str

    @property
    def created_at(self) -> int:
        """The time at which the run was started, in ms."""

    @property
    def audited(self) -> int:
        """The number of the run's entries in the audit."""

    def audit(self, entry: JSONObject) -> None:
        """Append the run's next entry to the audit."""

    def write(self, result: TransitionResult) -> None:
        """Write the records that a transition changed."""

    def end(self, now: int) -> None:
        """Note when the run ended."""

    def open(self, question: Interrupt) -> None:
        """Write a question; its event comes next."""

    def close(self, interrupt_id: str, status: str, now: int) -> None:
        """Write a question's final status."""

    def remind(self, interrupt_id: str) -> int:
        """Count a reminder, and return the count."""

    def leave_result(
        self, node: str, visit: int, status: Status, entry: VisitEntry, output: JSON
    ) -> None:
        """Write the result of an ended visit; the output counts only if it completed."""

    def note_error(self, node: str, visit: int, entry: VisitEntry) -> None:
        """Write the error of a visit that will be tried again."""

    def keep(self, node: str, checkpoint: Saved | None) -> None:
        """Write a node's checkpoint.

        Raises:
            PayloadTooLarge: the run has no room for it.
        """

    def remember(self, node: str, session: SessionUpdate) -> None:
        """Add the messages of a visit to a session."""

    def put_report(self, reference: str, outcome: JSON) -> None:
        """Write the outcome of an external task."""

    def put_items(self, node: str, visit: int, items: Sequence[JSON]) -> None:
        """Write the items of a map once; a store that already has them counts their bytes."""

    def winner(self, interrupt_id: str) -> str:
        """Return the nonce of the request that answered a question, or ""."""

    def decide(self, question: Interrupt, answer: Decision, nonce: str, now: int) -> None:
        """Write the answer to an open question."""

    def requester(self) -> JSONMapping:
        """Return who asked for the run's root, as in `Start`; empty if it isn't known."""

    def standing(self, interrupt_id: str) -> Standing:
        """Return the standing of a question's votes."""

    def put_standing(self, interrupt_id: str, standing: Standing) -> None:
        """Write the standing of a question's votes."""

    def voter(self, interrupt_id: str, principal: str) -> JSONMapping:
        """Return the record of one person's part in a question; empty without one."""

    def put_voter(self, interrupt_id: str, principal: str, participation: JSONMapping) -> None:
        """Write one person's part in a question; an empty part clears it."""

    def vote(self, interrupt_id: str, number: int) -> JSONMapping:
        """Return the vote with a number; empty if it is gone."""

    def put_vote(self, interrupt_id: str, number: int, vote: JSONMapping | None) -> None:
        """Write a vote under its number, or delete it."""

    def assign(self, interrupt_id: str, person: str) -> None:
        """Also list an open question among a person's assigned questions."""

    def note_use(self, question: Interrupt, use_document: JSONMapping) -> None:
        """Write the use of a question's decision."""

    def note_withdrawal(self, interrupt_id: str, attempt: int, withdrawal: JSONMapping) -> None:
        """Write why an operator withdrew a question, and at which attempt of its node."""


class RecoverableRun(StoredRun, Protocol):
    """A stored run that can also be retried, forked, migrated and debounced."""

    reopened: str

    def replace_input(self, start: Start) -> None:
        """Write the task, invocation state and requester of another start."""

    def last_event(self) -> int:
        """Return the number of the run's last event."""

    def erase(self, undone: Mapping[VisitKey, VisitEntry], forgets: Iterable[str]) -> None:
        """Remove results that no longer count, and data that new records will replace."""

    def has_entry(self, visit: VisitKey) -> bool:
        """Return whether a visit has left an entry."""

    def copy_results(self, source: Self, fork: Fork) -> None:
        """Copy results and documents from the run that this run forks."""

    def migrate(self, move: Migration) -> None:
        """Take another shape, and move results and questions to the names of its nodes."""


RunT = TypeVar("RunT", bound=StoredRun)
RecoverableT = TypeVar("RecoverableT", bound=RecoverableRun)


class RunLists(Protocol):
    """Lists of runs, each in the order in which they were added."""

    def count(self, name: str, bound: int) -> int:
        """Count a list's runs; a count below the bound still holds when the step is written."""

    def first(self, name: str, most: int) -> Sequence[str]:
        """Return the first runs of a list."""

    def add(self, name: str, run_id: str) -> None:
        """Add a run at the end of a list."""

    def remove(self, name: str, run_id: str) -> None:
        """Remove a run from a list, if it is there."""


class UnitOfWork(Protocol[RunT]):
    """All runs of a store and their shared data, during one atomic step."""

    audits: Mode

    @property
    def lists(self) -> RunLists:
        """The lists of keys' runs."""

    def clock(self) -> int:
        """Return the time of the step, in ms."""

    def current(self, graph_id: str) -> str:
        """Return the fingerprint of a graph's last published form, or ""."""

    def shape(self, graph_id: str, fingerprint: str) -> Topology | None:
        """Return a graph's shape for a new run; None if it isn't known."""

    def bound(self, graph_id: str, declared: int) -> int | None:
        """Return how many runs of a graph (of all graphs if "") may be open here; None for any number."""

    def started_by(self, graph_id: str, key: str) -> str:
        """Return the id of the run that was started with an idempotency key, or ""."""

    def begin(self, record: RunRecord, start: Start) -> RunT:
        """Write a new run, which has no nodes yet."""

    def find(self, run_id: str) -> RunT | None:
        """Return a run; None if it never existed or is gone."""

    def changes(self, run: RunT) -> Changes:
        """Begin a transition of a run."""

    def set_timer(self, kind: TimerKind, run_id: str, key: str, due: int) -> None:
        """Set a timer to a time of the clock, in ms."""

    def drop_timer(self, kind: TimerKind, run_id: str, key: str) -> None:
        """Delete a timer, if it exists."""

    def event(
        self,
        run: RunT,
        kind: str,
        node: str,
        visit: int,
        *,
        detail: str = "",
        data: JSON = None,
    ) -> None:
        """Add an event to a run, to its root if it is inside one, and to the notices if its kind is one."""

    def write_dead_letter(self, run_id: str, node: str, visit: int, reason: str) -> None:
        """Write why a node is given up."""

    def signature_count(self, passkey: str) -> int:
        """Return a passkey's signature count at its last use; 0 if it was never used."""

    def put_signature_count(self, passkey: str, count: int) -> None:
        """Write a passkey's signature count."""

    def limit_setting(self, name: str) -> LimitSetting | None:
        """Return a limit's setting, if any."""

    def put_limit_setting(self, setting: LimitSetting, entry: JSONObject | None) -> None:
        """Write a limit's setting, or delete it if it was reset; add an audit entry, if any."""

    def limit(self, run_id: str, action: LimitAction) -> Sequence[tuple[str, str]]:
        """Apply an action of a limit; return each (run, node) that now gets a slot."""


class SharedUnit(UnitOfWork[RecoverableT], Protocol[RecoverableT]):
    """A unit of work of a store for many runs."""

    def note_start(self, graph_id: str, key: str, run_id: str) -> None:
        """Note that a start with an idempotency key returned an existing run."""

    def open_runs(self, graph_id: str, bound: int) -> int:
        """Count a graph's open outermost runs, or all graphs' if the name is "".

        A count below the bound still holds when the step is written.
        """

    def size_window(self, queue: str, size: int) -> None:
        """Write how many doorbells of each priority are rung at a time on a queue that keys share."""


def apply(
    transaction: UnitOfWork[RunT],
    run_id: str,
    transition: Callable[..., TransitionResult],
    *arguments: object,
    questions: Sequence[Interrupt] = (),
    payloads: JSONMapping | None = None,
    **options: object,
) -> tuple[str, list[Doorbell]]:
    """Apply a transition, and then the transitions of parent and child runs that follow from it.

    `questions` lists the questions that it may ask; `payloads` has the data of events, by the event's kind or
    the question's id.
    """
    run = transaction.find(run_id)
    if run is None:
        return "stale", []
    by_id = {question.id: question for question in questions}
    data = dict(
        payloads
        or {interrupt_id: question_payload(by_id[interrupt_id]) for interrupt_id in by_id}
    )
    doorbells: list[Doorbell] = []
    result = transition(transaction.changes(run), *arguments, **options)
    actions = deque(_write(run, result))
    while actions:
        owner, action = actions.popleft()
        record = owner.record
        run_id = owner.record.run_id
        match action:
            case Dispatch():
                visit = (run_id, action.node, action.visit, action.attempt)
                bell = (*visit, action.queue, action.priority, record.graph_id, action.share)
                doorbells.append(Doorbell(*bell))
            case SetTimer():
                transaction.set_timer(action.kind, run_id, action.key, action.due)
            case DropTimer():
                transaction.drop_timer(action.kind, run_id, action.key)
            case AddEvent():
                _add_event(transaction, owner, action, by_id, data)
            case CloseQuestion():
                owner.close(action.interrupt_id, action.status, transaction.clock())
            case EndExpired():
                data |= _end_expired(owner, action)
            case WriteDeadLetter():
                error = RELEASED if action.released else CRASHED
                owner.leave_result(
                    action.node, action.visit, Status.FAILED, {"error": error}, None
                )
                transaction.write_dead_letter(
                    run_id, action.node, action.visit, error["message"]
                )
                data[EventKind.NODE_FAILED] = error_payload({"error": error})
            case _:
                for affected_run, following in _follow(transaction, owner, action):
                    actions += _write(affected_run, following)
    return result.reply, doorbells


def _follow(
    transaction: UnitOfWork[RunT],
    run: RunT,
    action: NotifyParent | StopChild | JoinKey | LeaveKey | EnterKey | LimitAction,
) -> Iterator[tuple[RunT, TransitionResult]]:
    """Make the transitions of other runs that follow from an action."""
    record = run.record
    match action:
        case StopChild():
            child = transaction.find(action.run_id)
            if child is not None:
                yield (
                    child,
                    scheduler.cancel(transaction.changes(child), "its parent run stops"),
                )
        case NotifyParent():
            parent = transaction.find(record.parent)
            status = Status(action.status)
            if parent is not None:
                changes = transaction.changes(parent)
                node = record.parent_node
                yield parent, scheduler.child_changed(changes, node, record.run_id, status)
        case JoinKey():
            transaction.lists.add(OPEN + action.key, record.run_id)
        case LeaveKey():
            for name in (OPEN, QUEUED) if action.at_most else (DELAYED,):
                transaction.lists.remove(name + action.key, record.run_id)
            for other in admitted(transaction, action.key, action.at_most):
                yield other, scheduler.begin(transaction.changes(other))
        case EnterKey():
            yield run, _enter(transaction, run, action)
            for other in admitted(transaction, action.key, action.at_most):
                yield other, scheduler.begin(transaction.changes(other))
        case _:
            for other_id, node in transaction.limit(record.run_id, action):
                affected_run = transaction.find(other_id)
                if affected_run is not None:
                    yield (
                        affected_run,
                        scheduler.offer_slot(transaction.changes(affected_run), node),
                    )


def _enter(transaction: UnitOfWork[RunT], run: RunT, action: EnterKey) -> TransitionResult:
    """Begin a run whose debounce is over, or queue it behind other runs of its key."""
    lists = transaction.lists
    run_id = run.record.run_id
    changes = transaction.changes(run)
    lists.remove(DELAYED + action.key, run_id)
    opened = OPEN + action.key
    queued = QUEUED + action.key
    at_most = action.at_most
    if at_most and (lists.count(opened, at_most) >= at_most or lists.count(queued, 1)):
        lists.add(queued, run_id)
        by = changes.topology.admission.by if changes.topology.admission else ""
        return scheduler.requeue(changes, f"waits for {label(by, run.tag)}")
    if at_most:
        lists.add(opened, run_id)
    return scheduler.begin(changes)


def admitted(transaction: UnitOfWork[RunT], key: str, at_most: int) -> Iterator[RunT]:
    """Find the runs of a key that begin now: one, or two if its bound was raised."""
    lists = transaction.lists
    opened = OPEN + key
    queued = QUEUED + key
    begun = 0
    while (
        begun < min(at_most, 2)
        and lists.count(queued, 1)
        and lists.count(opened, at_most) < at_most
    ):
        first = lists.first(queued, 1)
        if not first:
            return  # the list has not been read yet
        lists.remove(queued, *first)
        try:
            run = transaction.find(*first)
        except DamagedRun:
            continue  # it can't begin, and must not hold up the end of another run
        # The queue may have been read before the run, which may have been cancelled since.
        if run is not None and run.record.is_queued:
            begun += 1
            lists.add(opened, *first)
            yield run


def _write(run: RunT, result: TransitionResult) -> list[tuple[RunT, Action]]:
    run.write(result)
    return [(run, action) for action in result.actions]


def _add_event(
    transaction: UnitOfWork[RunT],
    run: RunT,
    action: AddEvent,
    questions: Mapping[str, Interrupt],
    payloads: JSONObject,
) -> None:
    kind = action.kind
    if kind is EventKind.INTERRUPT_ASKED:
        _open(transaction, run, questions[action.detail])
    if kind is EventKind.INTERRUPT_REMINDED:
        payloads[kind] = {"count": run.remind(action.detail)}
    if kind is EventKind.INTERRUPT_ANSWERED and action.detail not in payloads:
        payloads[action.detail] = _decide(run, action.detail)
    if kind is EventKind.INTERRUPT_ESCALATED:
        payloads[kind] = _escalated(run, action.detail, transaction.clock())
    if kind is EventKind.RUN_ENDED:
        run.end(transaction.clock())
    data = (
        {"worker": action.worker}
        if action.worker
        else payloads.get(kind)
        if kind in OF_QUESTIONS
        else payloads.get(action.detail, payloads.get(kind))
    )
    transaction.event(run, kind, action.node, action.visit, detail=action.detail, data=data)
    if transaction.audits != "off" and kind in audit_entries.TYPES:
        _audit(transaction, run, action, new_question=questions.get(action.detail), data=data)


def _audit(
    transaction: UnitOfWork[RunT],
    run: RunT,
    action: AddEvent,
    *,
    new_question: Interrupt | None,
    data: JSON,
) -> None:
    """Append an entry to the audit for an event, if its run is audited.

    A run is audited from its first question with a rule, or from its start. An entry shows its question after
    all earlier writes of the step; `new_question` is a question that is asked now. A run that stops because
    a node failed gets its entry at its end.
    """
    if action.kind is EventKind.RUN_STOPPING and run.record.stopping != Status.CANCELLED:
        return
    type_ = audit_entries.TYPES[action.kind]
    if not run.audited:
        has_rule = (
            action.kind is EventKind.INTERRUPT_ASKED
            and new_question is not None
            and new_question.rule is not None
        )
        if transaction.audits != "all" and not has_rule:
            return
        begun = transaction.clock() if type_ == audit_entries.STARTED else run.created_at
        run.audit(audit_entries.started(run.record, begun, run.requester()))
        if type_ == audit_entries.STARTED:
            return
    try:
        question = (
            run.question(action.detail) if action.kind.startswith(OF_INTERRUPTS) else None
        )
    except CorruptDocument:
        if action.kind is not EventKind.INTERRUPT_WITHDRAWN:
            raise
        # A damaged question must not block its run's cancellation: the entry has its id without digests.
        question = Interrupt(action.detail, "")
    shown = (audit_entries.SHOWN,) if isinstance(data, dict) and data.get("shown_at") else ()
    for entry_type in (*shown, type_):
        entry = audit_entries.of_event(
            entry_type,
            run.record,
            action.node,
            action.visit,
            at=transaction.clock(),
            detail=action.detail,
            data=data,
            question=question,
        )
        run.audit(entry)


def _open(transaction: UnitOfWork[RunT], run: RunT, question: Interrupt) -> None:
    new_question = replace(question, asked_at=transaction.clock(), reminded=0)
    if new_question.rule is not None:
        new_question = _placed(run, new_question)
    run.open(new_question)
    set_timers(transaction, run, new_question)


def set_timers(transaction: UnitOfWork[RunT], run: RunT, question: Interrupt) -> None:
    """Set the timers of a question that is open from now on: its expiry, next escalation and reminder."""
    escalation = 0
    if steps := question.escalates_at:
        escalation = next(iter(steps[run.standing(question.id).escalated :]), 0)
    for kind, due in (
        (TimerKind.EXPIRE, question.ends_at),
        (TimerKind.ESCALATE, escalation),
        (TimerKind.REMIND, interrupts.next_reminder(question, transaction.clock())),
    ):
        if due:
            transaction.set_timer(kind, run.record.run_id, question.id, due)


def _decide(run: StoredRun, interrupt_id: str) -> JSON:
    """Write the pending decision of a question as its answer; return the event's data."""
    question = run.question(interrupt_id)
    standing = run.standing(interrupt_id)
    if question is None or standing.pending is None:
        raise AssertionError(f"{interrupt_id} has no decision that is pending")
    # The deciding vote was in time, whenever a sweep comes.
    pending = standing.pending
    run.decide(replace(question, expires_in=None), pending.answer, pending.nonce, pending.at)
    run.put_standing(interrupt_id, replace(standing, pending=None))
    return answer_payload(pending.answer)


def _escalated(run: StoredRun, interrupt_id: str, now: int) -> JSON:
    """Count the due steps of a question's escalation; return the event's data."""
    question = run.question(interrupt_id)
    if question is None:
        raise AssertionError(f"{interrupt_id} escalates, and was never asked")
    step = sum(moment <= now for moment in question.escalates_at)
    run.put_standing(interrupt_id, replace(run.standing(interrupt_id), escalated=step))
    return {"step": step, "selectors": ballots.escalated(question, now)}


def _placed(run: StoredRun, question: Interrupt) -> Interrupt:
    """Add the data that only the store knows to a question with a rule, and compute its digest."""
    escalates = escalates_at(Rule.thawed(question.rule or {}), question.asked_at)
    _forget_votes(run, question.id)
    requester = run.requester()
    full_question = replace(
        question,
        place=run.record.place,
        escalates_at=escalates,
        requester=requester.get("principal", ""),
        on_behalf_of=[*requester.get("on_behalf_of", ())],
    )
    return replace(full_question, digest=interrupts.digest(full_question))


JTI = "jti:"
"""Prefix of a vote's `jti`, which is stored among the voters; a voter's name begins with a kind."""


def _forget_votes(run: StoredRun, interrupt_id: str) -> None:
    """Drop the votes on a question that is asked again under its old id, since a node has its old name."""
    standing = run.standing(interrupt_id)
    for number in range(1, standing.votes + 1):
        vote = run.vote(interrupt_id, number)
        if vote:
            run.put_voter(interrupt_id, vote["by"], {})
            if jti := vote["body"].get("proof", {}).get("jti"):
                run.put_voter(interrupt_id, f"{JTI}{jti}", {})
            run.put_vote(interrupt_id, number, None)
    if standing != Standing():
        run.put_standing(interrupt_id, Standing())


def _end_expired(run: StoredRun, action: EndExpired) -> JSONObject:
    """Write the result of a node whose question expired; return the data of its event, by kind."""
    question = run.question(action.interrupt_id)
    if question is None:
        raise AssertionError(f"{action.interrupt_id} expired, and was never asked")
    entry = interrupts.expired_entry(question, action.edges)
    has_route = bool(interrupts.route(question))
    output = interrupts.expired_output(question) if has_route else None
    status = Status.COMPLETED if has_route else Status.FAILED
    run.leave_result(action.node, action.visit, status, entry, output)
    if has_route:
        return {EventKind.NODE_COMPLETED: short_value(output)}
    return {EventKind.NODE_FAILED: error_payload(entry)}


# Events have small JSON data, so that a run's stream stays small. A longer value is left out: the run has it.

SHORT = 1000
"""The most bytes of a value that an event holds in full."""


def short_value(json_value: JSON) -> JSON:
    """Return the value if it is short enough, otherwise None."""
    if isinstance(json_value, codec.LazyValue):
        return None
    return json_value if len(codec.dump_json(json_value)) <= SHORT else None


def error_payload(entry: VisitEntry | None) -> JSON:
    """Return the error of a visit's entry, cut if it is long; None without an error."""
    record = (entry or {}).get("error")
    if not record:
        return None
    name = record["type"].rpartition(":")[2].rpartition(".")[2]
    text = f"{name}: {record['message']}"[:SHORT]
    while (over := len(codec.dump_json({"error": text})) - SHORT) > 0:
        text = text[: -max(1, over // WIDEST)]
    return {"error": text}


def settle_payloads(settlement: Settlement) -> JSONObject:
    return {
        EventKind.NODE_COMPLETED: short_value(settlement.output),
        EventKind.NODE_FAILED: error_payload(settlement.entry),
        **{use.interrupt_id: effect_payload(use) for use in settlement.effects},
    }


def effect_payload(use: Use) -> JSON:
    """Return the outcome of an approved effect, as digests."""
    return {"key": use.key, "effect": use.effect, "result": use.result, "status": use.status}


def retry_payloads(entry: VisitEntry | None, reason: str) -> JSONObject:
    return {EventKind.NODE_RETRYING: {"reason": reason} if reason else error_payload(entry)}


def question_payload(interrupt: Interrupt) -> JSON:
    """Return the question's event data; empty parts are left out."""
    data = {
        "name": interrupt.name,
        "assignees": interrupt.assignees or None,
        "reason": short_value(interrupt.reason),
        "replaces": interrupt.replaces or None,
    }
    return codec.without_none(data)


def answer_payload(answer: Decision) -> JSON:
    """Return the response, the responder and the absent person; missing or long parts are left out."""
    data = {
        "response": short_value(answer.response),
        "responder": answer.responder,
        "instead_of": answer.instead_of or None,
    }
    return codec.without_none(data)


def migration_payloads(move: Migration) -> JSONObject:
    """Return a migration's event data by kind, and the data of renamed and new questions by id."""
    renames = {new_question.id: {"from": old_id} for old_id, new_question in move.moved}
    questions: JSONObject = {
        interrupt.id: question_payload(interrupt) for interrupt in move.replacements
    }
    return {EventKind.RUN_MIGRATED: move.event_data, **renames, **questions}
