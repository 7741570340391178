"""Applying messages of the doors: an answer or a start becomes a verdict.

`judge` does what the message says and tells what must become of the message itself. It may be
called again with the same message, by any worker: the message's own name serves as its
idempotency key, so a repeat gets the first receipt and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import asdict, dataclass

from runner import sizes
from runner.engine import Engine
from runner.errors import NotFoundError, UsageError
from runner.events import EventKind
from runner.interrupts import Receipt, ReceiptStatus, address_of
from runner.messages import AnswerMessage, ReceiptMessage, StartMessage, read, receipt

MAX_EARLY_BYTES = 65_536
"""Bytes of a message that may wait for its question: the doors limit their number."""


class Fate(enum.StrEnum):
    """What must become of a message."""

    DONE = "done"
    DEAD = "dead"
    EARLY = "early"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it came; `age` asks how many seconds ago it was sent, by the store's clock."""

    id: str
    key: str
    body: bytes | None
    age: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a message came to; `reason` says why it is dead, `reply_to` where the receipt goes."""

    fate: Fate
    receipt: ReceiptMessage | None = None
    reply_to: str | None = None
    reason: str = ""


def judge_answer(engine: Engine, sent: Sent, patience: float) -> Verdict:
    """Apply an answer. One that came before its question is early for `patience` seconds, then unknown.

    A large one is unknown at once.

    Raises:
        StoreError: the store can't be reached; try again.
    """
    try:
        message = read(AnswerMessage, _body(sent, sizes.MAX_MESSAGE))
        answer = message.answer(sent.key)
    except UsageError as error:
        return Verdict(Fate.DEAD, reason=str(error))
    found = engine.answer([answer])[0]
    unknown = found.status is ReceiptStatus.UNKNOWN
    kept = patience > 0 and len(sent.body or b"") <= MAX_EARLY_BYTES
    if unknown and kept and _may_still_ask(engine, message.interrupt_id) and sent.age() < patience:
        return Verdict(Fate.EARLY)
    _record(engine, found)
    fate = Fate.DEAD if unknown else Fate.DONE
    return Verdict(fate, receipt(sent.id, found), message.reply_to, found.detail if unknown else "")


def judge_start(engine: Engine, sent: Sent) -> Verdict:
    """Begin a run.

    Raises:
        StoreError: the store can't be reached; try again.
    """
    try:
        message = read(StartMessage, _body(sent, sizes.MAX_MESSAGE + engine.store.max_bytes))
    except UsageError as error:
        return Verdict(Fate.DEAD, reason=str(error))
    try:
        run_id = engine.start(
            message.graph,
            message.task,
            invocation_state=message.invocation_state,
            idempotency_key=message.idempotency_key or sent.key,
            tags=message.tags,
            on_end=message.on_end or "",
        )
    except UsageError as error:
        status = ReceiptStatus.UNKNOWN if isinstance(error, NotFoundError) else ReceiptStatus.REJECTED
        refused = receipt(sent.id, Receipt(status, "", None, str(error)))
        return Verdict(Fate.DEAD, refused, message.reply_to, str(error))
    started = Receipt(ReceiptStatus.ACCEPTED, "", run_id)
    _record(engine, started)
    return Verdict(Fate.DONE, receipt(sent.id, started), message.reply_to)


def _body(sent: Sent, most: int) -> bytes:
    if sent.body is None:
        raise UsageError("the entry has no field `body`; send one field of that name that holds the JSON.")
    sizes.check_message(sent.body, most)
    return sent.body


def _may_still_ask(engine: Engine, interrupt_id: str) -> bool:
    address = address_of(interrupt_id)
    run = engine.store.peek(address.run_id) if address else None
    return run is not None and not run.is_final


def _record(engine: Engine, given: Receipt) -> None:
    """Show the receipt among the run's events, where there is such a run."""
    address = address_of(given.interrupt_id) if given.interrupt_id else None
    if given.run_id:
        node, visit = (address.node_id, address.visit) if address else ("", 0)
        engine.store.emit(given.run_id, EventKind.RECEIPT, node, visit, asdict(given))
