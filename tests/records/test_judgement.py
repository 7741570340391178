"""The judgement before an effect: what was decided by the rule in the code holds, and nothing else does."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.approvals import ballots, rules
from runner.approvals.ballots import Ballot
from runner.approvals.digests import Action
from runner.approvals.judgement import Evidence, is_stale, judge
from runner.approvals.proofs import encoded, read_keys, run_name, sign, verify
from runner.approvals.rules import Auth, Rule, Tally, VoterFacts
from runner.audit.checkpoint import public_bytes
from runner.errors import ApprovalMismatch, CorruptDocument
from runner.records import codec, interrupts
from runner.records.interrupts import Address, Interrupt, InterruptStatus, preimages
from runner.records.messages import operation_body

NOW = 1_790_000_000
LOGIN = "https://login.example"
DOOR = Ed25519PrivateKey.from_private_bytes(b"d" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"o" * 32)
KEYS = read_keys(
    json.dumps(
        {
            "keys": [
                {
                    "kty": "OKP",
                    "crv": "Ed25519",
                    "x": encoded(public_bytes(key.public_key())),
                    "kid": kid,
                    "level": 2,
                }
                for kid, key in (("door", DOOR), ("other", OTHER))
            ]
        }
    )
)
CALL = Action("shop", "tool", "refund", {"order": "1042", "amount": 120}, {"type": "object"})
RULE = Rule(
    eligible=["group:finance", "role:cfo"],
    need=2,
    weights={"role:cfo": 2},
    exclude=["requester"],
    auth=Auth(level=2, max_age=900),
)
PLACE = {"root": "00r", "graph": "refunds", "fingerprint": "f", "path": ""}
START = sign(
    {"v": 2, "graph": "refunds", "task": "1042", "requester": f"human:{LOGIN}|rob"},
    DOOR,
    "door",
    now=NOW - 60,
    jti="start",
)
REQUESTER = {"principal": f"human:{LOGIN}|rob", "body": START}
RUN = "00" + run_name(START)


def asked(rule: Rule = RULE, action: Action | None = CALL, **more: object) -> Interrupt:
    address = Address(RUN, "pay", 1)
    more = {"expires_in": 3600.0, **more}
    return address.ask(
        "refund", {"why": "broken"}, scope="tool:1", rule=rule, action=action, **more
    )


LENT = replace(RULE, delegate="anyone")


def word(
    question: str,
    name: str,
    to: str,
    groups=("finance",),
    *,
    operation: str = "delegate",
    until: int | None = None,
) -> dict:
    """What somebody signs who lets another vote."""
    body = operation_body(
        question, operation, f"human:{LOGIN}|{name}", to=f"human:{LOGIN}|{to}", until=until
    )
    return sign(
        body,
        DOOR,
        "door",
        now=NOW,
        jti=f"{name} to {to}",
        login={"auth_time": NOW - 60, "groups": list(groups)},
    )


def decided(
    question: Interrupt,
    *decisions: tuple,
    rule: Rule = RULE,
    key=DOOR,
    kid: str = "door",
    late: int = 0,
):
    """Decide a question as a store does, `late` s after it was asked: as it is stored then, and its votes."""
    stored = replace(
        question,
        place=PLACE,
        requester=f"human:{LOGIN}|rob",
        asked_at=NOW * 1000,
        status=InterruptStatus.OPEN,
    )
    stored = replace(stored, digest=interrupts.digest(stored))
    tally, rounds, votes = Tally(), {}, []
    for number, (name, decision, *rest) in enumerate(decisions, late + 1):
        body = {
            "v": 2,
            "interrupt_id": stored.id,
            "decision": decision,
            "by": f"human:{LOGIN}|{name}",
        }
        body |= {"digest": stored.digest, "comment": f"{decision} by {name}"}
        body |= {"response": rest[0]} if rest else {}
        lender = {"eve": "ana", "fay": "ana"}.get(name, "") if rule.delegate != "none" else ""
        groups = [] if lender else ["finance"]
        known = {
            "auth_time": NOW + number - 60,
            "groups": groups,
            "roles": ["cfo"] * (name == "cfo"),
        }
        body = sign(body, key, kid, now=NOW + number, jti=f"{name}{number}", login=known)
        voter = verify(body, KEYS, now=NOW + number).voter
        response = ballots.response_of(body)
        effect = ballots.effect_of(stored, decision, response)
        ballot = Ballot(
            stored.id,
            voter,
            decision,
            response,
            effect,
            digest=stored.digest,
            comment=body["comment"],
            body=body,
        )
        stage = tally.stage
        facts = VoterFacts(
            (stored.requester,),
            original=ballots.approved(stored),
            lent=stage if lender else None,
        )
        count, vote = rules.cast(
            rule,
            tally,
            voter,
            rules.Vote("", decision, effect),
            replace(facts, voted_in=rounds.get(name)),
        )
        assert count.word in {"counted", "accepted"}, count
        used = rules.used_selector(rule, voter, facts, stage)
        stage = 0 if count.tally.round > tally.round else stage
        place = (used, stage, count.tally.round)
        votes.append(ballots.stored_vote(ballot, vote, number, place, (NOW + number) * 1000))
        votes[-1] |= {"lent": word(stored.id, lender, name)} if lender else {}
        tally, rounds[name] = count.tally, count.tally.round
        if count.word == "accepted":
            answer = ballots.answer(stored, ballot, count)
            stored = replace(
                stored,
                status=InterruptStatus.ANSWERED,
                response=answer.response,
                responder=answer.responder,
                answered_at=(NOW + number) * 1000,
                decision=answer.decision,
                effect=answer.effect,
            )
    # As it comes back from the store: nothing of it is shared with the code that asks.
    stored = codec.decode(Interrupt, codec.encode(stored))
    return stored, json.loads(json.dumps(votes))


TWO = [("ana", "approve"), ("ben", "approve")]
EDITED = [
    ("ana", "approve"),
    ("ben", "edit", {"order": "1042", "amount": 20}),
    ("ana", "approve", {"order": "1042", "amount": 20}),
]


def evidence(votes, **more) -> Evidence:
    return Evidence(
        votes, **{"requester": REQUESTER, "keys": lambda: KEYS, "root": RUN, **more}
    )


@pytest.mark.parametrize(
    ("decisions", "decision", "response"),
    [
        (TWO, "approve", True),
        ([("cfo", "approve")], "approve", True),
        (EDITED, "edit", {"order": "1042", "amount": 20}),
        ([("ana", "approve"), ("ben", "reject")], "reject", {"rejected": "reject by ben"}),
        ([("ana", "respond", "by mail"), ("ben", "respond", "by mail")], "respond", "by mail"),
    ],
)
def test_a_decision_holds_for_the_question_that_was_decided(decisions, decision, response):
    """Approved, edited, rejected or answered: the votes come to the same again, by public keys alone."""
    stored, votes = decided(asked(), *decisions)
    held = judge(asked(), stored, evidence(votes))
    assert (held.decision, held.response) == (decision, response)
    args = response if decision == "edit" else dict(CALL.args)
    if decision in {"approve", "edit"}:
        assert held.effect == replace(CALL, args=args).digest()


@pytest.mark.parametrize(
    ("now", "part"),
    [
        (asked(replace(RULE, need=1)), "policy"),
        (asked(replace(RULE, auth=Auth())), "policy"),
        (asked(action=replace(CALL, args={"order": "1042", "amount": 1200})), "action"),
        (asked(action=replace(CALL, schema={})), "action"),
        (asked(action=None), "action"),
        (asked(risk="high"), "policy"),
        (asked(on_expire={"response": {"order": "1"}}), "policy"),
        (
            Address(RUN, "pay", 1).ask(
                "refund", "other", scope="tool:1", rule=RULE, action=CALL
            ),
            "shown",
        ),
        (
            Address(RUN, "pay", 2).ask(
                "refund", {"why": "broken"}, scope="tool:1", rule=RULE, action=CALL
            ),
            "visit",
        ),
        (
            Address("00s", "pay", 1).ask(
                "refund", {"why": "broken"}, scope="tool:1", rule=RULE, action=CALL
            ),
            "run",
        ),
    ],
)
def test_the_question_of_the_code_counts(now, part):
    """Another rule, call, reason, visit or run than was decided: the decision is not used."""
    stored, votes = decided(asked(), *TWO)
    with pytest.raises(ApprovalMismatch, match=part):
        judge(now, stored, evidence(votes))


def test_a_requester_is_signed_at_the_level_of_the_rule():
    """A weaker word on who asked for the run does not say whom the rule excludes."""
    weak = sign(
        {name: value for name, value in START.items() if name != "proof"},
        DOOR,
        "door",
        now=NOW - 60,
        jti="start",
        login={"level": 1},
    )
    question = asked()
    question = replace(question, run_id="00" + run_name(weak))
    stored, votes = decided(question, *TWO)
    known = evidence(votes, requester={**REQUESTER, "body": weak}, root=question.run_id)
    with pytest.raises(ApprovalMismatch, match="signed at level 1"):
        judge(question, stored, known)


@pytest.mark.parametrize(
    ("late", "began", "words"),
    [(0, 0, ""), (121, 0, "expired"), (0, 60, ""), (0, 121, "before its run began")],
)
def test_votes_were_signed_while_the_question_was_there(late, began, words):
    """After its expiry or before its run, less a skew of clocks, nobody signs: a thief dates as he likes."""
    question = asked(expires_in=60.0)
    stored, votes = decided(question, *TWO, late=late)
    known = evidence(votes, began=(NOW + began) * 1000)
    if words:
        with pytest.raises(ApprovalMismatch, match=words):
            judge(question, stored, known)
    else:
        assert judge(question, stored, known).approved


# What the judgement rests on, and what it doesn't: reminders, the name shown, the key of a repeat.
DISPLAYED = {
    "name",
    "reminded",
    "idempotency_key",
    "remind_every",
    "remind_after",
    "assignees",
    "replaces",
    "withdrawal",
    "reasked",
    "used",
}


@st.composite
def changes(draw, document: object):
    """Draw a changed copy of a JSON document: one value anywhere in it is another, or is gone, or is new."""
    changed = copy.deepcopy(document)
    place = changed
    while True:
        names = list(place) if isinstance(place, dict) else list(range(len(place)))
        inner = [
            name for name in names if isinstance(place[name], (dict, list)) and place[name]
        ]
        if not inner or draw(st.integers(0, 3)) == 0:
            break
        place = place[draw(st.sampled_from(inner))]
    names = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not names or draw(st.integers(0, 9)) == 0:
        place.update(more=1) if isinstance(place, dict) else place.append(1)
        return changed
    name = draw(st.sampled_from(names))
    value = place[name]
    match value:
        case str() if value:
            at = draw(st.integers(0, len(value) - 1))
            place[name] = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
        case bool():
            place[name] = not value
        case int():
            place[name] = value + draw(st.sampled_from([-1, 1, 1000]))
        case _:
            place[name] = "x"
    if draw(st.integers(0, 4)) == 0:
        del place[name]
    return changed


IN_PLACE = [("eve", "approve"), ("ben", "approve")]
CASES = [
    (asked(), *decided(asked(), *decisions))
    for decisions in (TWO, EDITED, [("cfo", "approve")])
]
CASES.append((asked(LENT), *decided(asked(LENT), *IN_PLACE, rule=LENT)))


@pytest.mark.slow
@settings(max_examples=400)
@given(data=st.data())
def test_no_byte_of_question_or_decision_can_be_changed(data):
    """One change of the stored question, its rule, call or decision: it is not used, or says the same."""
    question, stored, votes = data.draw(st.sampled_from(CASES))
    document = asdict(stored)
    name = data.draw(st.sampled_from(sorted(set(document) - DISPLAYED | {"name"})))
    part = data.draw(changes({name: document[name]}))
    try:
        changed = codec.decode(
            Interrupt, codec.encode({**document, **part} if part.keys() == {name} else document)
        )
    except CorruptDocument:
        return  # nothing that is stored as a question
    if changed == stored:
        return
    if replace(changed, place=stored.place) == stored and preimages(changed) == preimages(
        stored
    ):
        return  # a path that is empty, or is not there, says the same
    with pytest.raises(ApprovalMismatch):
        judge(question, changed, evidence(votes))


def outer(vote: dict) -> dict:
    """A vote without what nothing rests on: the name shown, its number, and when exactly it was stored."""
    at = vote.get("at")
    near = round(at / 10_000) if isinstance(at, int) else at
    return {
        name: value for name, value in vote.items() if name not in {"name", "n", "more"}
    } | {"at": near}


@pytest.mark.slow
@settings(max_examples=600)
@given(data=st.data())
def test_no_byte_of_the_votes_can_be_changed(data):
    """One change of one vote, in what is signed or beside it, one less, one more, another order."""
    question, stored, votes = data.draw(st.sampled_from(CASES))
    kind = data.draw(st.sampled_from(["change", "change", "change", "drop", "repeat", "swap"]))
    changed = list(votes)
    place = data.draw(st.integers(0, len(votes) - 1))
    if kind == "change":
        changed[place] = data.draw(changes(votes[place]))
    elif kind == "drop":
        if votes[place]["round"] < votes[-1]["round"]:
            return  # an edit has voided it: it counts nothing
        del changed[place]
    elif kind == "repeat":
        changed.append(votes[place])
    else:
        changed = [votes[-1], *votes[:-1]]
    if [outer(vote) for vote in changed] == [outer(vote) for vote in votes]:
        return
    with pytest.raises(ApprovalMismatch):
        judge(question, stored, evidence(changed))


@pytest.mark.full
@settings(max_examples=100)
@given(data=st.data())
def test_no_byte_of_who_asked_can_be_changed(data):
    """The rule excludes who started the run: so the start must be signed, as it was."""
    _, stored, votes = CASES[0]
    body = data.draw(changes(START))
    if body == START:
        return
    with pytest.raises(ApprovalMismatch):
        judge(asked(), stored, evidence(votes, requester={**REQUESTER, "body": body}))


def test_who_asked_is_bound_to_the_run_that_they_started():
    """The start of one run proves nothing of another, where its requester would be somebody else."""
    question, stored, votes = CASES[0]
    assert judge(question, stored, evidence(votes)).approved
    body = {name: part for name, part in START.items() if name != "proof"}
    again = sign(body, DOOR, "door", now=NOW - 60, jti="again")
    with pytest.raises(ApprovalMismatch, match="the start of another"):
        judge(question, stored, evidence(votes, requester={**REQUESTER, "body": again}))


def test_for_whom_a_run_was_started_does_not_decide_it():
    """A bot asks on behalf of somebody: neither of them is one of the four eyes."""
    ana = f"human:{LOGIN}|ana"
    body = {name: part for name, part in START.items() if name != "proof"} | {
        "on_behalf_of": [ana]
    }
    start = sign(body, DOOR, "door", now=NOW - 60, jti="bot")
    proof = evidence([], requester={**REQUESTER, "body": start}, root="00" + run_name(start))
    question = asked()
    for behalf, why in ([], "another requester"), ([ana], "asked for this"):
        stored, votes = decided(replace(question, on_behalf_of=behalf), *TWO)
        with pytest.raises(ApprovalMismatch, match=why):
            judge(question, stored, replace(proof, votes=votes))
    stored, votes = decided(
        replace(question, on_behalf_of=[ana]), ("eve", "approve"), ("ben", "approve")
    )
    assert judge(question, stored, replace(proof, votes=votes)).approved


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "issuer", "is_held"),
    [("ana", "", True), ("ana", LOGIN, True), ("ana", "other", False), ("zoe", "", False)],
)
@pytest.mark.parametrize("how", ["on_behalf_of", "exclude", "answered"])
def test_an_excluded_name_without_an_issuer_is_excluded_at_the_effect(
    how, name, issuer, is_held
):
    """Whatever a door has taken, the worker refuses the vote of a login of that name."""
    start = {part: value for part, value in START.items() if part != "proof"}
    start |= {"on_behalf_of": [name]} if how == "on_behalf_of" else {}
    start = sign(start, DOOR, "door", now=NOW - 60, jti="bot")
    extra = {"exclude": [name], "answered": ["answered:look"]}.get(how, [])
    rule = replace(RULE, exclude=["requester", *extra])
    question = replace(asked(rule), run_id="00" + run_name(start))
    if how == "on_behalf_of":
        question = replace(question, on_behalf_of=[f"human:|{name}"])
    stored, votes = decided(question, *TWO)
    proof = evidence(
        votes,
        requester={**REQUESTER, "body": start},
        root=question.run_id,
        answered={"look": frozenset({f"human:|{name}"})},
        plain_issuer=issuer,
    )
    if not is_held:
        assert judge(question, stored, proof).approved
        return
    with pytest.raises(ApprovalMismatch, match=r"asked for this|excluded|who answered"):
        judge(question, stored, proof)


def test_a_group_that_the_key_may_not_vouch_for_excludes_all_the_same():
    """A door that may state finance alone, and states interns, too: an exclusion of interns holds."""
    entry = {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": encoded(public_bytes(DOOR.public_key())),
        "kid": "door",
        "level": 2,
        "groups": ["finance"],
    }
    keys = read_keys(json.dumps({"keys": [entry]}))
    body = sign(
        {"v": 2, "by": "ana"},
        DOOR,
        "door",
        now=NOW,
        jti="1",
        login={"groups": ["finance", "interns"], "roles": ["cfo"]},
    )
    voter = verify(body, keys, now=NOW).voter
    assert voter.groups == {"finance"}
    finance, interns = ["group:finance"], ["group:interns"]
    assert "excluded" in rules.forbidden(Rule(eligible=finance, exclude=interns), voter)
    assert not rules.forbidden(Rule(eligible=finance), voter)
    assert rules.forbidden(Rule(eligible=interns), voter)


def test_without_signatures_a_forged_vote_counts():
    """The control of all of the above: at level 0 whoever writes to the store can approve."""
    rule = Rule(need=2)
    question = asked(rule)
    stored, votes = decided(question, ("ana", "approve"), ("ben", "approve"), rule=rule)
    for vote in votes:
        vote["by"], vote["body"] = "human:|eve" + str(vote["n"]), {}
    forged = replace(stored, responder="eve2")
    assert judge(question, forged, Evidence(votes)).decision == "approve"


@pytest.mark.parametrize(
    "who", ["unknown key", "revoked key", "no proof", "no keys", "no start"]
)
def test_only_known_keys_prove_anything(who):
    """A vote that is signed by nobody whom the worker knows, or by a key revoked since, is none."""
    _, stored, votes = CASES[0]
    keys, requester = dict(KEYS), REQUESTER
    match who:
        case "unknown key":
            del keys["door"]
        case "revoked key":
            keys["door"] = replace(keys["door"], revoked=NOW)
        case "no proof":
            votes = copy.deepcopy(votes)
            del votes[0]["body"]["proof"]
        case "no keys":
            keys = {}
        case "no start":
            requester = None
    with pytest.raises(ApprovalMismatch):
        judge(asked(), stored, Evidence(votes, requester, keys=lambda: keys, root=RUN))


def test_a_vote_voided_by_an_edit_is_not_counted_after_it():
    """Who writes to the store can't take an approval from before an edit to behind it."""
    first, second = ("ana", "approve"), ("cfo", "edit", {"order": "1042", "amount": 20})
    rule = replace(RULE, weights={})
    stored, votes = decided(
        asked(rule), first, second, ("eve", "approve"), ("ben", "approve"), rule=rule
    )
    assert judge(asked(rule), stored, evidence(votes)).decision == "approve"
    _, voided = decided(asked(rule), first, second, ("eve", "approve"), rule=rule)
    moved = [voided[1], {**voided[0], "round": 1}, voided[2]]
    answered = replace(stored, responder=f"human:{LOGIN}|eve", answered_at=moved[-1]["at"])
    with pytest.raises(ApprovalMismatch, match="before the edit"):
        judge(asked(rule), answered, evidence(moved))


