"""A node asks people: questions open, are answered, withdrawn or expire, and the node goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner import expiry, reminders
from runner.actions import Announce, Close, Conclude, DropTimer, SetTimer, TimerKind
from runner.draft import Draft, Step
from runner.events import EventKind
from runner.interrupts import Interrupt, address_of
from runner.run import NodeRecord, Status
from runner.transitions.closing import close, finish
from runner.transitions.steps import IDLE, cancel_node, holds, quiet, refusal, ring, stops, withdrawn

PARKED = {Status.WAITING: "waiting", Status.READY: "ready", Status.CANCELLED: "cancelled"}


def ask(draft: Draft, node: str, visit: int, fence: int, interrupts: Sequence[str]) -> Step:
    """Publish questions of a running node, each once; "stopping" withdraws them in the same step."""
    if not holds(draft.node(node), visit, fence):
        return draft.refuse("stale")
    if _publish(draft, node, interrupts):
        return close(draft, "asked")
    return close(draft, "stopping")


def _publish(draft: Draft, node: str, interrupts: Sequence[str]) -> bool:
    """Open the questions that are new; one that was withdrawn may be asked again."""
    record = draft.node(node)
    new = [interrupt for interrupt in interrupts if draft.view.standing(interrupt) in {"", "withdrawn"}]
    for interrupt in new:
        draft.add(Announce(EventKind.INTERRUPT_ASKED, node, record.visit, interrupt))
    if stops(draft, node):
        draft.add(*withdrawn(node, record.visit, new))
        return False
    draft.put(node, replace(record, questions=(*record.questions, *new)))
    return True


def park(draft: Draft, node: str, visit: int, fence: int, interrupts: Sequence[str]) -> Step:
    """Let a running node wait for people: "waiting", or "ready" when an unseen answer suffices.

    `interrupts` are all that the node has open: new ones are asked with this step, others of this
    visit are withdrawn. A node that would wait for nothing is refused: "nothing_open".
    """
    if not holds(draft.node(node), visit, fence):
        return draft.refuse(refusal(draft.node(node), visit, fence, PARKED))
    draft.add(DropTimer(TimerKind.NODE, node))
    if not _publish(draft, node, interrupts):
        cancel_node(draft, node)
        return close(draft, "cancelled")
    record = draft.node(node)
    draft.add(*withdrawn(node, visit, [each for each in record.questions if each not in interrupts]))
    kept = tuple(each for each in record.questions if each in interrupts)
    if not kept and not record.unseen:
        return draft.refuse("nothing_open")
    parked = replace(record, status=Status.WAITING, questions=kept, crashes=0)
    if _satisfied(draft, node, parked):
        ring(draft, node, parked)
        return close(draft, "ready")
    draft.put(node, parked)
    draft.add(Announce(EventKind.NODE_WAITING, node, visit))
    return close(draft, "waiting")


def _satisfied(draft: Draft, node: str, record: NodeRecord) -> bool:
    return record.unseen > 0 and (draft.shape(node).each or not record.questions)


def answer(draft: Draft, node: str, visit: int, interrupts: Sequence[str]) -> Step:
    """Take the answers to open questions of one node; the caller has checked that each is open."""
    for interrupt in interrupts:
        draft.add(Announce(EventKind.INTERRUPT_ANSWERED, node, visit, interrupt))
    return _resolve(draft, node, visit, interrupts)


def withdraw(draft: Draft, interrupt: str, *, reask: bool) -> Step:
    """Take an open question back: its node learns so from it. With `reask` that goes on at once."""
    address = address_of(interrupt)
    if address is None or draft.view.standing(interrupt) != "open":
        return draft.refuse("closed")
    node, visit = address.node_id, address.visit
    draft.add(Close(interrupt, "withdrawn"), Announce(EventKind.INTERRUPT_WITHDRAWN, node, visit, interrupt))
    return _resolve(draft, node, visit, [interrupt], wakes=reask)


def _resolve(draft: Draft, node: str, visit: int, interrupts: Sequence[str], *, wakes: bool = False) -> Step:
    record = draft.node(node)
    left = tuple(interrupt for interrupt in record.questions if interrupt not in interrupts)
    unseen = record.unseen + len(record.questions) - len(left)
    resolved = replace(record, questions=left, unseen=unseen)
    draft.add(*quiet(interrupts))
    waits = record.status is Status.WAITING and not record.held and not record.items
    if waits and (wakes or _satisfied(draft, node, resolved)):
        draft.add(Announce(EventKind.NODE_RESUMED, node, visit))
        ring(draft, node, resolved)
    else:
        draft.put(node, resolved)
    return close(draft, "accepted")


def due_question(draft: Draft, kind: TimerKind, interrupt: str) -> Step:
    """A question's timer: it expires, or people are reminded of it."""
    asked = draft.view.asked(interrupt)
    if asked is None or draft.view.standing(interrupt) != "open":
        return draft.refuse("stale")
    return _expire(draft, asked) if kind is TimerKind.EXPIRE else _remind(draft, asked)


def _expire(draft: Draft, asked: Interrupt) -> Step:
    """Nobody answered in time: the node goes on and learns so from its own question, or ends with it."""
    interrupt = asked.id
    node, visit, record = asked.node_id, asked.visit, draft.node(asked.node_id)
    ends = expiry.ends_node(asked)
    if ends and _at_work(record):
        # It is let finish what it does. No answer is taken meanwhile; when it waits, it ends.
        draft.add(SetTimer(TimerKind.EXPIRE, interrupt, draft.now + draft.lease_ms))
        return draft.step("later")
    draft.add(Close(interrupt, "expired"), Announce(EventKind.INTERRUPT_EXPIRED, node, visit, interrupt))
    if ends and record.visit == visit and record.status in IDLE:
        return _conclude(draft, asked)
    return _resolve(draft, node, visit, [interrupt])


def _at_work(record: NodeRecord) -> bool:
    """Tell whether somebody works for a node just now: a worker, a child run, its items, another system."""
    return record.status is Status.RUNNING or record.items or record.busy


def _conclude(draft: Draft, asked: Interrupt) -> Step:
    """End the node that asked: it fails, or takes the edges for this case and no other."""
    node, interrupt, record = asked.node_id, asked.id, draft.node(asked.node_id)
    others = [each for each in record.questions if each != interrupt]
    draft.add(*withdrawn(node, record.visit, others), *quiet([interrupt]), DropTimer(TimerKind.NODE, node))
    ended = replace(record, questions=(), unseen=0)
    if stops(draft, node):
        draft.put(node, ended)
        cancel_node(draft, node)
        return close(draft, "cancelled")
    target, leaving = expiry.route(asked), draft.topology.outgoing.get(node, ())
    edges = "".join("01"[edge.on_expire and edge.target == target] for edge in leaving)
    draft.add(Conclude(node, record.visit, interrupt, edges))
    finish(draft, node, ended, Status.COMPLETED if target else Status.FAILED, edges)
    return close(draft, "expired")


def _remind(draft: Draft, asked: Interrupt) -> Step:
    """A question waits for long: those who watch are told again, until somebody answers."""
    if asked.is_over(draft.now):
        return draft.refuse("stale")
    draft.add(Announce(EventKind.INTERRUPT_REMINDED, asked.node_id, asked.visit, asked.id))
    again = reminders.following(asked, draft.now)
    if again:
        draft.add(SetTimer(TimerKind.REMIND, asked.id, again))
    return draft.step("reminded")
