"""Votes on a question with a rule: as they come in, as they are stored, and the effects they are for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from typing import Any, Literal

from runner.approvals import digests, rules
from runner.approvals.rules import Count, DecisionKind, Principal, Tally, Voter, VoterFacts
from runner.errors import UsageError
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.interrupts import Decision, Interrupt, Receipt, ReceiptStatus, run_of

SKEW = 60
"""Seconds by which the clocks of a door, a store and a worker may differ."""

MOST_SIGNATURES = 64
"""Maximum number of one person's signatures on one question that are remembered at once."""


@immutable
class Submission:
    """A person's vote or other operation on a question, as it comes in.

    `answered` has, by node, the principals who answered there, for nodes whose answerers the rule
    excludes. `body` is the message as it was signed. `shown_at` (ms) is when the door showed the
    question to the voter; 0 if the door doesn't say. `plain_issuer` is the issuer of names without
    one, see `rules.is_same_person`; `began` (ms) is when the run was started, by its id.
    """

    interrupt_id: str
    voter: Voter
    _: KW_ONLY
    digest: str | None = None
    comment: str = ""
    idempotency_key: str | None = None
    answered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    body: JSONMapping = field(default_factory=dict)
    shown_at: int = 0
    plain_issuer: str = ""
    began: int = 0


@immutable
class Ballot(Submission):
    """One vote as it comes in, judged as far as its question alone allows.

    `response` (packed) is the answer that the vote would give; `effect` is its digest. `away` has the
    keys of absent people for whom the voter may vote.
    """

    decision: DecisionKind
    response: JSON = None
    effect: str = ""
    away: frozenset[str] = frozenset()


@immutable
class Use:
    """One use of a decision: the digest of the effect and its idempotency key.

    `role` is "asks" if the visit that asked uses its decision, and "follows" if a node after it uses it
    once more. A finished effect has a `result`, the digest of its outcome, and a `status`: completed
    or failed. A call that nobody was asked about has the id of its `grant` instead of a question's.
    """

    interrupt_id: str
    effect: str
    key: str
    role: Literal["", "asks", "follows"] = ""
    result: str = ""
    status: str = ""
    grant: str = ""

    def allowed(self, earlier_use: JSONMapping | None) -> bool:
        """Return whether the decision may be used: for the first time, or again in the same try."""
        return earlier_use is None or (
            earlier_use["effect"] == self.effect
            and (
                earlier_use["key"] == self.key
                or (earlier_use.get("role"), self.role) == ("asks", "follows")
            )
        )

    def with_outcome(self, status: str, value: JSON) -> Use:
        """Return a copy with the outcome of a node, or the result of a tool."""
        return replace(self, result=digests.payload_digest(value), status=status)


@immutable
class Operation(Submission):
    """An operation on a question other than voting: see voting.py.

    `kind` is claim, release, delegate, comment or withdraw_vote. `to` is the delegate of a vote, `until`
    (ms) the end of the delegation (0: none), `ttl` the length of a claim in ms. When an absence lends a
    vote, `lent` has the absence's `body` and its `until`. `by` names an operator who gives a vote to
    another person, with the reason in the comment.
    """

    kind: str
    to: Voter | None = None
    until: int = 0
    ttl: int = 0
    lent: JSONMapping = field(default_factory=dict)
    by: str = ""


@codec.strict
@immutable
class PendingDecision:
    """A decision that takes effect at `until` (ms); before that, `by` may take it back.

    Then `answer`, `nonce` and the time of the vote (`at`, ms) are written as the question's answer. `tally`,
    `lent`, `spent` and `edited_at` come from the standing before that vote, `voter` the voter's record then.
    """

    by: str
    at: int
    until: int
    answer: Decision
    nonce: str
    tally: Tally
    spent: Mapping[str, int]
    edited_at: int
    voter: JSONMapping
    lent: Mapping[str, str] = field(default_factory=dict)


