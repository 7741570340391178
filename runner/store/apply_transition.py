"""Applies a transition, with all that follows from it: events, timers, parent and child runs.

The same for every store: a `UnitOfWork` holds the runs for the length of one atomic step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, Self, TypeVar

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
from runner.records.checkpoints import Remembered, Saved
from runner.records.codec import JSON
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
"""Prefixes of the lists of a key's runs: open ones, those that wait for them, and one that is debounced."""

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
"""Events whose data are by their kind, though their detail is a question's id."""


CRASHED: Final[dict[str, Any]] = {
    "type": "runner.errors:NodeFailed",
    "message": "the worker process died five times in a row while it ran this node; "
    "see `runner dead list`, fix the node and start the run again.",
    "bases": ["runner.errors:RunnerError", "builtins:Exception", "builtins:BaseException"],
}
"""The error of a node that used up its crash budget."""

RELEASED: Final[dict[str, Any]] = {
    **CRASHED,
    "message": "ten workers in a row were stopped while they ran this node, and released it before it had "
    "stored anything new; set RUNNER_SHUTDOWN_GRACE and the time of the process manager above that of the "
    "node, then retry the run.",
}
"""The error of a node that was released too often."""


class StoredRun(View, Protocol):
    """One run as a store keeps it: what transitions see, and how it is changed."""

    record: RunRecord
    cancelled: str
    reopened: str

    @property
    def created_at(self) -> int:
        """The time at which the run was started, in ms."""

    @property
    def audited(self) -> int:
        """The number of entries that the audit has of the run."""

    def audit(self, entry: dict[str, JSON]) -> None:
        """Append an entry to the audit, as the next one of the run."""

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
        """Write what a visit that has ended leaves; the output counts only of a completed one."""

    def note_error(self, node: str, visit: int, entry: VisitEntry) -> None:
        """Write the error of a visit that is to be tried again."""

    def keep(self, node: str, checkpoint: Saved | None) -> None:
        """Write a node's checkpoint.

        Raises:
            PayloadTooLarge: the run has no room for it.
        """

    def remember(self, node: str, session: Remembered) -> None:
        """Add to a session what a visit of the node leaves to it."""

    def replace_input(self, start: Start) -> None:
        """Write the task and the invocation state of another start, and who asks for both."""

    def put_report(self, reference: str, outcome: JSON) -> None:
        """Write the outcome of an external task."""

    def put_items(self, node: str, visit: int, items: Sequence[JSON]) -> None:
        """Write the items of a map, once; a store that has them already counts their bytes."""

    def last_event(self) -> int:
        """Return the number of the run's last event."""

    def erase(self, undone: Mapping[VisitKey, VisitEntry], forgets: Iterable[str]) -> None:
        """Remove what other records will replace, and the results that no longer count."""

    def has_entry(self, visit: VisitKey) -> bool:
        """Return whether a visit has left an entry."""

    def copy_results(self, source: Self, fork: Fork) -> None:
        """Take over results and documents of the run that this one is a fork of."""

    def migrate(self, move: Migration) -> None:
        """Take another shape, and put results and questions under the names that its nodes have there."""

    def winner(self, interrupt_id: str) -> str:
        """Return the nonce of the request that answered a question; "" when none did."""

    def decide(self, question: Interrupt, answer: Decision, nonce: str, now: int) -> None:
        """Write the answer to an open question."""

    def requester(self) -> Mapping[str, Any]:
        """Return the key of the principal who started the run's root; "" when that is not known."""

    def standing(self, interrupt_id: str) -> Standing:
        """Return how the votes of a question stand."""

    def put_standing(self, interrupt_id: str, standing: Standing) -> None:
        """Write how the votes of a question stand."""

    def voter(self, interrupt_id: str, principal: str) -> Mapping[str, Any]:
        """Return what is kept of one person's part in a question; empty for one who had none."""

    def put_voter(
        self, interrupt_id: str, principal: str, participation: Mapping[str, JSON]
    ) -> None:
        """Write one person's part in a question: nothing, when it is empty."""

    def vote(self, interrupt_id: str, number: int) -> Mapping[str, Any]:
        """Return the vote of a number; empty for one that is gone."""

    def put_vote(self, interrupt_id: str, number: int, vote: Mapping[str, JSON] | None) -> None:
        """Write a vote under its number, or delete it."""

    def assign(self, interrupt_id: str, person: str) -> None:
        """List an open question among those that are assigned to a person, too."""

    def note_use(self, question: Interrupt, use_document: Mapping[str, JSON]) -> None:
        """Write what is done by the decision on a question."""

    def note_withdrawal(
        self, interrupt_id: str, attempt: int, withdrawal: Mapping[str, JSON]
    ) -> None:
        """Write why an operator has withdrawn a question, and at which attempt of its node."""


