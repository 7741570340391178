"""Answers to questions, and questions that are withdrawn.

Answers are checked before anything is applied, and a set of them is applied whole or not at all. A bad
answer is refused with the place and the reason; its question stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runner.approvals import freezing
from runner.approvals.votes import apply_vote
from runner.errors import ConflictError, NotFoundError, PayloadTooLarge, ResponseError
from runner.execution import ids
from runner.execution.engine import Engine
from runner.records import codec, size_limits, validation
from runner.records.interrupts import Decision, Interrupt, Receipt, ReceiptStatus, address_of
from runner.records.run import RunRecord
from runner.records.validation import mismatch
from runner.store.receipts import receipts_for
from runner.store.requests import AnswerQuestions, WithdrawQuestion


def apply_decisions(
    engine: Engine, decisions: Sequence[Decision], *, queued: bool = False
) -> list[Receipt]:
    """Apply a set of decisions, all or none; each gets a receipt.

    On a question with a rule a decision is a vote: votes are counted one by one, after the answers of the
    set, and only where those were accepted. `queued` ones came to any process that reads the queue.

    Raises:
        DirectoryError: who a voter is can't be looked up now; that vote was not counted.
        ConflictError: a queued vote is on a question of a graph that this process doesn't have.
    """
    questions = engine.store.interrupts([decision.interrupt_id for decision in decisions])
    pairs = list(zip(decisions, questions, strict=True))
    plain = [pair for pair in pairs if pair[1] is None or pair[1].rule is None]
    receipts = _apply_answers(engine, plain) if plain else []
    is_refused = any(receipt.status is not ReceiptStatus.ACCEPTED for receipt in receipts)
    detail = "another answer of the same set was refused, so this vote was not counted"
    answer_receipts = iter(receipts)
    return [
        next(answer_receipts)
        if question is None or question.rule is None
        else decision.receipt(ReceiptStatus.REJECTED, detail)
        if is_refused
        else apply_vote(engine, decision, question, queued=queued)
        for decision, question in pairs
    ]


def _apply_answers(
    engine: Engine, pairs: Sequence[tuple[Decision, Interrupt | None]]
) -> list[Receipt]:
    answers = [decision.as_answer() for decision, _ in pairs]
    questions = [question for _, question in pairs]
    reasons = refusals(answers, questions, engine.store.max_bytes)
    if reasons:
        return refuse(answers, questions, reasons)
    reply = engine.store.do(AnswerQuestions(answers, ids.nonce()))
    receipts = reply.receipts
    engine.ring(reply)
    return freezing.noted(engine, receipts)


def withdraw(engine: Engine, interrupt_id: str, reason: str, *, reask: bool) -> None:
    """Withdraw an open question; with `reask` its node runs on at once and may ask it again.

    Raises:
        NotFoundError: it was never asked.
        ConflictError: it is not open any more. UsageError: the reason is no text, or too long.
    """
    word = engine.ring(
        engine.store.do(WithdrawQuestion(interrupt_id, validation.reason(reason), reask=reask))
    ).word
    if word == "unknown":
        raise NotFoundError(f"no question {interrupt_id!r} was asked.")
    if word == "closed":
        raise ConflictError(
            f"the question {interrupt_id} is not open any more: it was answered, has expired or was "
            "withdrawn. Nothing was changed."
        )


def check_run(
    run_id: str, answers: Sequence[Decision], peek: Callable[[str], RunRecord | None]
) -> None:
    """Refuse a set in which a question belongs neither to this run nor to one nested in it.

    Raises:
        ResponseError: there is such a question; nothing was applied.
    """
    run = peek(run_id)
    for answer in answers:
        address = address_of(answer.interrupt_id)
        asking = peek(address.run_id) if address and address.run_id != run_id else None
        if run is None or asking is None:
            continue  # its own, or one that was never asked: the store gives that its receipt
        if asking.root != run.root or not asking.path.startswith(run.path):
            raise ResponseError(
                f"the question {answer.interrupt_id} is of run {asking.run_id}, not of run {run_id} or a run "
                "inside it; nothing was applied. Answer it there, or with client.respond."
            )


def refusals(
    answers: Sequence[Decision],
    questions: Sequence[Interrupt | None],
    max_bytes: int = size_limits.MAX_RESULT,
) -> dict[str, str]:
    """Map the ids of questions whose answers are None, too large or don't fit their schema to the reason."""
    reasons = {
        answer.interrupt_id: _reason(answer, question, max_bytes)
        for answer, question in zip(answers, questions, strict=True)
    }
    return {interrupt_id: reason for interrupt_id, reason in reasons.items() if reason}


def _reason(answer: Decision, question: Interrupt | None, max_bytes: int) -> str:
    if answer.response is None:
        return "None (null) is no answer"
    if problem := answer.problem("responder", "idempotency_key", "digest"):
        return problem
    try:
        size_limits.check_answer(answer.response, max_bytes)
    except PayloadTooLarge as error:
        return str(error)
    if question is None or not question.is_open or question.response_schema is None:
        return ""
    return mismatch(question.response_schema, codec.plain(codec.unpack(answer.response))) or ""


def refuse(
    answers: Sequence[Decision], questions: Sequence[Interrupt | None], reasons: Mapping[str, str]
) -> list[Receipt]:
    """Write the receipts of a refused set: one answer is bad, so none is applied.

    An answer that would be refused anyway (a duplicate, one to an unknown question) gets that receipt.
    """
    receipts, _ = receipts_for(answers, questions, lambda _: "", "-", 0)
    usable = {ReceiptStatus.ACCEPTED, ReceiptStatus.REJECTED}
    for position, (answer, receipt) in enumerate(zip(answers, receipts, strict=True)):
        if answer.interrupt_id in reasons and receipt.status in usable:
            receipts[position] = answer.receipt(
                ReceiptStatus.REJECTED, reasons[answer.interrupt_id]
            )
        elif receipt.status is ReceiptStatus.ACCEPTED:
            detail = "another answer of the same set was refused, so none was applied"
            receipts[position] = answer.receipt(ReceiptStatus.REJECTED, detail)
    return receipts
