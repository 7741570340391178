"""Judgement of a decision by the worker, directly before the approved effect.

The rule in the code counts, since a client of the store could weaken a stored one. So the question
as the code asks it now must be the one that was answered, and the votes are counted again. If the
rule asks for identity, each vote must be signed for this very question: see
docs/how-to/approvals.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from runner.approvals import ballots, digests, rules
from runner.approvals.rules import (
    Approval,
    Count,
    Principal,
    Requester,
    Rule,
    Tally,
    Vote,
    Voter,
    VoterFacts,
)
from runner.errors import ApprovalMismatch, RunnerError
from runner.immutable import immutable
from runner.records import codec, interrupts
from runner.records.codec import JSONMapping
from runner.records.interrupts import Interrupt, InterruptStatus

if TYPE_CHECKING:
    from runner.approvals.proofs import Proved, VerificationKeys

PARTITION = 2
"""Number of characters in a run id that name its partition."""


@immutable
class Evidence:
    """Evidence for a decision.

    `votes` are the question's votes as they are stored, in order. `requester` has the `principal`
    who asked for the run and the signed `body` that said so, `root` is that run's id. `answered`
    has, by node, the principals who answered there, for nodes whose answerers the rule excludes.
    `keys` reads the keys that check proofs, by `kid`. `began` (ms) is when the run was started, by
    its id, which the question's digest covers. `plain_issuer` is the issuer of names without one,
    `tenant` the namespace of the installation.
    """

    votes: Sequence[JSONMapping] = ()
    requester: JSONMapping | None = None
    answered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    keys: Callable[[], VerificationKeys] = dict
    root: str = ""
    began: int = 0
    plain_issuer: str = ""
    tenant: str = ""


def level_of(rule: Rule) -> int:
    """Return the level of identity that a rule asks for, in any of its stages."""
    return max(rule.auth.level, *(step.auth.level for step in rule.steps))


def judge(question: Interrupt, answered_question: Interrupt, evidence: Evidence) -> Approval:
    """Return the decision on a question, if it holds for the question as the code asks it now.

    Raises:
        ApprovalMismatch: it does not hold; the message says why.
    """
    try:
        return _judge(question, answered_question, evidence)
    except ApprovalMismatch:
        raise
    except (RunnerError, *codec.READ_ERRORS) as error:
        raise ApprovalMismatch(
            f"the decision on {question.name!r} can't be read as one: {type(error).__name__}: {error}"
        ) from error


def is_stale(rule: Rule, question: Interrupt, now: int, retry_ms: int = 0) -> bool:
    """Return whether a decision is too old to use at `now` (ms), with `retry_ms` more for a repeated use."""
    return now > question.answered_at + rule.use_within * 1000 + retry_ms


def _judge(question: Interrupt, answered_question: Interrupt, evidence: Evidence) -> Approval:
    if question.rule is None:
        raise _differs(question, "its rule")
    _check_question(question, answered_question)
    if answered_question.status is InterruptStatus.EXPIRED and interrupts.default_answer(
        question
    ):
        return Approval(
            "expired",
            codec.unpack(interrupts.default_answer(question)[0]),
            action=answered_question.action,
        )
    if answered_question.status is not InterruptStatus.ANSWERED:
        raise ApprovalMismatch(
            f"the question {question.name!r} is {answered_question.status}, and no one has decided it."
        )
    rule = Rule.thawed(question.rule)
    counting = _signed if level_of(rule) else _unsigned
    counts = list(counting(rule, answered_question, evidence))
    *before, last = [count.word for count in counts] or ["forbidden"]
    if last != "accepted" or set(before) - {"counted"}:
        details = "; ".join(count.detail for count in counts if count.detail)
        raise ApprovalMismatch(
            f"the votes on {question.name!r} do not come to a decision by the rule in the code"
            f"{details and ': '}{details}."
        )
    _check_decision(answered_question, counts[-1], evidence.votes[-1])
    response = codec.unpack(answered_question.response)
    return Approval(
        answered_question.decision,
        response,
        tuple(evidence.votes),
        answered_question.action,
        answered_question.effect,
    )


def _check_question(question: Interrupt, answered_question: Interrupt) -> None:
    """Compare the question as it is asked now with the one that was answered, by their digests."""
    now = replace(
        question,
        digest_v=answered_question.digest_v,
        place=answered_question.place,
        requester=answered_question.requester,
        on_behalf_of=answered_question.on_behalf_of,
        asked_at=answered_question.asked_at,
    )
    ours = interrupts.preimages(now)
    theirs = interrupts.preimages(answered_question)
    if answered_question.title != question.title:
        raise _differs(question, "its title")
    if ours != theirs or answered_question.digest_v != question.digest_v:
        ours, theirs = ({**each["question"], **each} for each in (ours, theirs))
        names = {*ours, *theirs} - {"question"}
        differences = sorted(name for name in names if ours.get(name) != theirs.get(name))
        raise _differs(question, ", ".join(differences))
    digest = digests.digest("question", ours["question"])
    if answered_question.digest != digest or answered_question.v != question.v:
        raise _differs(question, "its digest")


def _differs(question: Interrupt, difference: str) -> ApprovalMismatch:
    return ApprovalMismatch(
        f"the question {question.name!r} is not the one that was decided: {difference} differs, by a change "
        "of the code or of what is stored."
    )


def _check_decision(question: Interrupt, count: Count, last_vote: JSONMapping) -> None:
    """Compare the stored decision with the outcome of the votes."""
    decision = ballots.decision_of(question, count)
    wrong = []
    if question.decision != decision:
        wrong.append("decision")
    if question.effect != count.effect:
        wrong.append("effect")
    if question.responder != rules.plain_name(last_vote["by"]):
        wrong.append("responder")
    if question.answered_at != last_vote["at"]:
        wrong.append("time")
    if decision == "reject":
        if question.response != {"rejected": last_vote["comment"]}:
            wrong.append("reason")
    elif ballots.effect_of(question, decision, question.response) != count.effect:
        wrong.append("response")
    if wrong:
        raise ApprovalMismatch(
            f"the decision on {question.name!r} is not what its votes came to: another {', '.join(wrong)} is "
            "stored."
        )


def _unsigned(rule: Rule, question: Interrupt, evidence: Evidence) -> Iterator[Count]:
    """Count votes that no voter had to sign, by the weights that the store recorded.

    Until the effect begins, votes of people who have since answered an excluded node don't count.
    """
    tally = Tally()
    rounds = dict[str, int]()
    for vote_record in evidence.votes:
        vote = Vote(
            vote_record["by"],
            vote_record["decision"],
            vote_record["effect"],
            vote_record["weight"],
        )
        count = rules.take(rule, tally, vote, rounds.get(vote.principal))
        tally = count.tally
        if vote.weight:
            rounds[vote.principal] = tally.round
        rests_on = vote.effect or None, vote_record["round"]
        if question.used is None and rests_on == (question.effect, evidence.votes[-1]["round"]):
            for entry in (*rule.exclude, *rule.steps[vote_record["stage"]].exclude):
                node = entry.removeprefix(rules.ANSWERED)
                if any(
                    rules.is_same_person(name, key, evidence.plain_issuer)
                    for name in (vote.principal, vote_record.get("lent", vote_record)["by"])
                    for key in evidence.answered.get(node, ())
                ):
                    why = f"who answered {node!r} since does not decide this"
                    count = replace(count, word="forbidden", detail=why)
        yield count


NO_ONE = (-1, "")


def _signed(rule: Rule, question: Interrupt, evidence: Evidence) -> Iterator[Count]:
    """Count votes according to their proofs; the fields stored beside a proof must follow from it."""
    keys = evidence.keys()
    facts = VoterFacts(
        _requesters(rule, question, evidence, keys),
        evidence.answered,
        original=ballots.approved(question),
        plain_issuer=evidence.plain_issuer,
    )
    tally = Tally()
    rounds = dict[str, int]()
    seen_jtis = set[str]()
    lent_in = dict[
        str, tuple[int, str]
    ]()  # by lender: the round in which a stand-in voted, and the stand-in
    edit_time = 0
    for vote_record in evidence.votes:
        body = vote_record["body"]
        proof = _proved(body, question, evidence, keys, edit_time)
        if body.get("digest") != question.digest:
            raise ApprovalMismatch(
                f"a vote on {question.name!r} was signed for another question."
            )
        if proof.jti in seen_jtis:
            raise ApprovalMismatch(
                f"a signature counts twice among the votes on {question.name!r}."
            )
        seen_jtis.add(proof.jti)
        voter = proof.voter
        round_ = tally.round
        key = voter.principal.key
        moment = min(vote_record["at"], proof.expires * 1000)
        facts = replace(
            facts,
            escalated=_escalated(rule, question, moment),
            voted_in=rounds.get(key),
            gave=lent_in.get(key, NO_ONE)[0] == round_,
            lent=None,
        )
        lender = ""
        if vote_record["selector"] == rules.DELEGATED:
            loan = vote_record["lent"]
            is_away = loan.get("operation") == rules.AWAY
            lender_proof = _proved(
                loan, question, evidence, keys, effective=proof.issued if is_away else 0
            )
            lender = lender_proof.voter.principal.key
            facts = replace(facts, lent=tally.stage)
            due = _escalated(rule, question, moment if is_away else lender_proof.expires * 1000)
            lending = replace(facts, escalated=due, lent=None, gave=False)
            why = _not_lent(rule, loan, lender_proof.voter.groups, voter, proof.issued)
            if is_away:
                where = evidence.tenant, proof.issued
                why = why or _not_away(
                    loan, lender_proof.voter, rule.steps[tally.stage], lending, where
                )
            why = why or rules.barred(rule, lender_proof.voter, lending, tally.stage)
            lent_round, by = lent_in.get(lender, NO_ONE)
            if rounds.get(lender) == round_ or (lent_round == round_ and by != key):
                why = why or "their vote counts already"
            if why:
                raise ApprovalMismatch(
                    f"a vote on {question.name!r} can't count in the place of {lender}: {why}."
                )
        effect = ballots.effect_of(question, body["decision"], ballots.response_of(body))
        vote = Vote(voter.principal.key, body["decision"], effect)
        stage = tally.stage
        count, vote = rules.cast(rule, tally, voter, vote, facts)
        tally = count.tally
        used_selector = rules.used_selector(rule, voter, facts, stage)
        if vote.weight:
            rounds[vote.principal] = tally.round
            lent_in[lender] = tally.round, key
        if tally.round != round_:
            edit_time = proof.issued
            stage = 0
        if count.word in {"counted", "accepted"}:
            _check_stated(
                vote_record, question, proof, vote, (used_selector, stage, tally.round)
            )
        yield count


def _proved(
    body: JSONMapping,
    question: Interrupt,
    evidence: Evidence,
    keys: VerificationKeys,
    edit_time: int = 0,
    *,
    effective: int = 0,
) -> Proved:
    """Return the proof of a message about a question, signed while the question could be decided."""
    from runner.approvals.proofs import ProofRefused, verify  # noqa: PLC0415 - an extra, which most do without

    try:
        proof = verify(body, keys, now=None, effective=effective)
    except ProofRefused as error:
        raise ApprovalMismatch(
            f"a vote on {question.name!r} has no proof that holds: {error}"
        ) from error
    if body.get("operation") == rules.AWAY:
        return proof  # an absence doesn't name a question: see `_not_away`
    if body.get("interrupt_id") != question.id:
        raise ApprovalMismatch(f"a vote on {question.name!r} was signed for another question.")
    if why := ballots.mistimed(proof.issued, question, evidence.began, edit_time):
        raise ApprovalMismatch(f"a vote on {question.name!r} does not count: {why}.")
    return proof


def _not_lent(
    rule: Rule, body: JSONMapping, groups: frozenset[str], voter: Voter, vote_time: float
) -> str:
    """Return why a message doesn't let a voter stand in for its sender (in these groups); "" if it does.

    `vote_time` is in seconds.
    """
    if (
        body.get("operation") not in {"delegate", rules.AWAY}
        or Principal.read(body["to"]).key != voter.principal.key
    ):
        return "they have said something else"
    if vote_time * 1000 > (body.get("until") or math.inf) + ballots.SKEW * 1000:
        return "it had ended when they voted"
    return (
        "" if rules.may_stand_in(rule.delegate, groups, voter) else "the rule does not let them"
    )


def _not_away(
    body: JSONMapping,
    lender: Voter,
    step: Rule,
    facts: VoterFacts,
    vote: tuple[str, int],
) -> str:
    """Return why an absence's message lends no vote, or ""; `vote` is the vote's tenant and time (s)."""
    (tenant, issued), skew = vote, ballots.SKEW * 1000
    if body.get("tenant") != tenant:
        return "it is for another installation"
    if issued * 1000 < body["since"] - skew:
        return "they were not away then"
    lends = rules.lends(body["only"], step, facts.escalated, lender)
    return "" if lends else "the vote that they lend does not make them eligible"


def _check_stated(
    vote_record: JSONMapping,
    question: Interrupt,
    proof: Proved,
    vote: Vote,
    position: tuple[str, int, int],
) -> None:
    body = vote_record["body"]
    follows = {
        "v": 1,
        "by": vote.principal,
        "decision": vote.decision,
        "effect": vote.effect,
        "weight": vote.weight,
        "selector": position[0],
        "stage": position[1],
        "round": position[2],
        "level": proof.voter.level,
        "comment": body.get("comment") or "",
        **({} if position[0] == rules.DELEGATED else {"lent": None}),
    }
    differences = [name for name, value in follows.items() if vote_record.get(name) != value]
    if not ballots.is_in_time(vote_record["at"], proof.issued, proof.expires):
        differences.append("at")
    if differences:
        raise ApprovalMismatch(
            f"a vote on {question.name!r} is stored with another {', '.join(differences)} than was signed."
        )


def requester_level(requester: JSONMapping, keys: VerificationKeys, root: str) -> int:
    """Return the level at which it is proven who asked for a run, `root` or one inside it."""
    body = requester.get("body")
    if not body or not keys:
        return 0
    from runner.approvals.proofs import ProofRefused, run_name, verify  # noqa: PLC0415 - as above

    try:
        level = verify(body, keys, now=None, member="requester").voter.level
    except ProofRefused:
        return 0
    return level if root[PARTITION:] == run_name(body) else 0


def requester_of(stored: JSONMapping, keys: VerificationKeys, root: str) -> Requester:
    """Return the requester of the outermost run `root`: according to the signature of its start, if any."""
    level = requester_level(stored, keys, root)
    key = Principal.read(stored["body"]["requester"]).key if level else stored["principal"]
    names = (stored["body"] if level else stored).get("on_behalf_of") or ()
    return Requester(key, tuple(Principal.read(name).key for name in names), level)


def _requesters(
    rule: Rule, question: Interrupt, evidence: Evidence, keys: VerificationKeys
) -> frozenset[str]:
    """Return who asked for the run; if the rule excludes them, by a proof that holds for this run."""
    people = frozenset({question.requester, *question.on_behalf_of})
    if not rules.excludes_requester(rule):
        return people
    from runner.approvals.proofs import ProofRefused, run_name, verify  # noqa: PLC0415 - as above

    body = (evidence.requester or {}).get("body") or {}
    try:
        proof = verify(body, keys, now=None, member="requester")
    except ProofRefused as error:
        raise ApprovalMismatch(
            f"the rule of {question.name!r} excludes who asked for the run, but nothing proves who that is: "
            f"{error}"
        ) from error
    key = proof.voter.principal.key
    level = level_of(rule)
    if proof.voter.level < level:
        raise ApprovalMismatch(
            f"the rule of {question.name!r} excludes who asked for the run, and asks for level {level}, but "
            f"that was signed at level {proof.voter.level}."
        )
    requesters = frozenset(
        {key, *(Principal.read(name).key for name in body.get("on_behalf_of") or ())}
    )
    if key != question.requester or requesters != people:
        raise ApprovalMismatch(
            f"{question.name!r} names another requester than the one who signed the start."
        )
    if evidence.root[PARTITION:] != run_name(body):
        raise ApprovalMismatch(
            f"who asked for the run of {question.name!r} has signed the start of another."
        )
    return requesters


def _escalated(rule: Rule, question: Interrupt, moment: int) -> list[str]:
    """List the selectors made eligible by escalation at a moment (ms). Business time can only delay it."""
    earliest = [question.asked_at + round(seconds * 1000) for seconds, _ in rule.escalate]
    times = [max(each) for each in zip(earliest, question.escalates_at, strict=True)]
    return ballots.escalated(replace(question, escalates_at=times), moment)
