"""Questions of a node: asked, answered, withdrawn or expired, after which the node continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.records.interrupts import Interrupt, address_of, ends_node, next_reminder, route
from runner.records.run import EventKind, NodeRecord, Status
from runner.scheduler.changes import (
    IDLE,
    MAX_REDISPATCH_MS,
    AddEvent,
    Changes,
    CloseQuestion,
    DropTimer,
    EndExpired,
    SetTimer,
    TimerKind,
    TransitionResult,
    cancel_node,
    dispatch,
    doorbell,
    drop_timers,
    refusal,
    stops,
    withdrawals,
)
from runner.scheduler.lifecycle import close, finish

PARKED = {Status.WAITING: "waiting", Status.READY: "ready", Status.CANCELLED: "cancelled"}


def ask(
    changes: Changes, node: str, visit: int, fence: int, interrupts: Sequence[str]
) -> TransitionResult:
    """Publish a running node's questions, each once; "stopping" if the run withdraws them."""
    if reply := refusal(changes, node, visit, fence, {}):
        return reply
    if _publish(changes, node, interrupts):
        return close(changes, "asked")
    return close(changes, "stopping")


def _publish(changes: Changes, node: str, interrupts: Sequence[str]) -> bool:
    """Open the new questions; False if the run stops and they were withdrawn at once.

    A withdrawn id is not opened again: a question that is asked once more gets another id (see
    `records/asking.py`), so that an answer to the earlier one never counts for it.
    """
    record = changes.node(node)
    new_ids = [
        interrupt for interrupt in interrupts if not changes.view.question_status(interrupt)
    ]
    for interrupt in new_ids:
        changes.add(AddEvent(EventKind.INTERRUPT_ASKED, node, record.visit, interrupt))
    if stops(changes, node):
        changes.add(*withdrawals(node, record.visit, new_ids))
        return False
    changes.put(node, replace(record, questions=(*record.questions, *new_ids)))
    return True


def park(
    changes: Changes,
    node: str,
    visit: int,
    fence: int,
    interrupts: Sequence[str],
    *,
    awaits: str = "",
) -> TransitionResult:
    """Make a running node wait for people: "waiting", or "ready" if unseen answers suffice.

    `interrupts` are all of the node's open questions: new ones are asked in the same transition,
    other questions of this visit are withdrawn. "nothing_open" refuses a node that has nothing to
    wait for. `wake` continues a node that `awaits` the answer to another visit's question; a timer also
    makes it check every `MAX_REDISPATCH_MS` whether that visit's node has ended.
    """
    if reply := refusal(changes, node, visit, fence, PARKED):
        return reply
    changes.add(DropTimer(TimerKind.NODE, node))
    if not _publish(changes, node, interrupts):
        cancel_node(changes, node)
        return close(changes, "cancelled")
    record = changes.node(node)
    changes.add(
        *withdrawals(
            node,
            visit,
            [question for question in record.questions if question not in interrupts],
        )
    )
    still_open = tuple(question for question in record.questions if question in interrupts)
    if not still_open and not record.unseen and not awaits:
        return changes.refuse("nothing_open")
    waiting = replace(
        record,
        status=Status.WAITING,
        questions=still_open,
        crashes=0,
        releases=0,
        awaits=awaits,
    )
    if _satisfied(changes, node, waiting):
        dispatch(changes, node, waiting)
        return close(changes, "ready")
    changes.put(node, waiting)
    changes.add(AddEvent(EventKind.NODE_WAITING, node, visit))
    if awaits:
        changes.add(SetTimer(TimerKind.NODE, node, changes.now + MAX_REDISPATCH_MS))
    return close(changes, "waiting")


def wake(changes: Changes, node: str, visit: int) -> TransitionResult:
    """Continue a node that awaits the answer to another node's question: "woken", or "stale"."""
    record = changes.node(node)
    if record.visit != visit or not (record.awaits or record.status is Status.RUNNING):
        return changes.refuse("stale")
    if record.held or record.status is Status.RUNNING:
        # A node checks `unseen` before it waits.
        changes.put(node, replace(record, unseen=record.unseen + 1))
    else:
        changes.add(AddEvent(EventKind.NODE_RESUMED, node, visit))
        dispatch(changes, node, record)
    return close(changes, "woken")


def _satisfied(changes: Changes, node: str, record: NodeRecord) -> bool:
    return record.unseen > 0 and (changes.shape(node).each or not record.questions)


def answer(
    changes: Changes, node: str, visit: int, interrupts: Sequence[str]
) -> TransitionResult:
    """Apply answers to open questions of one node; the caller has checked that each is open."""
    for interrupt in interrupts:
        changes.add(AddEvent(EventKind.INTERRUPT_ANSWERED, node, visit, interrupt))
    return _resolve(changes, node, visit, interrupts)


def note(changes: Changes, kind: EventKind, interrupt: str) -> TransitionResult:
    """Record a person's action on a question that stays open."""
    address = address_of(interrupt)
    if address is None:
        return changes.refuse("unknown")
    changes.add(AddEvent(kind, address.node_id, address.visit, interrupt))
    return changes.result("noted")


