"""The check of an answer at the door, before anything is applied or woken.

A response schema is JSON Schema, stored with the question, so that a door needs no user code. A
bad answer is refused with the place and the reason, and the question stays open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jsonschema_rs

from runner import codec
from runner.interrupts import Answer, Interrupt, Receipt, ReceiptStatus, address_of
from runner.store.receipts import receipts_for


def refusals(given: Sequence[Answer], found: Sequence[Interrupt | None]) -> dict[str, str]:
    """Name the answers that their questions' schemas refuse, each with the reason."""
    refused = {}
    for answer, interrupt in zip(given, found, strict=True):
        if answer.response is None:
            refused[answer.interrupt_id] = "None (null) is no answer"
        elif interrupt is not None and interrupt.is_open and interrupt.response_schema is not None:
            reason = mismatch(interrupt.response_schema, answer.response)
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


def mismatch(schema: Mapping[str, Any], response: Any) -> str:
    """Say how a response breaks a JSON Schema, or return "" when it fits."""
    found = next(_validator(codec.dump_json(schema)).iter_errors(response), None)
    if found is None:
        return ""
    where = "".join(f"[{part!r}]" for part in found.instance_path)
    return f"the answer{where} does not fit the question's schema: {found.message}"


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    return jsonschema_rs.validator_for(schema.decode(), retriever=_deny)


def _deny(uri: str) -> Any:
    """A schema may not fetch others: it comes from user code, but doors may face the network."""
    raise ValueError(f"the schema refers to {uri}, and references outside it are not followed")