def test_an_edit_back_to_the_call_is_counted_as_the_store_did():
    """It voids the votes before it, and its voter counts once."""
    rule = replace(RULE, weights={})
    shown = asked(rule).action["args"]
    votes = [("ana", "approve"), ("cfo", "edit", {**shown, "amount": 5}), ("ana", "approve")]
    stored, votes = decided(
        asked(rule), *votes, ("cfo", "edit", shown), ("ana", "approve"), rule=rule
    )
    assert judge(asked(rule), stored, evidence(votes)).decision == "approve"


def test_a_signature_counts_once_among_the_votes():
    """A vote that is stored twice is refused for its signature; as it was cast it counts."""
    question, stored, votes = CASES[0]
    assert judge(question, stored, evidence(votes)).approved
    with pytest.raises(ApprovalMismatch, match="signature counts twice"):
        judge(question, stored, evidence([votes[0], *votes]))


def test_a_vote_that_does_not_count_is_not_among_those_that_decided():
    """Where nothing is signed, too, the votes are those that were counted, and no others."""
    rule = replace(RULE, auth=Auth())
    stored, votes = decided(asked(rule), *TWO, rule=rule)
    assert judge(asked(rule), stored, evidence(votes)).approved
    with pytest.raises(ApprovalMismatch, match="do not come to a decision"):
        judge(asked(rule), stored, evidence([votes[0], *votes]))