@codec.strict
@immutable
class Standing:
    """Standing of a question's votes: the tally, and the effects of other operations.

    `votes` counts all votes taken so far. `claim` is the key of the person who has claimed the
    question, until `claimed_until` (ms). `lent` maps the key of each stand-in to the key of the
    person they vote for; `ends` has the end of the loan (ms) by that person's key, if it has one, and
    `spent` the round in which the stand-in voted.
    `escalated` counts the steps of escalation so far. `edited_at` (seconds since 1970) is when the
    edit that voided earlier votes was signed. `pending` is the decision, if it can still be taken back.
    """

    v: int = 1
    tally: Tally = field(default_factory=Tally)
    votes: int = 0
    claim: str = ""
    claimed_until: int = 0
    lent: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    spent: Mapping[str, int] = field(default_factory=dict)
    escalated: int = 0
    comments: int = 0
    edited_at: int = 0
    pending: PendingDecision | None = None

    def loans(self, now: int) -> dict[str, str]:
        """Return the part of `lent` that has not ended."""
        return {to: by for to, by in self.lent.items() if now <= self.ends.get(by, now)}


def refuse_decided(
    operation: Submission, question: Interrupt, standing: Standing, now: int
) -> Receipt | None:
    """Refuse all operations while a decision is pending, except comments, and its voter withdrawing it."""
    pending = standing.pending
    if pending is None or not question.is_open:
        return None
    if isinstance(operation, Operation):
        is_own = operation.voter.principal.key == pending.by and now < pending.until
        if operation.kind == "comment" or (operation.kind == "withdraw_vote" and is_own):
            return None
    detail = f"already decided by {rules.plain_name(pending.by)}: {pending.answer.decision}"
    return receipt(operation, ReceiptStatus.DUPLICATE, detail)


def approved(question: Interrupt) -> str:
    """Return the effect of approving a question as it was shown; "" if it shows no action."""
    return "" if question.action is None else digests.digest("action", question.action)


def effect_of(question: Interrupt, decision: str, response: JSON) -> str:
    """Return the effect a vote is for: the digest of the call or of the answer; "" for a rejection.

    Raises:
        UnstorableError: the response has values that other languages would read as different ones.
    """
    return effect(question.id, question.action, decision, response)


def effect(interrupt_id: str, action: JSONMapping | None, decision: str, response: JSON) -> str:
    """Return the effect a vote is for, by the question's id and the action that it shows: see `effect_of`."""
    if decision == "reject":
        return ""
    if action is None or decision == "respond":
        return digests.digest(
            "effect", {"question": interrupt_id, "response": response}, "the response"
        )
    return digests.digest(
        "action",
        action if response is True else {**action, "args": response},
        "the new arguments",
    )


def decision_of(question: Interrupt, count: Count) -> str:
    """Name the decision that an accepted vote has made."""
    if count.decision in {"reject", "respond"} or question.action is None:
        return str(count.decision)
    return "approve" if count.effect == approved(question) else "edit"


def facts(
    question: Interrupt,
    operation: Submission,
    standing: Standing,
    voter_record: JSONMapping,
    now: int,
) -> VoterFacts:
    """Return the facts besides the rule that decide who may vote now; `voter_record` is the voter's own."""
    key = operation.voter.principal.key
    proof = proof_of(operation)
    return VoterFacts(
        requesters=question.requesters,
        answered=operation.answered,
        escalated=escalated(question, min(now, proof["exp"] * 1000) if proof else now),
        lent=lent(question, operation, standing, voter_record, now),
        gave=key in standing.loans(now).values()
        or standing.spent.get(key) == standing.tally.round,
        original=approved(question),
        voted_in=voter_record.get("round"),
        voted_for=voter_record.get("effect", ""),
        plain_issuer=operation.plain_issuer,
    )