RunT = TypeVar("RunT", bound=StoredRun)


class RunLists(Protocol):
    """Lists of runs, each in the order in which they were added."""

    def count(self, name: str, bound: int) -> int:
        """Return how many runs a list has; where fewer than the bound, so they are when written."""

    def first(self, name: str, most: int) -> Sequence[str]:
        """Return the first runs of a list."""

    def add(self, name: str, run_id: str) -> None:
        """Add a run at the end of a list."""

    def remove(self, name: str, run_id: str) -> None:
        """Remove a run from a list, if it is there."""


class UnitOfWork(Protocol[RunT]):
    """All runs of a store and what they share, for the length of one atomic step."""

    audits: Mode

    @property
    def lists(self) -> RunLists:
        """The lists of the runs of keys."""

    def clock(self) -> int:
        """Return the time of the step, in ms."""

    def current(self, graph_id: str) -> str:
        """Return the fingerprint of a graph as it was published last; "" for none."""

    def shape(self, graph_id: str, fingerprint: str) -> Topology | None:
        """Return a graph's shape for a run to begin with; None where it is not there."""

    def bound(self, graph_id: str, declared: int) -> int | None:
        """Return how many runs of a graph may be open here, of all without a name; None: any number."""

    def note_start(self, graph_id: str, key: str, run_id: str) -> None:
        """Note that a start with an idempotency key has returned a run that there was."""

    def open_runs(self, graph_id: str, bound: int) -> int:
        """Return how many runs of a graph are open, of all without a name; those inside others don't count.

        Where they are fewer than the bound, so they are when the step is written.
        """

    def started_by(self, graph_id: str, key: str) -> str:
        """Return the run that was started with an idempotency key; "" for none."""

    def begin(self, record: RunRecord, start: Start) -> RunT:
        """Write a new run, which has no nodes yet."""

    def find(self, run_id: str) -> RunT | None:
        """Return a run; None for one that never was, or is gone."""

    def changes(self, run: RunT) -> Changes:
        """Begin a transition of a run."""

    def set_timer(self, kind: TimerKind, run_id: str, key: str, due: int) -> None:
        """Set a timer to so many ms of the clock."""

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
        """Add an event to a run, to its root's where it is inside one, and to the notices where it is one."""

    def write_dead_letter(self, run_id: str, node: str, visit: int, reason: str) -> None:
        """Write why a node is given up."""

    def signature_count(self, passkey: str) -> int:
        """Return how often a passkey had signed when it was used last; 0 where it never was."""

    def put_signature_count(self, passkey: str, count: int) -> None:
        """Write how often a passkey has signed."""

    def size_window(self, queue: str, size: int) -> None:
        """Write how many doorbells of a queue that keys share are rung at a time, of each priority."""

    def limit_setting(self, name: str) -> LimitSetting | None:
        """Return what is set of a limit; None for nothing."""

    def put_limit_setting(self, setting: LimitSetting, entry: dict[str, JSON] | None) -> None:
        """Write what is set of a limit, with an entry of the audit, if any; one that is reset is deleted."""

    def limit(self, run_id: str, action: LimitAction) -> Sequence[tuple[str, str]]:
        """Apply an action of a limit; return the (run, node) that now get a slot."""


