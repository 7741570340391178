"""Votes on a question with a rule, and the other operations: delegate, claim, release, comment, withdraw.

Each reads the question, the standing of its votes and one person's record, so its cost doesn't
grow with the number of voters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from runner import scheduler
from runner.approvals import ballots, rules
from runner.approvals.ballots import Ballot, Operation, PendingDecision, Standing, Submission
from runner.approvals.rules import Rule, VoterFacts
from runner.immutable import immutable
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import (
    Decision,
    Interrupt,
    Receipt,
    ReceiptStatus,
    address_of,
    run_of,
)
from runner.records.run import EventKind
from runner.scheduler.changes import TimerKind
from runner.store.apply_transition import (
    JTI,
    RunT,
    StoredRun,
    UnitOfWork,
    answer_payload,
    set_timers,
    short_value,
)
from runner.store.interface import Reply, Request
from runner.store.receipts import repeated_operation, repeated_vote, too_late
from runner.store.requests import asking, make, note

MOST_LENT = 100
"""Maximum number of people who may vote in place of others on one question."""

WITHOUT_RULE = Rule(kinds=rules.KINDS)


def rule_of(question: Interrupt) -> Rule:
    """Return a question's rule; without one, everyone who may answer may also coordinate."""
    return WITHOUT_RULE if question.rule is None else Rule.thawed(question.rule)


@immutable
class CastVote(Request[Reply]):
    """Request to count one vote on a question with a rule; a vote that meets the rule answers it."""

    verb = "vote"
    ballot: Ballot
    nonce: str

    @property
    def run_id(self) -> str:
        """The run that asked the question."""
        return run_of(self.ballot.interrupt_id)

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        """Count the vote; for a repeated one, return the earlier receipt."""
        ballot = self.ballot
        nonce = self.nonce
        name = ballot.interrupt_id
        voter = ballot.voter
        key = voter.principal.key
        now = transaction.clock()
        state = _state(transaction, ballot, nonce)
        if isinstance(state, Reply):
            return state
        run, question, standing, voter_record = state
        rule = rule_of(question)
        facts = ballots.facts(question, ballot, standing, voter_record, now)
        count, vote_counted = rules.cast(
            rule, standing.tally, voter, rules.Vote(key, ballot.decision, ballot.effect), facts
        )
        receipt = ballots.receipt(
            ballot, ReceiptStatus(count.word), count.detail, count.numbers
        )
        if count.word in {"duplicate", "forbidden"}:
            return _refuse(transaction, run, ballot, receipt)
        number = standing.votes + 1
        stage = 0 if count.tally.round > standing.tally.round else standing.tally.stage
        selector = rules.used_selector(rule, voter, facts, standing.tally.stage)
        vote_record = ballots.stored_vote(
            ballot, vote_counted, number, (selector, stage, count.tally.round), now
        )
        if selector == rules.DELEGATED:
            loan = voter_record["lent"]
            vote_record["lent"] = loan.get("body", loan)
        # The person's earlier vote is void but kept: the worker counts all votes again in
        # order, and without it the rounds and stages of later votes would differ.
        run.put_vote(name, number, vote_record)
        run.put_voter(
            name, key, ballots.counted_record(ballot, voter_record, vote_record, receipt, nonce)
        )
        if (jti := ballots.jti_of(ballot)) is not None:
            run.put_voter(name, f"{JTI}{jti}", {"by": key})
        spent = dict(standing.spent)
        lent = dict(standing.lent)
        if vote_counted.weight and selector == rules.DELEGATED:
            spent[lent[key]] = count.tally.round
        elif vote_counted.weight:  # they have no vote left for another person
            lent.pop(key, None)
        edited_at = standing.edited_at
        if count.tally.round > standing.tally.round:
            edited_at = ballots.proof_of(ballot).get("iat", 0)
        pending = None
        if count.word == "accepted":
            until = now + round(rule.undo * 1000)
            if question.expires_in is not None:
                until = min(until, question.ends_at)
            pending = PendingDecision(
                key,
                now,
                until,
                ballots.answer(question, ballot, count),
                nonce,
                standing.tally,
                standing.spent,
                standing.edited_at,
                voter_record,
                standing.lent,
            )
        run.put_standing(
            name,
            replace(
                standing,
                tally=count.tally,
                votes=number,
                lent=lent,
                spent=spent,
                edited_at=edited_at,
                pending=pending if rule.undo else None,
            ),
        )
        reply = note(
            transaction,
            run,
            EventKind.INTERRUPT_VOTED,
            name,
            ballots.vote_data(
                ballot, vote_record, receipt, voter_record, short_value(ballot.response)
            ),
        )
        if pending is not None:
            reply = _decide(transaction, run, question, pending) or reply
        return replace(reply, receipts=[receipt])