def lent(
    question: Interrupt,
    operation: Submission,
    standing: Standing,
    voter_record: JSONMapping,
    now: int,
) -> int | None:
    """Return the stage in which a person may vote in another's place, or None."""
    loan = voter_record.get("lent")
    by = standing.loans(now).get(operation.voter.principal.key)
    if (
        loan is None
        or loan["by"] != by
        or question.rule is None
        or ("until" in loan and isinstance(operation, Ballot) and by not in operation.away)
    ):
        return None
    may = rules.may_stand_in(question.rule["delegate"], loan["groups"], operation.voter)
    return int(loan["stage"]) if may else None


def loan(operation: Operation, stage: int) -> JSONObject:
    """Return the record kept for a stand-in: whom they vote for, in which stage, and the lender's message."""
    body = operation.lent.get("body", operation.body)
    return {
        "by": operation.voter.principal.key,
        "groups": sorted(operation.voter.groups),
        "stage": stage,
        **{name: value for name, value in operation.lent.items() if name == "until"},
        **({"body": dict(body)} if isinstance(body, Mapping) and body.get("proof") else {}),
    }


def escalated(question: Interrupt, now: int) -> list[str]:
    """Return the selectors that escalation has made eligible by now (ms)."""
    due = zip(question.escalates_at, (question.rule or {}).get("escalate", ()), strict=False)
    return [entry for moment, (_, selectors) in due if moment <= now for entry in selectors]


def receipt(
    operation: Submission,
    status: ReceiptStatus,
    detail: str = "",
    numbers: Sequence[int] = (),
) -> Receipt:
    """Return the receipt of a vote or an operation; the numbers are have, need and against."""
    name = operation.interrupt_id
    return Receipt(status, name, run_of(name) or None, detail, *numbers)


def proof_of(operation: Submission) -> JSONMapping:
    """Return a message's proof without checking it; an empty one if it has none."""
    proof = operation.body.get("proof")
    return proof if isinstance(proof, dict) else {}


def jti_of(operation: Submission) -> JSON:
    """Return the id of the signature, which counts once; None if it has none."""
    return proof_of(operation).get("jti")


def signatures(voter_record: JSONMapping, now: int) -> JSONObject:
    """Return a person's remembered signatures: the expiry by jti, as long as a door may still take them."""
    ends_by_jti: Mapping[str, int] = voter_record.get("jtis", {})
    return {jti: exp for jti, exp in ends_by_jti.items() if now <= (exp + 2 * SKEW) * 1000}


# A worker compares every signature in these ways when it counts again. Here the comparisons refuse the
# message, so that every vote with an accepting receipt also counts there.


def is_in_time(moment: int, issued: int, expires: int) -> bool:
    """Return whether a vote signed and expiring at these times (seconds) may be stored at a moment (ms)."""
    return (issued - SKEW) * 1000 <= moment <= (expires + SKEW) * 1000


def mistimed(issued: int, question: Interrupt, began: int, edited_at: int) -> str:
    """Return why a vote signed at a time (seconds since 1970) doesn't count; "" if it may.

    `began` (ms) is when the run was started, `edited_at` (seconds) when the edit that voided
    earlier votes was signed.
    """
    if question.expires_in is not None and issued * 1000 > question.ends_at + SKEW * 1000:
        return "it was signed after the question had expired"
    if issued * 1000 < began - SKEW * 1000:
        return "it was signed before its run began"
    return "it was signed before the edit that voided it" if issued < edited_at else ""


def refuse_untimely(
    operation: Submission, question: Interrupt, standing: Standing, now: int
) -> Receipt | None:
    """Refuse a signature whose time disagrees with the store's (ms): a worker would reject the vote."""
    if not (proof := proof_of(operation)):
        return None
    issued = proof["iat"]
    ahead = issued - now / 1000
    edited_at = standing.edited_at if isinstance(operation, Ballot) else 0
    detail = mistimed(issued, question, operation.began, edited_at)
    if not is_in_time(now, issued, proof["exp"]):
        when = "ahead" if ahead > 0 else "ago"
        detail = f"by the store's clock it was signed {abs(ahead):.0f} s {when}"
    advice = "set the clock of the door that signs, and sign when it is sent"
    if not detail:
        return None
    return receipt(operation, ReceiptStatus.FORBIDDEN, f"{detail}: {advice}")


