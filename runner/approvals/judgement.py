"""Whether a decision holds, judged by the worker directly before what was approved takes effect.

The rule that counts is the one in the code: whoever can write to the store could lower a stored one. So the
question as the code asks it now must be the one that was answered, the votes are counted again, and where
the rule asks for identity each vote must be signed for this very question: see docs/how-to/approvals.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from runner.approvals import ballots, rules
from runner.approvals.rules import Approval, Count, Facts, Principal, Rule, Tally, Vote, Voter
from runner.errors import ApprovalMismatch, RunnerError
from runner.records import codec, interrupts
from runner.records.interrupts import Interrupt, InterruptStatus

if TYPE_CHECKING:
    from runner.approvals.proofs import Key, Proved

PARTITION = 2
"""Characters of a run id that name its partition."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a decision rests on.

    `votes` are those of the question as they are stored, in order. `requester` has the `principal` who asked
    for the run and the signed `body` that said so, `root` is that run's id. `answered` has, by node,
    those who answered what the rule excludes. `keys` reads the keys that check proofs, by `kid`.
    """

    votes: Sequence[Mapping[str, Any]] = ()
    requester: Mapping[str, Any] | None = None
    answered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    keys: Callable[[], Mapping[str, Key]] = dict
    root: str = ""


def level_of(rule: Rule) -> int:
    """Return the level of identity that a rule asks for, in any of its stages."""
    return max(rule.auth.level, *(step.auth.level for step in rule.steps))


def judge(asked: Interrupt, stored: Interrupt, evidence: Evidence) -> Approval:
    """Return the decision on a question, if it holds for the question as the code asks it now.

    Raises:
        ApprovalMismatch: it does not; the message says in what.
    """
    try:
        return _judge(asked, stored, evidence)
    except ApprovalMismatch:
        raise
    except (RunnerError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise ApprovalMismatch(
            f"the decision on {asked.name!r} can't be read as one: {type(error).__name__}: {error}"
        ) from error


def is_stale(rule: Rule, stored: Interrupt, now: int) -> bool:
    """Whether a decision is too old to be used for the first time; `now` is in ms."""
    return now > stored.answered_at + rule.use_within * 1000


def response_of(body: Mapping[str, Any]) -> Any:
    """Return what a vote's message answers, packed: an approval of a call answers true."""
    if body["decision"] == "reject":
        return None
    response = codec.pack(body.get("response"), "the response")
    return True if body["decision"] == "approve" and response is None else response


def _judge(asked: Interrupt, stored: Interrupt, evidence: Evidence) -> Approval:
    if asked.rule is None:
        raise _differs(asked, "its rule")
    _check_question(asked, stored)
    if stored.status is InterruptStatus.EXPIRED and interrupts.default_answer(asked):
        return Approval(
            "expired", codec.unpack(interrupts.default_answer(asked)[0]), action=stored.action
        )
    if stored.status is not InterruptStatus.ANSWERED:
        raise ApprovalMismatch(
            f"the question {asked.name!r} is {stored.status}, and nobody has decided it."
        )
    rule = Rule.thawed(asked.rule)
    counting = _unsigned if level_of(rule) == 0 else _signed
    counts = list(counting(rule, stored, evidence))
    words = [count.word for count in counts]
    if not counts or words[-1] != "accepted" or set(words[:-1]) - {"counted"}:
        details = "; ".join(count.detail for count in counts if count.detail)
        raise ApprovalMismatch(
            f"the votes on {asked.name!r} do not come to a decision by the rule in the code"
            f"{details and ': '}{details}."
        )
    _check_decision(stored, counts[-1], evidence.votes[-1])
    response = codec.unpack(stored.response)
    return Approval(stored.decision, response, tuple(evidence.votes), stored.action, stored.effect)


def _check_question(asked: Interrupt, stored: Interrupt) -> None:
    """Compare the question as it is asked now with the one that was answered, by their digests."""
    now = replace(
        asked,
        digest_v=stored.digest_v,
        place=stored.place,
        requester=stored.requester,
        on_behalf_of=stored.on_behalf_of,
        asked_at=stored.asked_at,
    )
    ours, theirs = interrupts.preimages(now), interrupts.preimages(stored)
    if ours != theirs or stored.digest_v != asked.digest_v:
        parts = (set(ours) | set(theirs)) - {"question"}
        changed = sorted(part for part in parts if ours.get(part) != theirs.get(part))
        changed += sorted(name for name in ours["question"] if _differ(ours, theirs, name))
        raise _differs(asked, ", ".join(changed))
    if stored.digest != interrupts.digest(now) or stored.v != asked.v:
        raise _differs(asked, "its digest")


