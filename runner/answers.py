"""The check of an answer at the door, before anything is applied or woken.

A bad answer is refused with the place and the reason, and the question stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runner import codec, labels, sizes
from runner.errors import PayloadTooLarge, ResponseError
from runner.interrupts import Answer, Interrupt, Receipt, ReceiptStatus, address_of
from runner.run import RunRecord
from runner.schemas import mismatch
from runner.store.receipts import receipts_for


def refusals(
    given: Sequence[Answer], found: Sequence[Interrupt | None], most: int = sizes.MAX_RESULT
) -> dict[str, str]:
    """Name the answers that are none, too large or not what their questions take, each with the reason.

    `most` is in bytes.
    """
    judged = zip(given, found, strict=True)
    reasons = {answer.interrupt_id: _reason(answer, interrupt, most) for answer, interrupt in judged}
    return {interrupt_id: reason for interrupt_id, reason in reasons.items() if reason}


def check_run(run_id: str, given: Sequence[Answer], peek: Callable[[str], RunRecord | None]) -> None:
    """Refuse a set in which a question is of another run, and of none inside this one.

    Raises:
        ResponseError: there is such a question; nothing was applied.
    """
    own = peek(run_id)
    for answer in given:
        address = address_of(answer.interrupt_id)
        asking = peek(address.run_id) if address and address.run_id != run_id else None
        if own is None or asking is None:
            continue  # its own, or one that nobody asked: the store says what becomes of it
        if asking.root != own.root or not asking.path.startswith(own.path):
            raise ResponseError(
                f"the question {answer.interrupt_id} is of run {asking.run_id}, not of run {run_id} or a run "
                "inside it; nothing was applied. Answer it there, or with client.respond."
            )


def _reason(answer: Answer, interrupt: Interrupt | None, most: int) -> str:
    if answer.response is None:
        return "None (null) is no answer"
    for said in ("responder", "idempotency_key", "digest"):
        given = getattr(answer, said)
        if given is not None and (wrong := labels.fault(given)):
            return f"the {said} {wrong}"
    try:
        sizes.check_answer(answer.response, most)
    except PayloadTooLarge as error:
        return str(error)
    if interrupt is None or not interrupt.is_open or interrupt.response_schema is None:
        return ""
    return mismatch(interrupt.response_schema, codec.plain(codec.unpack(answer.response))) or ""


def refuse(
    given: Sequence[Answer], found: Sequence[Interrupt | None], refused: Mapping[str, str]
) -> list[Receipt]:
    """Give every answer of a refused set its receipt: one is bad, so none is applied."""
    judged, _ = receipts_for(given, found, lambda _: "", "-", 0)
    receipts = []
    for answer, receipt in zip(given, judged, strict=True):
        if answer.interrupt_id in refused and receipt.status in {
            ReceiptStatus.ACCEPTED,
            ReceiptStatus.REJECTED,
        }:
            receipts.append(_rejected(answer, refused[answer.interrupt_id]))
        elif receipt.status is ReceiptStatus.ACCEPTED:
            receipts.append(
                _rejected(answer, "another answer of the same set was refused, so none was applied")
            )
        else:
            receipts.append(receipt)
    return receipts


def _rejected(answer: Answer, detail: str) -> Receipt:
    address = address_of(answer.interrupt_id)
    return Receipt(ReceiptStatus.REJECTED, answer.interrupt_id, address.run_id if address else None, detail)
