"""Answers to questions, and the withdrawal of questions.

Answers are checked before anything is applied, and a set of them is applied whole or not at all. A
bad answer is refused with the place and the reason; its question stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.approvals import freezing
from runner.approvals.rules import Principal, plain_name
from runner.approvals.votes import answer_of_absent, apply_vote, lend, principal_of
from runner.errors import ConflictError, NotFoundError, ResponseError, UsageError
from runner.execution.engine import Engine
from runner.records import validation
from runner.records.interrupts import Decision, Receipt, ReceiptStatus, address_of, run_of
from runner.records.run import RunRecord
from runner.store.requests import AnswerQuestions, WithdrawQuestion, new_nonce


def apply_decisions(
    engine: Engine, decisions: Sequence[Decision], *, queued: bool = False
) -> list[Receipt]:
    """Apply a set of decisions, all or none; each gets a receipt.

    On a question with a rule a decision is a vote. Votes are counted one by one, after the answers
    of the set, and only if those were accepted. `queued` decisions come from a queue, which
    any process may read.

    Raises:
        DirectoryError: a voter's identity can't be looked up now; that vote was not counted.
        ConflictError: a queued vote is on a question of a graph that this process doesn't have.
    """
    # Most decisions are plain answers, so answer first: the receipts show which questions have rules.
    receipts = [] if any(each.decision for each in decisions) else _answer(engine, decisions)
    if receipts and all(receipt.status is ReceiptStatus.ACCEPTED for receipt in receipts):
        return receipts
    ids = [decision.interrupt_id for decision in decisions]
    voter = decisions[0].decider() if len(ids) == 1 else None
    questions = engine.store.interrupts(ids, voter.principal.key if voter else "")
    votes = {question.id: question for question in questions if question and question.rule}
    answers = [
        answer_of_absent(engine, each.as_answer(), question)
        for each, question in zip(decisions, questions, strict=True)
        if each.interrupt_id not in votes
    ]
    if receipts and not votes and not any(answer.instead_of for answer in answers):
        return receipts
    receipts = _answer(engine, answers) if answers else []
    is_refused = any(receipt.status is not ReceiptStatus.ACCEPTED for receipt in receipts)
    detail = "another answer of the same set was refused, so this vote was not counted"
    answer_receipts = iter(receipts)
    return [
        next(answer_receipts)
        if decision.interrupt_id not in votes
        else decision.receipt(ReceiptStatus.REJECTED, detail)
        if is_refused
        else apply_vote(engine, decision, votes[decision.interrupt_id], queued=queued)
        for decision in decisions
    ]


def _answer(engine: Engine, answers: Sequence[Decision]) -> list[Receipt]:
    request = AnswerQuestions(answers, new_nonce(), engine.store.max_bytes)
    receipts = engine.ring(engine.store.do(request)).receipts
    if engine.freezes.known:
        return [freezing.with_freeze(engine, receipt) for receipt in receipts]
    return list(receipts)


def withdraw(
    engine: Engine,
    interrupt_id: str,
    reason: str,
    *,
    reask: bool,
    by: Principal | str | None = None,
    to: Sequence[str] = (),
) -> None:
    """Withdraw an open question, on behalf of `by`; with `reask` its node runs on and may ask again.

    A question without a rule is then assigned `to` these people.

    Raises:
        NotFoundError: it was never asked. ConflictError: it is not open any more.
        UsageError: the reason isn't a text, or is too long, or `by` isn't a principal.
    """
    who = principal_of(by).key if by else ""
    request = WithdrawQuestion(interrupt_id, validation.reason(reason), reask, who, to)
    word = engine.ring(engine.store.do(request)).word
    if word == "unknown":
        raise NotFoundError(f"no question {interrupt_id!r} was asked.")
    if word == "closed":
        raise ConflictError(
            f"the question {interrupt_id} is not open any more: it was answered, has expired or was "
            "withdrawn. Nothing was changed."
        )


def reassign(
    engine: Engine,
    interrupt_id: str,
    to: Principal | str,
    reason: str,
    *,
    instead_of: Principal | str | None = None,
    until: int | None = None,
    by: Principal | str | None = None,
) -> Receipt:
    """Have another person decide an open question, on behalf of an operator (`by`), with a reason.

    A question without a rule is withdrawn and asked again of that person. With a rule they may vote
    in the place of an eligible person (`instead_of`; by default the only one named), within the
    rule's `delegate`, `until` a time (ms) if one is given.

    Raises:
        NotFoundError: it was never asked. ConflictError: it is not open any more.
        UsageError: the reason is missing, nobody or more than one could be replaced, the time is past or
            the question has no rule, and so can't return then; or the rule requires signatures, so that only
            the person themselves can let another vote.
        DirectoryError: groups can't be looked up now.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("a reassignment needs a reason.")
    (question,), person = engine.store.interrupts([interrupt_id]), principal_of(to)
    if question is None or question.rule is None:
        if until is not None:
            raise UsageError(
                "a question without a rule is reassigned permanently, so `until` can't be "
                "used; nothing was changed. Leave it out."
            )
        name = plain_name(person.key)
        withdraw(engine, interrupt_id, reason, reask=True, by=by, to=[name])
        detail = f"withdrawn, and asked again of {name}"
        return Receipt(ReceiptStatus.ACCEPTED, interrupt_id, run_of(interrupt_id), detail)
    return lend(
        engine,
        question,
        person,
        validation.reason(reason),
        instead_of=principal_of(instead_of) if instead_of else None,
        until=until,
        by=principal_of(by).key if by else "",
    )


def check_run(
    run_id: str, answers: Sequence[Decision], peek: Callable[[str], RunRecord | None]
) -> None:
    """Refuse a set in which a question belongs neither to this run nor to a run nested in it.

    Raises:
        ResponseError: a question belongs elsewhere; nothing was applied.
    """
    run = peek(run_id)
    for answer in answers:
        address = address_of(answer.interrupt_id)
        asking = peek(address.run_id) if address and address.run_id != run_id else None
        if run is None or asking is None:
            continue  # this run asked it, or nobody did: the store gives the receipt
        if asking.root != run.root or not asking.path.startswith(run.path):
            raise ResponseError(
                f"the question {answer.interrupt_id} belongs to run {asking.run_id}, not to run {run_id} or "
                "a run inside it; nothing was applied. Answer it there, or with client.respond."
            )