def _differ(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> bool:
    return bool(ours["question"][name] != theirs["question"].get(name)) and name not in {
        "action",
        "policy",
    }


def _differs(asked: Interrupt, what: str) -> ApprovalMismatch:
    return ApprovalMismatch(
        f"the question {asked.name!r} is not the one that was decided: {what} differs, by a change of the "
        "code or of what is stored."
    )


def _check_decision(stored: Interrupt, count: Count, last: Mapping[str, Any]) -> None:
    """Compare what is stored of the decision with what the votes have come to."""
    decision = ballots.decision_of(stored, count)
    wrong = []
    if stored.decision != decision:
        wrong.append("decision")
    if stored.effect != count.effect:
        wrong.append("effect")
    if stored.responder != rules.plain_name(last["by"]):
        wrong.append("responder")
    if stored.answered_at != last["at"]:
        wrong.append("time")
    if decision == "reject":
        if stored.response != {"rejected": last["comment"]}:
            wrong.append("reason")
    elif ballots.effect_of(stored, decision, stored.response) != count.effect:
        wrong.append("response")
    if wrong:
        raise ApprovalMismatch(
            f"the decision on {stored.name!r} is not what its votes came to: another {', '.join(wrong)} is "
            "stored."
        )


def _unsigned(rule: Rule, stored: Interrupt, evidence: Evidence) -> Iterator[Count]:
    """Count votes that nobody had to sign, by the weights that their door has seen."""
    del stored
    tally, rounds = Tally(), dict[str, int]()
    for stated in evidence.votes:
        vote = Vote(stated["by"], stated["decision"], stated["effect"], stated["weight"])
        count = rules.take(rule, tally, vote, rounds.get(vote.principal))
        tally = count.tally
        if vote.weight:
            rounds[vote.principal] = tally.round
        yield count


NOBODY = (-1, "")


def _signed(rule: Rule, stored: Interrupt, evidence: Evidence) -> Iterator[Count]:
    """Count votes as their proofs have them; what is stored beside a proof must follow from it."""
    keys = evidence.keys()
    facts = Facts(
        _requesters(rule, stored, evidence, keys),
        evidence.answered,
        original=ballots.approved(stored),
    )
    tally, rounds, seen = Tally(), dict[str, int](), set[str]()
    replaced = dict[
        str, tuple[int, str]
    ]()  # in which round somebody has voted in one's place, and who
    edited = 0
    for stated in evidence.votes:
        proved = _proved(stated["body"], stored, keys)
        if stated["body"].get("digest") != stored.digest:
            raise ApprovalMismatch(f"a vote on {stored.name!r} was signed for another question.")
        if proved.jti in seen:
            raise ApprovalMismatch(f"a signature counts twice among the votes on {stored.name!r}.")
        seen.add(proved.jti)
        if proved.issued < edited:
            raise ApprovalMismatch(
                f"a vote on {stored.name!r} was signed before the edit that voided it."
            )
        body, voter, round_ = stated["body"], proved.voter(), tally.round
        key = voter.principal.key
        facts = replace(
            facts,
            escalated=_escalated(rule, stored, proved),
            voted_in=rounds.get(key),
            gave=replaced.get(key, NOBODY)[0] == round_,
            lent=None,
        )
        lender = ""
        if stated["selector"] == rules.DELEGATED:
            word = _proved(stated["lent"], stored, keys)
            lender, facts = word.principal.key, replace(facts, lent=tally.stage)
            lending = replace(
                facts, escalated=_escalated(rule, stored, word), lent=None, gave=False
            )
            why = _not_lent(rule, stated["lent"], word.groups, voter)
            why = why or rules.barred(rule, word.voter(), lending, tally.stage)
            taken, by = replaced.get(lender, NOBODY)
            if rounds.get(lender) == round_ or (taken == round_ and by != key):
                why = why or "their vote counts already"
            if why:
                raise ApprovalMismatch(
                    f"a vote on {stored.name!r} is none in the place of {lender}: {why}."
                )
        effect = ballots.effect_of(stored, body["decision"], response_of(body))
        vote = Vote(voter.principal.key, body["decision"], effect)
        stage = tally.stage
        count, vote = rules.cast(rule, tally, voter, vote, facts)
        tally, used = count.tally, rules.used_selector(rule, voter, facts, stage)
        if vote.weight:
            rounds[vote.principal] = tally.round
            replaced[lender] = tally.round, key
        if tally.round != round_:
            edited, stage = proved.issued, 0
        if count.word in {"counted", "accepted"}:
            _check_stated(stated, stored, proved, vote, (used, stage, tally.round))
        yield count


def _proved(body: Mapping[str, Any], stored: Interrupt, keys: Mapping[str, Key]) -> Proved:
    from runner.approvals.proofs import ProofRefused, verify  # noqa: PLC0415 - an extra, which most do without

    try:
        proved = verify(body, keys, now=None)
    except ProofRefused as error:
        raise ApprovalMismatch(
            f"a vote on {stored.name!r} has no proof that holds: {error}"
        ) from error
    if body.get("interrupt_id") != stored.id:
        raise ApprovalMismatch(f"a vote on {stored.name!r} was signed for another question.")
    return proved


def _not_lent(rule: Rule, body: Mapping[str, Any], groups: frozenset[str], voter: Voter) -> str:
    """Return why a message of one in these groups lets a voter not vote in their place; "" where it does."""
    if (body.get("operation"), body.get("to")) != ("delegate", voter.principal.key):
        return "they have said something else"
    may = rules.may_stand_in(rule.delegate, groups, voter)
    return "" if may else "the rule does not let them"


def _check_stated(
    stated: Mapping[str, Any],
    stored: Interrupt,
    proved: Proved,
    vote: Vote,
    place: tuple[str, int, int],
) -> None:
    body = stated["body"]
    follows = {
        "v": 1,
        "by": vote.principal,
        "decision": vote.decision,
        "effect": vote.effect,
        "weight": vote.weight,
        "selector": place[0],
        "stage": place[1],
        "round": place[2],
        "level": proved.level,
        "comment": body.get("comment") or "",
        **({} if place[0] == rules.DELEGATED else {"lent": None}),
    }
    if stored.rule is not None and stored.rule["escalate"]:
        del follows["selector"]  # a door may have counted one step less when the vote came in
    changed = [name for name, value in follows.items() if stated.get(name) != value]
    earliest, latest = proved.issued - ballots.SKEW, proved.expires + ballots.SKEW
    if not earliest * 1000 <= stated["at"] <= latest * 1000:
        changed.append("at")
    if changed:
        raise ApprovalMismatch(
            f"a vote on {stored.name!r} is stored with another {', '.join(changed)} than was signed."
        )


def _requesters(
    rule: Rule, stored: Interrupt, evidence: Evidence, keys: Mapping[str, Key]
) -> frozenset[str]:
    """Return who asked for the run; where the rule excludes them, by a proof that holds for this run."""
    people = frozenset({stored.requester, *stored.on_behalf_of})
    if not rules.excludes_requester(rule):
        return people
    from runner.approvals.proofs import ProofRefused, run_name, verify  # noqa: PLC0415 - as above

    body = (evidence.requester or {}).get("body") or {}
    try:
        key = verify(body, keys, now=None, who="requester").principal.key
    except ProofRefused as error:
        raise ApprovalMismatch(
            f"the rule of {stored.name!r} excludes who asked for the run, but nothing proves who that is: "
            f"{error}"
        ) from error
    proved = frozenset(
        {key, *(Principal.read(name).key for name in body.get("on_behalf_of") or ())}
    )
    if key != stored.requester or proved != people:
        raise ApprovalMismatch(
            f"{stored.name!r} names another requester than the one who signed the start."
        )
    if evidence.root[PARTITION:] != run_name(body):
        raise ApprovalMismatch(
            f"who asked for the run of {stored.name!r} has signed the start of another."
        )
    return proved


def _escalated(rule: Rule, stored: Interrupt, proved: Proved) -> list[str]:
    """List who had become eligible when a vote was signed. Business time only makes that later."""
    passed = proved.expires - stored.asked_at / 1000
    return [entry for seconds, more in rule.escalate if seconds <= passed for entry in more]