def refuse_misstated(ballot: Ballot, question: Interrupt) -> Receipt | None:
    """Refuse a vote that differs from its signed message."""
    body: JSONMapping = ballot.body
    if not proof_of(ballot):
        return None
    claims = (body.get("interrupt_id"), body.get("digest"), body.get("comment") or "")
    decision = str(body.get("decision"))
    counts = (ballot.interrupt_id, ballot.digest, ballot.comment)
    if (claims, decision) == (counts, ballot.decision) and (
        effect_of(question, decision, response_of(body)) == ballot.effect
    ):
        return None
    return receipt(
        ballot,
        ReceiptStatus.FORBIDDEN,
        "its signed message differs from the vote: sign the message that is sent",
    )


def response_of(body: JSONMapping) -> Any:
    """Return the response in a vote's message, packed: an approval of a call answers true."""
    if body.get("decision") == "reject":
        return None
    response = codec.pack(body.get("response"), "the response")
    return True if body.get("decision") == "approve" and response is None else response


def refuse_reused(operation: Submission, voter_record: JSONMapping, now: int) -> Receipt | None:
    """Refuse a signature that has counted before, whatever came after it; None for a new one."""
    ends_by_jti = signatures(voter_record, now)
    if jti_of(operation) in ends_by_jti:
        return receipt(operation, ReceiptStatus.DUPLICATE, "this signature has counted")
    if len(ends_by_jti) >= MOST_SIGNATURES:
        detail = (
            f"you have signed {MOST_SIGNATURES} messages about this question; wait some minutes"
        )
        return receipt(operation, ReceiptStatus.FORBIDDEN, detail)
    return None


def refuse_copied(operation: Submission, last: int) -> Receipt | None:
    """Refuse a passkey whose counter has not grown since it last signed; one without a counter is accepted.

    Step 21 of https://www.w3.org/TR/webauthn-2/#sctn-verifying-assertion.
    """
    _, count = operation.voter.counter or ("", last + 1)
    if count > last or count == last == 0:
        return None
    detail = (
        f"the passkey's counter is {count}, after {last} before: sign once more. If that is refused too, "
        "another device may have a copy of it: have it revoked, and add a new one"
    )
    return receipt(operation, ReceiptStatus.FORBIDDEN, detail)


def with_signature(operation: Submission, voter_record: JSONMapping, now: int) -> JSONObject:
    """Return a voter's record with the signature of this operation added."""
    ends_by_jti = signatures(voter_record, now)
    jti = jti_of(operation)
    if isinstance(jti, str):
        ends_by_jti[jti] = operation.body["proof"]["exp"]
    return {
        **codec.without(voter_record, "jtis"),
        **({"jtis": ends_by_jti} if ends_by_jti else {}),
    }


def marks(operation: Operation, nonce: str) -> list[JSON]:
    """Return the marks by which a repeat of an operation is recognized."""
    return [nonce, operation.idempotency_key, jti_of(operation)]


def counted_record(
    ballot: Ballot,
    voter_record: JSONMapping,
    vote: JSONMapping,
    vote_receipt: Receipt,
    nonce: str,
) -> JSONObject:
    """Return a voter's record: which vote is theirs, and its receipt for a repeat."""
    return {
        **with_signature(ballot, voter_record, vote["at"]),
        "n": vote["n"],
        # A vote without weight doesn't use up its voter's one vote.
        "round": vote["round"] if vote["weight"] else None,
        **{name: vote[name] for name in ("stage", "decision", "effect", "weight")},
        "nonce": nonce,
        "key": ballot.idempotency_key,
        "comment": ballot.comment,
        "jti": jti_of(ballot),
        "receipt": [
            str(vote_receipt.status),
            vote_receipt.have,
            vote_receipt.need,
            vote_receipt.against,
        ],
    }