def granted(
    changes: Changes, node: str, visit: int, fence: int, grant: str
) -> TransitionResult:
    """Record that a grant allowed a call of a visit; the caller's worker owns the visit."""
    del fence
    changes.add(AddEvent(EventKind.GRANT_USED, node, visit, grant))
    return changes.result("noted")


def withdraw(changes: Changes, interrupt: str, *, reask: bool) -> TransitionResult:
    """Withdraw an open question on request; with `reask` its node continues at once."""
    address = address_of(interrupt)
    if address is None or changes.view.question_status(interrupt) != "open":
        return changes.refuse("closed")
    node = address.node_id
    visit = address.visit
    changes.add(*withdrawals(node, visit, [interrupt]))
    return _resolve(changes, node, visit, [interrupt], wakes=reask)


def _resolve(
    changes: Changes, node: str, visit: int, interrupts: Sequence[str], *, wakes: bool = False
) -> TransitionResult:
    record = changes.node(node)
    still_open = tuple(
        interrupt for interrupt in record.questions if interrupt not in interrupts
    )
    unseen = record.unseen + len(record.questions) - len(still_open)
    updated_record = replace(record, questions=still_open, unseen=unseen)
    changes.add(*drop_timers(interrupts))
    waits = record.status is Status.WAITING and not record.held and not record.items
    if waits and (wakes or _satisfied(changes, node, updated_record)):
        changes.add(AddEvent(EventKind.NODE_RESUMED, node, visit))
        dispatch(changes, node, updated_record)
    else:
        changes.put(node, updated_record)
    # No `close`: an answer ends neither a run nor a map's item, so nothing can begin in its place.
    return changes.result("accepted")


def due_question(changes: Changes, kind: TimerKind, interrupt: str) -> TransitionResult:
    """Handle a question's timer: an expiry, an escalation, a reminder or a final decision."""
    question = changes.view.question(interrupt)
    if question is None or changes.view.question_status(interrupt) != "open":
        return changes.refuse("stale")
    if kind is TimerKind.DECIDE:
        return answer(changes, question.node_id, question.visit, [interrupt])
    if kind is TimerKind.EXPIRE:
        return _expire(changes, question)
    if question.is_over(changes.now):
        return changes.refuse("stale")
    event, again = EventKind.INTERRUPT_REMINDED, next_reminder(question, changes.now)
    if kind is TimerKind.ESCALATE:
        event = EventKind.INTERRUPT_ESCALATED
        again = next((moment for moment in question.escalates_at if moment > changes.now), 0)
    changes.add(AddEvent(event, question.node_id, question.visit, question.id))
    if again:
        changes.add(SetTimer(kind, question.id, again))
    return changes.result(event.removeprefix("interrupt."))


def _expire(changes: Changes, question: Interrupt) -> TransitionResult:
    """Expire a question: its node continues with the error or the default answer, or it ends."""
    interrupt = question.id
    node = question.node_id
    visit = question.visit
    record = changes.node(question.node_id)
    ends = ends_node(question)
    if ends and (record.status is Status.RUNNING or record.items or record.busy):
        # A worker, a child run, an item or an external task still works for the node, so it may finish.
        # No answer is accepted meanwhile; the timer is set again.
        changes.add(SetTimer(TimerKind.EXPIRE, interrupt, changes.now + changes.lease_ms))
        return changes.result("later")
    changes.add(
        CloseQuestion(interrupt, "expired"),
        DropTimer(TimerKind.ESCALATE, interrupt),
        AddEvent(EventKind.INTERRUPT_EXPIRED, node, visit, interrupt),
    )
    if ends and record.visit == visit and record.status in IDLE:
        return _conclude(changes, question)
    return _resolve(changes, node, visit, [interrupt])


def _conclude(changes: Changes, question: Interrupt) -> TransitionResult:
    """End the node whose question expired: it fails, or takes only its edges for expired questions."""
    node = question.node_id
    interrupt = question.id
    record = changes.node(question.node_id)
    other_ids = [question for question in record.questions if question != interrupt]
    changes.add(
        *withdrawals(node, record.visit, other_ids),
        *drop_timers([interrupt]),
        DropTimer(TimerKind.NODE, node),
    )
    without_questions = replace(record, questions=(), unseen=0, awaits="")
    if stops(changes, node):
        changes.put(node, without_questions)
        cancel_node(changes, node)
        return close(changes, "cancelled")
    # A worker ignores this doorbell as stale, but it shows monitors how the node ended.
    changes.add(doorbell(changes, node, record))
    target = route(question)
    leaving = changes.topology.outgoing.get(node, ())
    edges = "".join("01"[edge.on_expire and edge.target == target] for edge in leaving)
    changes.add(EndExpired(node, record.visit, interrupt, edges))
    finish(
        changes, node, without_questions, Status.COMPLETED if target else Status.FAILED, edges
    )
    return close(changes, "expired")