def _state(
    transaction: UnitOfWork[RunT], submission: Ballot | Operation, nonce: str
) -> tuple[RunT, Interrupt, Standing, JSONMapping] | Reply:
    """Return the run, question, standing and the person's record, or a reply that refuses them."""
    name = submission.interrupt_id
    now = transaction.clock()
    is_vote = isinstance(submission, Ballot)
    run = asking(transaction, name)
    question = run.question(name) if run else None
    if run is None or question is None or (is_vote and question.rule is None):
        detail = "the question has no rule" if question else "no such question was asked"
        return Reply(
            "unknown", receipts=[ballots.receipt(submission, ReceiptStatus.UNKNOWN, detail)]
        )
    standing = run.standing(name)
    voter_record = run.voter(name, submission.voter.principal.key)
    earlier = (
        (
            repeated_vote(submission, voter_record, nonce)
            if isinstance(submission, Ballot)
            else repeated_operation(submission, voter_record, nonce)
        )
        or ballots.refuse_decided(submission, question, standing, now)
        or too_late(submission, question, now)
        or ballots.refuse_untimely(submission, question, standing, now)
        or ballots.refuse_reused(submission, voter_record, now)
        or (_taken(run, submission) if is_vote else None)
    )
    if earlier is not None:
        return Reply("refused", receipts=[earlier])
    if (copied := _copied(transaction, submission)) is not None:
        return _refuse(transaction, run, submission, copied)
    return run, question, standing, voter_record


def _decide(
    transaction: UnitOfWork[RunT], run: RunT, question: Interrupt, pending: PendingDecision
) -> Reply | None:
    """Continue the node, or set the timer that continues it once the decision is final."""
    run_id = run.record.run_id
    name = question.id
    if question.escalates_at:
        transaction.drop_timer(TimerKind.ESCALATE, run_id, name)
    if pending.until == pending.at:
        run.decide(question, pending.answer, pending.nonce, pending.at)
        return _resume(transaction, run, pending.answer)
    for kind in (TimerKind.EXPIRE, TimerKind.REMIND):
        transaction.drop_timer(kind, run_id, name)
    transaction.set_timer(TimerKind.DECIDE, run_id, name, pending.until)
    return None


def _resume(transaction: UnitOfWork[RunT], run: RunT, answer: Decision) -> Reply:
    """Make the transition for the decision of the votes on a question."""
    address = address_of(answer.interrupt_id)
    if address is None:
        return Reply("unknown")
    payloads: JSONObject = {answer.interrupt_id: answer_payload(answer)}
    return make(
        transaction,
        run.record.run_id,
        scheduler.answer,
        address.node_id,
        address.visit,
        list(payloads),
        payloads=payloads,
    )


def _taken(run: StoredRun, ballot: Submission) -> Receipt | None:
    """Refuse a vote that reuses the `jti` of another vote: the worker counts a `jti` once per question."""
    jti = ballots.jti_of(ballot)
    if jti is None or not run.voter(ballot.interrupt_id, f"{JTI}{jti}"):
        return None
    return ballots.receipt(
        ballot,
        ReceiptStatus.DUPLICATE,
        "a vote with this jti has counted; sign each vote with its own jti",
    )


def _copied(transaction: UnitOfWork[RunT], operation: Submission) -> Receipt | None:
    """Refuse a passkey that may have been copied; otherwise store its signature count."""
    if operation.voter.counter is None:
        return None
    passkey, count = operation.voter.counter
    refusal = ballots.refuse_copied(operation, transaction.signature_count(passkey))
    if refusal is None:
        transaction.put_signature_count(passkey, count)
    return refusal


def _refuse(
    transaction: UnitOfWork[RunT], run: RunT, operation: Ballot | Operation, receipt: Receipt
) -> Reply:
    """Record that a vote or an operation was forbidden; a duplicate leaves no record."""
    if receipt.status is not ReceiptStatus.FORBIDDEN:
        return Reply("refused", receipts=[receipt])
    choice = operation.decision if isinstance(operation, Ballot) else operation.kind
    reply = note(
        transaction,
        run,
        EventKind.INTERRUPT_REFUSED,
        operation.interrupt_id,
        {**ballots.identity(operation), "decision": choice, "detail": receipt.detail},
    )
    return replace(reply, receipts=[receipt])


# Operations other than voting. None of them decides a question.


