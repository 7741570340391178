"""Answers to questions, and questions that are withdrawn.

Answers are checked before anything is applied, and a set of them is applied whole or not at all. A bad
answer is refused with the place and the reason; its question stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from runner.approvals import freezing
from runner.approvals.ballots import Choice
from runner.approvals.rules import Principal
from runner.approvals.votes import apply_vote, plain_answer
from runner.errors import ConflictError, NotFoundError, PayloadTooLarge, ResponseError, UsageError
from runner.execution import ids
from runner.execution.engine import Engine
from runner.records import codec, size_limits, validation
from runner.records.interrupts import Answer, Interrupt, Receipt, ReceiptStatus, address_of
from runner.records.run import RunRecord
from runner.records.validation import mismatch
from runner.store.receipts import receipts_for


def apply_answers(engine: Engine, answers: Sequence[Answer]) -> list[Receipt]:
    """Apply a set of answers, all or none; each gets a receipt.

    To a question with a rule an answer is a vote, by the responder: votes are counted one by one, after the
    answers of the set, and only where those were accepted.
    """
    questions = engine.store.interrupts([answer.interrupt_id for answer in answers])
    asked = list(zip(answers, questions, strict=True))
    votes = {
        id(answer): (_choice(answer), question)
        for answer, question in asked
        if question is not None and question.rule is not None
    }
    if not votes and not any(answer.decision for answer in answers):
        return _apply_set(engine, answers, questions)
    plain = [
        (plain_answer(_choice(answer)) if answer.decision else answer, question)
        for answer, question in asked
        if id(answer) not in votes
    ]
    receipts = (
        _apply_set(engine, [each for each, _ in plain], [question for _, question in plain])
        if plain
        else []
    )
    refused = any(receipt.status is not ReceiptStatus.ACCEPTED for receipt in receipts)
    of_answers = iter(receipts)
    return [
        next(of_answers)
        if id(answer) not in votes
        else _rejected(
            answer, "another answer of the same set was refused, so this vote was not counted"
        )
        if refused
        else apply_vote(engine, *votes[id(answer)])
        for answer in answers
    ]


def apply_choice(engine: Engine, choice: Choice) -> Receipt:
    """Count one vote, or apply it as the answer that it means to a question without a rule.

    Raises:
        DirectoryError: who the voter is can't be looked up now; nothing was counted.
    """
    question = engine.store.interrupts([choice.interrupt_id])[0]
    if question is not None and question.rule is not None:
        return apply_vote(engine, choice, question)
    return _apply_set(engine, [plain_answer(choice)], [question])[0]


def _choice(answer: Answer) -> Choice:
    """Read an answer as a vote: its responder decides."""
    by = None
    if answer.responder is not None:
        with suppress(UsageError):
            by = Principal.read(answer.responder)
    key = answer.idempotency_key
    decision = answer.decision or "respond"
    return Choice(
        answer.interrupt_id, decision, by, answer.response, answer.digest, answer.comment, key
    )


def _apply_set(
    engine: Engine, answers: Sequence[Answer], questions: Sequence[Interrupt | None]
) -> list[Receipt]:
    reasons = refusals(answers, questions, engine.store.max_bytes)
    if reasons:
        return refuse(answers, questions, reasons)
    receipts, reply = engine.store.answer(answers, ids.nonce(), questions)
    engine.ring(reply)
    return freezing.noted(engine, receipts)


def withdraw(engine: Engine, interrupt_id: str, reason: str, *, reask: bool) -> None:
    """Withdraw an open question; with `reask` its node runs on at once and may ask it again.

    Raises:
        NotFoundError: it was never asked.
        ConflictError: it is not open any more. UsageError: the reason is no text, or too long.
    """
    word = engine.ring(
        engine.store.withdraw(interrupt_id, validation.reason(reason), reask=reask)
    ).word
    if word == "unknown":
        raise NotFoundError(f"no question {interrupt_id!r} was asked.")
    if word == "closed":
        raise ConflictError(
            f"the question {interrupt_id} is not open any more: it was answered, has expired or was "
            "withdrawn. Nothing was changed."
        )


def check_run(
    run_id: str, answers: Sequence[Answer], peek: Callable[[str], RunRecord | None]
) -> None:
    """Refuse a set in which a question belongs neither to this run nor to one nested in it.

    Raises:
        ResponseError: there is such a question; nothing was applied.
    """
    own = peek(run_id)
    for answer in answers:
        address = address_of(answer.interrupt_id)
        asking = peek(address.run_id) if address and address.run_id != run_id else None
        if own is None or asking is None:
            continue  # its own, or one that was never asked: the store gives that its receipt
        if asking.root != own.root or not asking.path.startswith(own.path):
            raise ResponseError(
                f"the question {answer.interrupt_id} is of run {asking.run_id}, not of run {run_id} or a run "
                "inside it; nothing was applied. Answer it there, or with client.respond."
            )


def refusals(
    answers: Sequence[Answer],
    questions: Sequence[Interrupt | None],
    max_bytes: int = size_limits.MAX_RESULT,
) -> dict[str, str]:
    """Map the ids of questions whose answers are None, too large or don't fit their schema to the reason."""
    reasons = {
        answer.interrupt_id: _reason(answer, question, max_bytes)
        for answer, question in zip(answers, questions, strict=True)
    }
    return {interrupt_id: reason for interrupt_id, reason in reasons.items() if reason}


def _reason(answer: Answer, question: Interrupt | None, max_bytes: int) -> str:
    if answer.response is None:
        return "None (null) is no answer"
    for name in ("responder", "idempotency_key", "digest"):
        value = getattr(answer, name)
        if value is not None and (problem := validation.problem(value)):
            return f"the {name} {problem}"
    try:
        size_limits.check_answer(answer.response, max_bytes)
    except PayloadTooLarge as error:
        return str(error)
    if question is None or not question.is_open or question.response_schema is None:
        return ""
    return mismatch(question.response_schema, codec.plain(codec.unpack(answer.response))) or ""


def refuse(
    answers: Sequence[Answer], questions: Sequence[Interrupt | None], reasons: Mapping[str, str]
) -> list[Receipt]:
    """Write the receipts of a refused set: one answer is bad, so none is applied.

    An answer that would be refused anyway (a duplicate, one to an unknown question) gets that receipt.
    """
    receipts, _ = receipts_for(answers, questions, lambda _: "", "-", 0)
    usable = {ReceiptStatus.ACCEPTED, ReceiptStatus.REJECTED}
    for place, (answer, receipt) in enumerate(zip(answers, receipts, strict=True)):
        if answer.interrupt_id in reasons and receipt.status in usable:
            receipts[place] = _rejected(answer, reasons[answer.interrupt_id])
        elif receipt.status is ReceiptStatus.ACCEPTED:
            receipts[place] = _rejected(
                answer, "another answer of the same set was refused, so none was applied"
            )
    return receipts


def _rejected(answer: Answer, detail: str) -> Receipt:
    address = address_of(answer.interrupt_id)
    return Receipt(
        ReceiptStatus.REJECTED, answer.interrupt_id, address.run_id if address else None, detail
    )
