"""Handles incoming messages, from any queue or stream: answers and starts.

A handler applies the message and returns a result: whether the message is done, dead or kept. Any
worker may call it again with the same message. The message's own id serves as its idempotency key,
so a repeat gets the first receipt and changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import asdict

from runner.approvals.votes import apply_operation, requester_of
from runner.errors import NotFoundError, TooManyRuns, UsageError
from runner.execution.engine import Engine
from runner.immutable import immutable
from runner.operations.answers import apply_decisions
from runner.records import messages, size_limits
from runner.records.codec import without, without_none
from runner.records.interrupts import Receipt, ReceiptStatus, address_of
from runner.records.messages import (
    OperationMessage,
    ReceiptMessage,
    RequestMessage,
    read_answer,
    read_start,
)
from runner.records.run import EventKind
from runner.store.requests import EmitEvent

MAX_EARLY_BYTES = 65_536
"""Most bytes of a message that may wait for its question; the store limits the number of messages."""


KeepEarly = Callable[[str], str]
"""Keeps a message for a question, see `RedisStore.keep_early`."""


class Disposition(enum.StrEnum):
    """The end of a message: done, a dead letter, kept for its question, or left to another process."""

    DONE = "done"
    DEAD = "dead"
    KEPT = "kept"
    LEFT = "left"


@immutable
class IncomingMessage:
    """A message as received; `traceparent` comes from its headers, or is ""."""

    id: str
    key: str
    body: bytes | None
    traceparent: str = ""


@immutable
class HandlerResult:
    """The result of a message; `reason` is why it is dead, `reply_to` where the receipt goes."""

    disposition: Disposition
    receipt: ReceiptMessage | None = None
    reply_to: str | None = None
    reason: str = ""


def handle_answer(
    engine: Engine, incoming: IncomingMessage, keep: KeepEarly | None = None
) -> HandlerResult:
    """Apply an answer. If it came before its question, `keep` keeps it; without `keep` it is unknown.

    An answer larger than `MAX_EARLY_BYTES` is unknown at once.

    Raises:
        StoreError: the store can't be reached; try again.
        ConflictError: a vote is for a process that has the question's graph; leave it to another.
    """
    try:
        message, body = read_answer(_body(incoming, size_limits.MAX_MESSAGE))
        if isinstance(message, OperationMessage):
            operation = without(body, "reply_to")
            receipt = apply_operation(engine, operation, key=incoming.key, queued=True)
        else:
            (receipt,) = apply_decisions(
                engine, [message.decided(incoming.key, body)], queued=True
            )
    except UsageError as error:
        return HandlerResult(Disposition.DEAD, reason=str(error))
    unknown = receipt.status is ReceiptStatus.UNKNOWN
    small = len(incoming.body or b"") <= MAX_EARLY_BYTES
    if unknown and keep is not None and small and _may_still_ask(engine, message.interrupt_id):
        outcome = keep(message.interrupt_id)
        if outcome == "kept":
            return HandlerResult(Disposition.KEPT)
        if outcome == "asked":
            return handle_answer(engine, incoming)
    _record(engine, receipt)
    disposition = Disposition.DEAD if unknown else Disposition.DONE
    return HandlerResult(
        disposition,
        messages.receipt(incoming.id, receipt),
        message.reply_to,
        receipt.detail if unknown else "",
    )


def handle_start(
    engine: Engine, incoming: IncomingMessage, allowed: Collection[str] = ()
) -> HandlerResult:
    """Start a run. Only tasks in `allowed` may be its `on_end`.

    Raises:
        StoreError: the store can't be reached; try again.
    """
    try:
        message, body = read_start(
            _body(incoming, size_limits.MAX_MESSAGE + engine.store.max_bytes)
        )
    except UsageError as error:
        return HandlerResult(Disposition.DEAD, reason=str(error))
    try:
        _check_on_end(message.on_end, allowed)
        run_id = engine.start(
            message.graph,
            message.task,
            invocation_state=message.invocation_state,
            idempotency_key=message.idempotency_key,
            message_key=incoming.key,
            tags=message.tags,
            on_end=message.on_end,
            trace=message.traceparent or incoming.traceparent,
            requester=requester_of(engine, body)
            if isinstance(message, RequestMessage)
            else None,
        )
    except (UsageError, TooManyRuns) as error:
        status = ReceiptStatus.REJECTED
        if isinstance(error, NotFoundError):
            status = ReceiptStatus.UNKNOWN
        elif isinstance(error, TooManyRuns):
            status = ReceiptStatus.FULL
        refusal = messages.receipt(incoming.id, Receipt(status, "", None, str(error)))
        return HandlerResult(Disposition.DEAD, refusal, message.reply_to, str(error))
    receipt = Receipt(ReceiptStatus.ACCEPTED, "", run_id)
    _record(engine, receipt)
    return HandlerResult(
        Disposition.DONE, messages.receipt(incoming.id, receipt), message.reply_to
    )


def _check_on_end(on_end: str | None, allowed: Collection[str]) -> None:
    if on_end is not None and on_end not in allowed:
        raise UsageError(
            f"on_end names {on_end!r}, which messages may not call, so nothing was started. Add it to "
            "RUNNER_ON_END of the workers, or start the run with a Client."
        )


def _body(incoming: IncomingMessage, max_bytes: int) -> bytes:
    if incoming.body is None:
        raise UsageError(
            "the entry has no field `body`; send one field of that name that holds the JSON."
        )
    messages.check_size(incoming.body, max_bytes)
    return incoming.body


def _may_still_ask(engine: Engine, interrupt_id: str) -> bool:
    address = address_of(interrupt_id)
    run = engine.store.peek(address.run_id) if address else None
    return run is not None and not run.is_final


def _record(engine: Engine, receipt: Receipt) -> None:
    """Add the receipt to its run's events, if the run is known."""
    address = address_of(receipt.interrupt_id) if receipt.interrupt_id else None
    if receipt.run_id:
        node, visit = (address.node_id, address.visit) if address else ("", 0)
        data = without_none(asdict(receipt))
        engine.store.do(EmitEvent(receipt.run_id, EventKind.RECEIPT, node, visit, data))