@immutable
class Case:
    """An operation on a question, and everything that decides whether it may be applied."""

    rule: Rule
    facts: VoterFacts
    operation: Operation
    standing: Standing
    voter_record: JSONMapping
    delegate_record: JSONMapping
    now: int

    @property
    def key(self) -> str:
        """Key of the person who sent the operation."""
        return self.operation.voter.principal.key

    def barred(self) -> Receipt | None:
        """Refuse a person who may not vote."""
        why = rules.barred(
            self.rule, self.operation.voter, self.facts, self.standing.tally.stage
        )
        return self.refusal(why) if why else None

    def unsure(self) -> Receipt | None:
        """Refuse a person whose identity isn't proven well enough."""
        why = rules.unsure(self.rule, self.operation.voter, self.standing.tally.stage)
        return self.refusal(why) if why else None

    def refusal(self, detail: str, status: ReceiptStatus = ReceiptStatus.FORBIDDEN) -> Receipt:
        """Return a receipt with the reason for refusing."""
        return ballots.receipt(self.operation, status, detail)


@immutable
class Done:
    """Changes made by an operation: the standing, the person's record, a vote to remove, its event's data.

    `loan` is stored in the record of the person who may vote instead.
    """

    standing: Standing
    data: JSONMapping = field(default_factory=dict)
    record: JSONMapping | None = None
    loan: JSONMapping | None = None
    gone: int = 0
    status: ReceiptStatus = ReceiptStatus.ACCEPTED


@immutable
class ApplyOperation(Request[Reply]):
    """Request to claim, release, delegate, comment or withdraw a vote; a repeat gets its receipt again."""

    verb = "act"
    operation: Operation
    nonce: str

    @property
    def run_id(self) -> str:
        """The run that asked the question."""
        return run_of(self.operation.interrupt_id)

    def plan(self, transaction: UnitOfWork[RunT]) -> Reply:
        """Apply the operation if the person may do it."""
        operation = self.operation
        nonce = self.nonce
        name = operation.interrupt_id
        now = transaction.clock()
        state = _state(transaction, operation, nonce)
        if isinstance(state, Reply):
            return state
        run, question, standing, voter_record = state
        facts = ballots.facts(question, operation, standing, voter_record, now)
        to = operation.to and operation.to.principal.key
        delegate_record = run.voter(name, to) if to else {}
        apply, event = _OPERATIONS[operation.kind]
        outcome = apply(
            Case(
                rule_of(question),
                facts,
                operation,
                standing,
                voter_record,
                delegate_record,
                now,
            )
        )
        if isinstance(outcome, Receipt):
            return _refuse(transaction, run, operation, outcome)
        if outcome.gone:
            run.put_vote(name, outcome.gone, None)
        if outcome.loan is not None and to:
            run.assign(name, rules.plain_name(to))
            run.put_voter(name, to, {**delegate_record, "lent": outcome.loan})
        voter_record = ballots.with_signature(
            operation, voter_record if outcome.record is None else outcome.record, now
        )
        run.put_voter(
            name,
            operation.voter.principal.key,
            {
                **voter_record,
                "operation": [str(outcome.status), *ballots.marks(operation, nonce)],
            },
        )
        run.put_standing(name, outcome.standing)
        if standing.pending and not outcome.standing.pending:
            transaction.drop_timer(TimerKind.DECIDE, run.record.run_id, name)
            set_timers(transaction, run, question)
        reply = note(
            transaction,
            run,
            event,
            name,
            {**ballots.identity(operation), **outcome.data},
        )
        return replace(reply, receipts=[ballots.receipt(operation, outcome.status)])


def _claim(case: Case) -> Done | Receipt:
    """Show that a person works on a question: nobody else can claim it until the claim ends."""
    standing = case.standing
    if refusal := case.barred():
        return refusal
    if standing.claim not in {"", case.key} and standing.claimed_until > case.now:
        return case.refusal(
            f"claimed by {rules.plain_name(standing.claim)}", ReceiptStatus.DUPLICATE
        )
    until = case.now + case.operation.ttl
    return Done(replace(standing, claim=case.key, claimed_until=until), {"until": until})


def _release(case: Case) -> Done | Receipt:
    if refusal := case.unsure():
        return refusal
    if case.standing.claim != case.key:
        return case.refusal("it is not claimed by you")
    return Done(replace(case.standing, claim="", claimed_until=0))


def _comment(case: Case) -> Done | Receipt:
    """Record a comment by someone who may vote, or who asked for the run."""
    refusal = case.unsure() if case.key in case.facts.requesters else case.barred()
    comments = case.standing.comments + 1
    return refusal or Done(
        replace(case.standing, comments=comments), {"comment": case.operation.comment}
    )


