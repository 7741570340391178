"""Receipts of answers and votes, and the check of which answers can be applied.

A set is checked as one: if any answer can't be applied, none is, and the receipts of the good ones
say so. Repeating a request (same nonce or idempotency key) gets its first receipt again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.approvals import ballots
from runner.approvals.ballots import Ballot, Operation, Submission
from runner.approvals.rules import plain_name
from runner.errors import PayloadTooLarge
from runner.records import codec
from runner.records.codec import JSON, JSONMapping
from runner.records.interrupts import (
    Decision,
    Interrupt,
    InterruptStatus,
    Receipt,
    ReceiptStatus,
    address_of,
)
from runner.records.size_limits import MAX_ANSWER, MAX_RESULT
from runner.records.validation import mismatch

OTHER_KEY = "the idempotency key belongs to another answer or vote; this one was not counted"


def receipts_for(
    answers: Sequence[Decision],
    questions: Sequence[Interrupt | None],
    winner: Callable[[str], str],
    nonce: str,
    now: int,
    *,
    max_bytes: int = MAX_RESULT,
) -> tuple[list[Receipt], list[Decision]]:
    """Judge a set of answers; return receipts, and the answers to apply: none if any is refused.

    An answer of more than `max_bytes`, or that doesn't fit its question's schema, is refused.
    """
    receipts, fresh = [], []
    ids: set[str] = set()
    for answer, interrupt in zip(answers, questions, strict=True):
        is_repeat = (
            interrupt is not None
            and interrupt.status is InterruptStatus.ANSWERED
            and winner(answer.interrupt_id) == nonce
        )
        receipt = _receipt_for(answer, interrupt, now, is_repeat=is_repeat)
        if answer.interrupt_id in ids:
            receipt = answer.receipt(
                ReceiptStatus.REJECTED, "the set answers this question twice"
            )
        elif (
            receipt.status is ReceiptStatus.ACCEPTED
            and interrupt is not None
            and interrupt.is_open
        ):
            if reason := _unfit(answer, interrupt, max_bytes):
                receipt = answer.receipt(ReceiptStatus.REJECTED, reason)
            fresh.append(answer)
        ids.add(answer.interrupt_id)
        receipts.append(receipt)
    if all(receipt.status is ReceiptStatus.ACCEPTED for receipt in receipts):
        return receipts, fresh
    detail = "another answer of the same set was refused, so none was applied"
    return [
        answer.receipt(ReceiptStatus.REJECTED, detail)
        if receipt.status is ReceiptStatus.ACCEPTED
        else receipt
        for answer, receipt in zip(answers, receipts, strict=True)
    ], []


def _unfit(answer: Decision, question: Interrupt, max_bytes: int) -> str:
    if answer.decision:
        return (
            f"the question has no rule: {answer.decision} with a response doesn't answer it; send approve "
            "or reject alone, or respond with the response"
        )
    if answer.response is None:
        return "None (null) is no answer"
    if problem := answer.problem("responder", "idempotency_key", "digest"):
        return problem
    try:
        check_answer(answer.response, max_bytes)
    except PayloadTooLarge as error:
        return str(error)
    if question.response_schema is None:
        return ""
    return mismatch(question.response_schema, codec.plain(codec.unpack(answer.response))) or ""


def check_answer(response: JSON, most: int) -> None:
    """Refuse an answer that is larger than `most` bytes or `MAX_ANSWER`.

    Raises:
        PayloadTooLarge: it is larger.
    """
    size = len(codec.dump_json(response))
    most = min(most, MAX_ANSWER)
    if size > most:
        raise PayloadTooLarge(
            f"the answer has {size:,} bytes, more than an answer may have ({most:,}). It was not "
            "stored, and the question stays open. Answer with a reference to the data."
        )


def _receipt_for(
    answer: Decision, interrupt: Interrupt | None, now: int, *, is_repeat: bool
) -> Receipt:
    """Return the receipt of one answer to a question in its present state."""
    if interrupt is None:
        return answer.receipt(ReceiptStatus.UNKNOWN, "no such question was asked")
    key = answer.idempotency_key
    same_key = key is not None and key == interrupt.idempotency_key
    if interrupt.rule is None and (
        is_repeat or (same_key and interrupt.status is InterruptStatus.ANSWERED)
    ):
        same_person = answer.responder == interrupt.responder
        if is_repeat or (same_person and answer.response == interrupt.response):
            return answer.receipt(ReceiptStatus.ACCEPTED, "")
        return answer.receipt(ReceiptStatus.REJECTED, OTHER_KEY)
    if refusal := _refusal(interrupt, answer.digest, now):
        return answer.receipt(*refusal)
    if interrupt.rule is not None:
        return answer.receipt(ReceiptStatus.FORBIDDEN, "the question is decided by votes")
    lender = answer.instead_of and plain_name(answer.instead_of)
    responder = lender or answer.responder
    if interrupt.assignees and responder not in interrupt.assignees:
        detail = "the question is assigned to other people"
        if answer.responder is None:
            detail = (
                "the question is assigned to certain people, and the answer names no responder"
            )
        return answer.receipt(ReceiptStatus.FORBIDDEN, detail)
    return answer.receipt(ReceiptStatus.ACCEPTED, f"for {lender}" if lender else "")


def repeated_vote(ballot: Ballot, voter_record: JSONMapping, nonce: str) -> Receipt | None:
    """Return the receipt that a repeated vote got earlier, from its voter's record; None for a new vote.

    Another vote under the key of an earlier one is refused.
    """
    jti = voter_record.get("jti")
    same = voter_record.get("nonce") == nonce or (jti and jti == ballots.jti_of(ballot))
    key = ballot.idempotency_key
    if not same and key is not None and key == voter_record.get("key"):
        is_withdrawn = voter_record["receipt"][0] == ReceiptStatus.WITHDRAWN_VOTE
        earlier = voter_record["effect"], voter_record.get("comment", ballot.comment)
        if (ballot.effect, ballot.comment) != earlier and not is_withdrawn:
            return ballots.receipt(ballot, ReceiptStatus.REJECTED, OTHER_KEY)
        same = True
    if not (same and voter_record.get("receipt")):
        return None
    status, *numbers = voter_record["receipt"]
    return ballots.receipt(ballot, ReceiptStatus(status), "", numbers)


def repeated_operation(
    operation: Operation, voter_record: JSONMapping, nonce: str
) -> Receipt | None:
    """Return the receipt that a repeated operation got earlier; None for a new one."""
    status, *marks = voter_record.get("operation", [""])
    same = any(
        mark and mark == earlier_mark
        for mark, earlier_mark in zip(ballots.marks(operation, nonce), marks, strict=False)
    )
    return ballots.receipt(operation, ReceiptStatus(status)) if same else None


def too_late(ballot: Submission, question: Interrupt, now: int) -> Receipt | None:
    """Return the refusal of a vote that is too late or has another digest; None for a good vote."""
    refusal = _refusal(question, ballot.digest, now)
    return ballots.receipt(ballot, *refusal) if refusal else None


def _refusal(
    question: Interrupt, digest: str | None, now: int
) -> tuple[ReceiptStatus, str] | None:
    """Return why a question takes no answer any more, or why this is not its digest; None if it does."""
    match question.status:
        case InterruptStatus.ANSWERED:
            who = plain_name(question.responder) if question.responder else "another person"
            decision = f"decided by {who}: {question.decision}"
            detail = f"already {decision if question.rule else f'answered by {who}'}"
            return ReceiptStatus.DUPLICATE, detail
        case InterruptStatus.WITHDRAWN:
            return ReceiptStatus.SUPERSEDED, "the question was withdrawn"
    if question.status is InterruptStatus.EXPIRED or question.is_over(now):
        return ReceiptStatus.EXPIRED, "the time to answer is over"
    if digest not in {None, question.digest}:
        return ReceiptStatus.REJECTED, "the digest doesn't match the open question"
    return None


def by_visit(answers: Sequence[Decision]) -> dict[tuple[str, str, int], list[Decision]]:
    """Group answers by the run, node and visit that asked."""
    groups: dict[tuple[str, str, int], list[Decision]] = {}
    for answer in answers:
        address = address_of(answer.interrupt_id)
        if address is not None:
            groups.setdefault((address.run_id, address.node_id, address.visit), []).append(
                answer
            )
    return groups