def vote_data(
    ballot: Ballot,
    vote: JSONMapping,
    vote_receipt: Receipt,
    voter_record: JSONMapping,
    response: JSON,
) -> JSONObject:
    """Return the data of a vote's event; `voter_record` is from before it.

    `response` is the content of an edit or an answer, if short.
    """
    data = {name: vote[name] for name in ("decision", "effect", "weight", "selector", "stage")}
    optional = {
        "vote": vote["n"],
        "prev_vote": voter_record.get("n"),
        "comment": ballot.comment,
    }
    if response is not None and vote["decision"] in {"edit", "respond"}:
        data["response"] = response
    return {
        **identity(ballot),
        **data,
        "have": vote_receipt.have,
        "need": vote_receipt.need,
        "against": vote_receipt.against,
        **codec.without_empty(optional),
    }


METHODS = ("asserted", "service", "login", "signature")
"""Ways to authenticate a voter, by level; a passkey's signature is "webauthn"."""


def identity(ballot: Submission) -> JSONObject:
    """Return the voter's identity for an event's data: the proof, and when they were authenticated (ms)."""
    voter = ballot.voter
    proof = ballot.body.get("proof")
    data: JSONObject = {
        "by": (isinstance(ballot, Operation) and ballot.by) or voter.principal.key,
        "level": voter.level,
        "method": METHODS[voter.level],
    }
    if isinstance(proof, dict):
        data |= {name: proof[name] for name in ("kid", "jti") if name in proof}
        moment = proof.get("auth_time", proof.get("iat"))
        if isinstance(moment, (int, float)):
            data["authenticated_at"] = round(moment * 1000)
        if proof.get("alg") == "webauthn":
            data["method"] = "webauthn"
    return data | codec.without_empty({"iss": voter.principal.iss, "shown_at": ballot.shown_at})


def answer(question: Interrupt, ballot: Ballot, count: Count) -> Decision:
    """Return the answer that an accepted vote gives to its question."""
    decision = decision_of(question, count)
    rejection: JSONObject = {"rejected": ballot.comment}
    return Decision(
        ballot.interrupt_id,
        rejection if decision == "reject" else ballot.response,
        rules.plain_name(ballot.voter.principal.key),
        ballot.idempotency_key,
        ballot.digest,
        decision,
        count.effect,
    )


def answerers(
    questions_with_votes: Iterable[tuple[Interrupt, Sequence[JSONMapping]]],
) -> frozenset[str]:
    """Return the keys of everyone who answered questions or voted on them; votes come with each question."""
    keys = set[str]()
    for question, votes in questions_with_votes:
        keys |= {vote["by"] for vote in votes}
        if question.responder is not None and question.rule is None:
            keys.add(_key_of(question.responder))
    return frozenset(keys)


def _key_of(responder: str) -> str:
    try:
        return Principal.read(responder).key
    except UsageError:
        return Principal(responder).key


def stored_vote(
    ballot: Ballot, vote: rules.Vote, number: int, position: tuple[str, int, int], now: int
) -> JSONObject:
    """Return a vote as it is stored: `position` is the selector that it used, its stage and its round."""
    voter, (selector, stage, round_) = ballot.voter, position
    return {
        "v": 1,
        "n": number,
        "by": voter.principal.key,
        "name": voter.principal.name,
        "decision": vote.decision,
        "effect": vote.effect,
        "weight": vote.weight,
        "selector": selector,
        "stage": stage,
        "round": round_,
        "comment": ballot.comment,
        "at": now,
        "level": voter.level,
        "body": dict(ballot.body),
    }