def _delegate(case: Case) -> Done | Receipt:
    """Delegate a vote; delegating to yourself takes it back."""
    rule = case.rule
    to = case.operation.to
    stage = case.standing.tally.stage
    lent = case.standing.loans(case.now)
    if refusal := replace(case, facts=replace(case.facts, gave=False)).barred():
        return refusal
    if to is None or rule.delegate == "none" or case.key in lent:
        return case.refusal("a vote on this question can't be delegated")
    if case.voter_record.get("round") == case.standing.tally.round:
        return case.refusal("you have voted", ReceiptStatus.DUPLICATE)
    if case.standing.spent.get(case.key) == case.standing.tally.round:
        return case.refusal("another has voted in your place", ReceiptStatus.DUPLICATE)
    lent = {stand_in: by for stand_in, by in lent.items() if by != case.key}
    ends = {by: end for by, end in case.standing.ends.items() if by in lent.values()}
    if to.principal.key == case.key:
        return Done(replace(case.standing, lent=lent, ends=ends), {"to": case.key})
    if case.delegate_record.get("round") == case.standing.tally.round:
        return case.refusal(
            "they have voted, so your vote would be lost: name another", ReceiptStatus.DUPLICATE
        )
    loan = ballots.loan(case.operation, stage)
    proves = "body" in loan  # then the delegate's groups come from their own proof
    if not proves and not rules.may_stand_in(rule.delegate, case.operation.voter.groups, to):
        return case.refusal("only a member of your own group may vote in your place")
    if to.principal.key in lent or len(lent) >= MOST_LENT:
        return case.refusal("they vote in another's place, or too many do")
    why = rules.barred(rule, to, replace(case.facts, lent=stage, gave=False), stage)
    if why and why != rules.unsure(rule, to, stage):
        return case.refusal(f"they may not vote in your place: {why}")
    lent[to.principal.key] = case.key
    data: JSONObject = {"to": to.principal.key}
    if case.operation.until:
        data["until"] = ends[case.key] = case.operation.until
    if case.operation.by:
        data |= {"instead_of": case.key, "comment": case.operation.comment}
    return Done(replace(case.standing, lent=lent, ends=ends), data, loan=loan)


def _withdraw(case: Case) -> Done | Receipt:
    """Take back a vote of the open stage; an edit that voided other votes can't be taken back."""
    voter_record = dict(case.voter_record)
    tally = case.standing.tally
    # Voters may take their vote back even if they no longer stand in for somebody.
    is_now = (voter_record.get("round"), voter_record.get("stage")) == (
        tally.round,
        tally.stage,
    )
    if refusal := case.unsure() if is_now else case.barred():
        return refusal
    if voter_record.get("round") != tally.round:
        return case.refusal("you have no vote that counts", ReceiptStatus.REJECTED)
    has_other_votes = tally.effects.get(voter_record["effect"], 0) > voter_record["weight"]
    built_on = voter_record["decision"] == "edit" and (
        case.rule.edit == "resets" or has_other_votes
    )
    pending = case.standing.pending
    if pending is None and (voter_record["stage"] != tally.stage or built_on):
        detail = (
            "it has voided the votes before it, so it can't be taken back: edit again, even to the call "
            "as it was shown"
            if built_on and not has_other_votes
            else "others have built on this vote: it can't be taken back"
        )
        return case.refusal(detail, ReceiptStatus.REJECTED)
    tally = rules.without(
        tally,
        rules.Vote(
            case.key, voter_record["decision"], voter_record["effect"], voter_record["weight"]
        ),
    )
    vote_number = voter_record["n"]
    for name in ("n", "round", "jti"):
        voter_record.pop(name, None)
    # If the vote's message is delivered again, it must be recognized as withdrawn.
    voter_record["receipt"] = [str(ReceiptStatus.WITHDRAWN_VOTE)]
    spent = dict(case.standing.spent)
    spent.pop(case.standing.lent.get(case.key, ""), None)
    standing = replace(case.standing, tally=tally, spent=spent)
    if pending is not None:
        # An earlier vote, from before an edit, counts again.
        voter_record |= {
            name: pending.voter[name] for name in VOTE_FIELDS if name in pending.voter
        }
        standing = replace(
            case.standing,
            tally=pending.tally,
            lent=pending.lent,
            spent=pending.spent,
            edited_at=pending.edited_at,
            pending=None,
        )
    return Done(
        standing,
        {"decision": "withdrawn", "prev_vote": vote_number},
        voter_record,
        gone=vote_number,
        status=ReceiptStatus.WITHDRAWN_VOTE,
    )


VOTE_FIELDS = ("n", "round", "stage", "decision", "effect", "weight")
"""Fields of a voter's record that describe the vote that counts."""

_OPERATIONS: Mapping[str, tuple[Callable[[Case], Done | Receipt], EventKind]] = {
    "withdraw_vote": (_withdraw, EventKind.INTERRUPT_VOTED),
    "delegate": (_delegate, EventKind.INTERRUPT_DELEGATED),
    "claim": (_claim, EventKind.INTERRUPT_CLAIMED),
    "release": (_release, EventKind.INTERRUPT_RELEASED),
    "comment": (_comment, EventKind.INTERRUPT_COMMENTED),
}
"""The function that applies each operation, and the event that it leaves."""
