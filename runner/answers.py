"""The check of an answer at the door, before anything is applied or woken.

A bad answer is refused with the place and the reason, and the question stays open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner import codec
from runner.interrupts import Answer, Interrupt, Receipt, ReceiptStatus, address_of
from runner.schemas import mismatch
from runner.store.receipts import receipts_for


def refusals(given: Sequence[Answer], found: Sequence[Interrupt | None]) -> dict[str, str]:
    """Name the answers that their questions' schemas refuse, each with the reason."""
    refused = {}
    for answer, interrupt in zip(given, found, strict=True):
        if answer.response is None:
            refused[answer.interrupt_id] = "None (null) is no answer"
        elif interrupt is not None and interrupt.is_open and interrupt.response_schema is not None:
            plain = codec.plain(codec.unpack(answer.response))
            reason = mismatch(interrupt.response_schema, plain)
            if reason:
                refused[answer.interrupt_id] = reason
    return refused


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