def apply(
    transaction: UnitOfWork[RunT],
    run_id: str,
    transition: Callable[..., TransitionResult],
    *arguments: object,
    questions: Sequence[Interrupt] = (),
    payloads: Mapping[str, JSON] | None = None,
    **options: object,
) -> tuple[str, list[Doorbell]]:
    """Apply a transition, and then what follows from it for a parent run and for child runs.

    `questions` are those that it may ask; `payloads` are the data of events, by the event's kind or
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
        record, run_id = owner.record, owner.record.run_id
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
            parent, status = transaction.find(record.parent), Status(action.status)
            if parent is not None:
                changes, node = transaction.changes(parent), record.parent_node
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
    """Begin a run whose debounce is over, or let it wait for others of its key."""
    lists, run_id, changes = transaction.lists, run.record.run_id, transaction.changes(run)
    lists.remove(DELAYED + action.key, run_id)
    opened, queued, at_most = OPEN + action.key, QUEUED + action.key, action.at_most
    if at_most and (lists.count(opened, at_most) >= at_most or lists.count(queued, 1)):
        lists.add(queued, run_id)
        by = changes.topology.admission.by if changes.topology.admission else ""
        return scheduler.requeue(changes, f"waits for {label(by, run.tag)}")
    if at_most:
        lists.add(opened, run_id)
    return scheduler.begin(changes)


def admitted(transaction: UnitOfWork[RunT], key: str, at_most: int) -> Iterator[RunT]:
    """Find the runs of a key that begin now: one, or two where its bound was raised."""
    lists, opened, queued = transaction.lists, OPEN + key, QUEUED + key
    begun = 0
    while (
        begun < min(at_most, 2)
        and lists.count(queued, 1)
        and lists.count(opened, at_most) < at_most
    ):
        first = lists.first(queued, 1)
        if not first:
            return  # it is still to be read
        lists.remove(queued, *first)
        try:
            run = transaction.find(*first)
        except DamagedRun:
            continue  # it can't begin, and must not hold up the end of another run
        # The queue may be older than the run, which was perhaps cancelled since.
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
    payloads: dict[str, JSON],
) -> None:
    kind = action.kind
    if kind is EventKind.INTERRUPT_ASKED:
        _open(transaction, run, questions[action.detail])
    if kind is EventKind.INTERRUPT_REMINDED:
        payloads[kind] = {"count": run.remind(action.detail)}
    if kind is EventKind.INTERRUPT_ESCALATED:
        payloads[kind] = _escalated(run, action.detail, transaction.clock())
    if kind is EventKind.RUN_ENDED:
        run.end(transaction.clock())
    data = (
        payloads.get(kind)
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

    It is from its first question with a rule on, or from its start. What the entry says of a question is as
    the question stands after all that was written before; `new_question` is one that is asked now.
    A run that stops since a node failed says so at its end.
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
        # It must not keep its run from being cancelled: the entry has its id, and no digests.
        question = Interrupt(action.detail, "")
    about = {
        "at": transaction.clock(),
        "detail": action.detail,
        "data": data,
        "question": question,
    }
    shown = (audit_entries.SHOWN,) if isinstance(data, dict) and data.get("shown_at") else ()
    for entry_type in (*shown, type_):
        run.audit(
            audit_entries.of_event(entry_type, run.record, action.node, action.visit, **about)
        )


def _open(transaction: UnitOfWork[RunT], run: RunT, question: Interrupt) -> None:
    now, run_id = transaction.clock(), run.record.run_id
    new_question = replace(question, asked_at=now, reminded=0)
    if new_question.rule is not None:
        new_question = _placed(run, new_question)
    run.open(new_question)
    if new_question.expires_in is not None:
        expires_at = now + round(new_question.expires_in * 1000)
        transaction.set_timer(TimerKind.EXPIRE, run_id, new_question.id, expires_at)
    if new_question.escalates_at:
        transaction.set_timer(
            TimerKind.ESCALATE, run_id, new_question.id, new_question.escalates_at[0]
        )
    if reminder_delay := interrupts.first_reminder(new_question):
        transaction.set_timer(TimerKind.REMIND, run_id, new_question.id, now + reminder_delay)


def _escalated(run: StoredRun, interrupt_id: str, now: int) -> JSON:
    """Count the steps of a question's escalation that have come; return the data of the event."""
    question = run.question(interrupt_id)
    if question is None:
        raise AssertionError(f"{interrupt_id} escalates, and was never asked")
    step = sum(moment <= now for moment in question.escalates_at)
    run.put_standing(interrupt_id, replace(run.standing(interrupt_id), escalated=step))
    return {"step": step, "selectors": ballots.escalated(question, now)}