def test_two_can_not_vote_in_the_place_of_one():
    """Who writes to the store can't use the word of one who delegates for a second voter."""
    question = asked(LENT)
    stored, votes = decided(question, ("eve", "approve"), ("fay", "approve"), rule=LENT)
    with pytest.raises(ApprovalMismatch, match="counts already"):
        judge(question, stored, evidence(votes))


def test_a_vote_may_be_in_the_place_of_another():
    """With the word of one who might have voted, for this question, this voter, and one vote."""
    question, stored, votes = CASES[-1]
    assert judge(question, stored, evidence(votes)).approved
    eve, ben = votes
    lasts = word(stored.id, "ana", "eve", until=(NOW + 60) * 1000)
    assert judge(question, stored, evidence([{**eve, "lent": lasts}, ben])).approved
    for lent, why in (
        (word(stored.id, "ana", "fay"), "something else"),
        (word(stored.id, "ana", "eve", operation="comment"), "something else"),
        (word(stored.id, "ana", "eve", groups=()), "not one of those"),
        (word(stored.id, "ana", "eve", until=(NOW - ballots.SKEW) * 1000), "had ended"),
        (word(stored.id, "rob", "eve"), "asked for this"),
        (word("00other.pay.1.x", "ana", "eve"), "another question"),
        (
            word(stored.id, "ben", "eve"),
            "can't count in the place of|two votes|voted in your place|let another vote",
        ),
    ):
        with pytest.raises(ApprovalMismatch, match=why):
            judge(question, stored, evidence([{**eve, "lent": lent}, ben]))
    # One who stands in for another may edit what they have approved: that vote voids their own, too.
    less = {"order": "1042", "amount": 20}
    again = [("eve", "approve"), ("eve", "edit", less), ("ben", "approve", less)]
    stored, votes = decided(question, *again, rule=LENT)
    assert judge(question, stored, evidence(votes)).response == less
    group = replace(RULE, delegate="group")
    stored, votes = decided(asked(group), *IN_PLACE, rule=group)
    with pytest.raises(ApprovalMismatch, match="the rule does not let them"):
        judge(asked(group), stored, evidence(votes))


def test_a_decision_is_used_within_its_time():
    """`use_within` counts from the deciding vote."""
    _, stored, _ = CASES[0]
    assert not is_stale(RULE, stored, stored.answered_at + 86_400_000)
    assert is_stale(RULE, stored, stored.answered_at + 86_400_001)


def test_an_open_question_has_no_decision():
    """Whatever its votes are."""
    stored, votes = decided(asked(), ("ana", "approve"))
    with pytest.raises(ApprovalMismatch, match="no one has decided"):
        judge(asked(), stored, evidence(votes))