def _placed(run: StoredRun, question: Interrupt) -> Interrupt:
    """Add to a question with a rule what only the store knows, and make the digest that covers it."""
    record = run.record
    origin = {
        "root": record.root,
        "graph": record.graph_id,
        "fingerprint": record.fingerprint,
        "path": record.path,
    }
    escalates = escalates_at(Rule.thawed(question.rule or {}), question.asked_at)
    _forget_votes(run, question.id)
    requester = run.requester()
    people = {
        "requester": requester.get("principal", ""),
        "on_behalf_of": [*requester.get("on_behalf_of", ())],
    }
    full_question = replace(question, place=origin, escalates_at=escalates, **people)
    return replace(full_question, digest=interrupts.digest(full_question))


JTI = "jti:"
"""Begins the name under which a vote's `jti` is stored among voters, whose names begin with a kind."""


def _forget_votes(run: StoredRun, interrupt_id: str) -> None:
    """Drop what people did to a question that is asked again under its id: a node has its old name back."""
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


def _end_expired(run: StoredRun, action: EndExpired) -> dict[str, JSON]:
    """Write the result of a node that ended with its question; return the data of its event, by kind."""
    question = run.question(action.interrupt_id)
    if question is None:
        raise AssertionError(f"{action.interrupt_id} expired, and was never asked")
    entry, has_route = (
        interrupts.expired_entry(question, action.edges),
        bool(interrupts.route(question)),
    )
    output = interrupts.expired_output(question) if has_route else None
    status = Status.COMPLETED if has_route else Status.FAILED
    run.leave_result(action.node, action.visit, status, entry, output)
    if has_route:
        return {EventKind.NODE_COMPLETED: short_value(output)}
    return {EventKind.NODE_FAILED: error_payload(entry)}


# The data of events: small JSON, so that a run's stream stays small. A longer value is left out; it is in
# the run itself.

SHORT = 1000
"""Bytes of a value that an event has in full."""


def short_value(json_value: JSON) -> JSON:
    """Return a value that is short enough, otherwise None."""
    if isinstance(json_value, codec.LazyValue):
        return None
    return json_value if len(codec.dump_json(json_value)) <= SHORT else None


def error_payload(entry: VisitEntry | None) -> JSON:
    """Return the error of a visit's entry, cut where it is long; None where there is none."""
    record = (entry or {}).get("error")
    if not record:
        return None
    name = record["type"].rpartition(":")[2].rpartition(".")[2]
    text = f"{name}: {record['message']}"[:SHORT]
    while (over := len(codec.dump_json({"error": text})) - SHORT) > 0:
        text = text[: -max(1, over // WIDEST)]
    return {"error": text}


def settle_payloads(settlement: Settlement) -> dict[str, JSON]:
    return {
        EventKind.NODE_COMPLETED: short_value(settlement.output),
        EventKind.NODE_FAILED: error_payload(settlement.entry),
        **{use.interrupt_id: effect_payload(use) for use in settlement.effects},
    }


def effect_payload(use: Use) -> JSON:
    """Return what came of something that was approved, by its digest."""
    return {"key": use.key, "effect": use.effect, "result": use.result, "status": use.status}


def retry_payloads(entry: VisitEntry | None, reason: str) -> dict[str, JSON]:
    return {EventKind.NODE_RETRYING: {"reason": reason} if reason else error_payload(entry)}


def question_payload(interrupt: Interrupt) -> JSON:
    """Return what is asked and of whom; parts that are empty are left out."""
    data = {
        "name": interrupt.name,
        "assignees": interrupt.assignees or None,
        "reason": short_value(interrupt.reason),
        "replaces": interrupt.replaces or None,
    }
    return codec.without_none(data)


def answer_payload(answer: Decision) -> JSON:
    """Return what was answered and by whom; parts that are missing or long are left out."""
    data = {"response": short_value(answer.response), "responder": answer.responder}
    return codec.without_none(data)


def migration_payloads(move: Migration) -> dict[str, JSON]:
    """Return what changed for a run, by kind, and its questions' older and newer names, by question."""
    renames = {new_question.id: {"from": old_id} for old_id, new_question in move.moved}
    questions: dict[str, JSON] = {
        interrupt.id: question_payload(interrupt) for interrupt in move.replacements
    }
    return {EventKind.RUN_MIGRATED: move.event_data, **renames, **questions}
