"""Grants: calls to come are made within exactly the bounds that people have signed, and no other call is."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import Agent, GraphBuilder, Status, tool
from runner.approvals import Auth, Rule, granting
from runner.approvals.digests import Action
from runner.approvals.grants import GrantRecord, check_bounds, check_narrower, check_reach, fits
from runner.approvals.rules import Grants, Principal, Voter
from runner.approvals.visit_judge import KnownGrants, VisitJudge
from runner.errors import GrantRefused, NotFoundError
from runner.records.messages import start_body
from runner.records.run import EventKind, NodeRecord
from runner.store.interface import Claim, Token
from runner.store.requests import UseGrant
from runner.testing import ScriptedModel
from tests.execution import test_forged_writes
from tests.execution.test_effects import DOOR, LOGIN
from tests.execution.test_forged_writes import OWN, Shop, by_passkey

keys = test_forged_writes.keys

UP_TO_500 = {"properties": {"amount": {"maximum": 500}, "order": {"enum": ["1042", "7"]}}}
ALLOWED = Grants({"properties": {"amount": {"maximum": 500}}}, uses=10, sums={"amount": 2_000})


def rule_of(level: int = 2, need: int = 1, **options) -> Rule:
    options.setdefault("grants", ALLOWED)
    return Rule(eligible=["group:finance"], need=need, auth=Auth(level=level), **options)


class Desk(Shop):
    """A shop whose people grant calls, signed as the level of its rule asks."""

    def __init__(self, url: str, rule, **options) -> None:
        super().__init__(
            url, rule, signed=rule.auth.level > 0 if isinstance(rule, Rule) else True
        )
        self.store.partitions = None
        self.engine.directory = "tests.execution.test_grants:TEAM"

    def run(self, amount: int = 120, order: str = "1042", *, requester: str = "") -> str:
        """Start a run that wants to pay, run it as far as it goes, and return its id."""
        call = {"order": order, "amount": amount}
        uses = [{"toolUse": {"toolUseId": "t0", "name": "refund", "input": call}}]
        self.till.model.__init__([uses, "done"])
        options = {}
        if requester:
            body = start_body("till", "pay", f"human:{LOGIN}|{requester}")
            if self.signed:
                body = DOOR.sign(body, login={"level": 2})
            options["requester"] = {"principal": body["requester"], "body": body}
        run_id = self.engine.start("till", "pay", **options)
        self.go_on()
        return run_id

    def question(self, run_id: str) -> str:
        return self.store.read(run_id).interrupts[0].id

    def propose(self, question: str, **options):
        options.setdefault("bounds", UP_TO_500)
        options.setdefault("sums", {"amount": 1_000})
        options.setdefault("uses", 3)
        return granting.propose(self.engine, question, **options)

    def sign(self, record, name: str = "ana", decision: str = "approve"):
        """Vote for a grant as a door does it, or with one's own key."""
        by = Principal(name, LOGIN if self.signed else "")
        body = granting.message(record, decision, by)
        if self.signed and self.level == 3:
            body = {**body, "proof": by_passkey(body)} if name == "ben" else OWN.sign(body)
        elif self.signed:
            body = DOOR.sign(body, login={"groups": ["finance"], "level": self.level})
        return granting.vote(self.engine, record, body, Voter(by))

    def granted(self, **options):
        """Have ana grant calls like the one that a first run asks about; return the record."""
        record = self.propose(self.question(self.run()), **options)
        assert self.sign(record).status == "accepted"
        return record

    def paid(self) -> list[int]:
        return [amount for _, amount, _ in self.till.paid]


class _Team:
    def groups(self, principal):
        return ["finance"] if principal.sub in {"ana", "ben", "eva"} else []

    def roles(self, principal):
        return []


TEAM = _Team()


@pytest.mark.full
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_calls_within_a_grant_are_made_and_others_are_asked_about(redis_url, keys, level):
    """Nobody is asked within its bounds; above them, for another order, and when it is used up they are."""
    desk = Desk(redis_url, rule_of(level))
    desk.granted()
    for amount, order, paid in [
        (100, "1042", True),
        (501, "1042", False),
        (100, "8", False),
        (400, "7", True),
        (501, "7", False),
        (500, "7", True),
        (1, "7", False),  # used up
    ]:
        before = len(desk.paid())
        run = desk.store.read(desk.run(amount, order))
        assert (len(desk.paid()) - before, run.record.status) == (
            (1, Status.COMPLETED) if paid else (0, Status.INTERRUPTED)
        ), (amount, order)
    assert desk.paid() == [100, 400, 500]
    (view,) = granting.list_grants(desk.engine)
    assert (view.state, view.used, view.summed) == ("used up", 3, {"amount": "1000"})


@pytest.mark.full
def test_a_call_without_the_number_of_a_sum_is_asked_about(redis_url):
    """It adds nothing that could be counted, so no grant covers it; one with the number is made."""
    rule = Rule(eligible=["group:finance"], grants=Grants(uses=10))
    desk, calls = Desk(redis_url, rule), [5, None, 6]

    @tool(approval=rule)
    def tip(amount: int | None) -> str:
        """Give a tip."""
        return "given"

    def call(messages):
        use = {"toolUseId": "t0", "name": "tip", "input": {"amount": calls.pop(0)}}
        return {"toolUse": use}

    builder = GraphBuilder()
    builder.add_node(Agent("waiter", ScriptedModel([call, "done"]), [tip]), "give")
    tips = builder.build()
    desk.engine.registry.add("tips", lambda: tips)

    def status():
        desk.last = desk.engine.start("tips", "give")
        desk.go_on()
        return desk.store.read(desk.last).record.status

    assert status() == Status.INTERRUPTED
    desk.sign(desk.propose(desk.question(desk.last), bounds={}))
    assert status() == Status.INTERRUPTED
    assert status() == Status.COMPLETED


@pytest.mark.full
def test_a_use_says_so_in_the_run_and_in_the_audit(redis_url, keys):
    """With the grant, the call and its idempotency key; a repeat of the effect is counted once."""
    desk = Desk(redis_url, rule_of())
    record = desk.granted()
    run_id = desk.run()
    (event,) = [e for e in desk.store.events(run_id) if e.kind == EventKind.GRANT_USED]
    (_, _, key), *_ = desk.till.paid
    assert event.data["grant"] == record.grant.id
    assert event.data["key"] == key
    (audit,) = desk.store.audit_logs
    read = [json.loads(text) for _, text in audit.kept()]
    entries = [entry for entry in read if entry["type"].startswith("grant.")]
    assert [entry["type"] for entry in entries] == ["grant.voted", "grant.used"]
    assert entries[1]["digests"] == {
        "grant": record.grant.digest(),
        "effect": event.data["effect"],
    }

    use = UseGrant(
        record.grant.id, record.grant.digest(), key, {"amount": "120"}, "effect", run_id, "pay"
    )
    assert desk.store.do(use).word == "used"
    assert desk.store.signed(GrantRecord)[record.grant.id].used == 1


@pytest.mark.full
def test_a_call_that_a_crash_repeats_is_counted_on_the_same_grant(redis_url, keys):
    """Also by another worker, though another grant has more left and this one nothing."""
    desk = Desk(redis_url, rule_of())
    question = desk.question(desk.run())
    for _ in range(2):
        desk.sign(desk.propose(question, uses=1))
    run_id = desk.run()
    (event,) = [e for e in desk.store.events(run_id) if e.kind == EventKind.GRANT_USED]
    token = Token(run_id, "pay", 1, 1)
    claim = Claim(token, "till", "", "", NodeRecord(), None, None, [], [], None, [])
    worker = VisitJudge(
        desk.store,
        desk.engine.decision_keys,
        claim,
        retry=None,
        check_exclusions=lambda rule: None,
        known_grants=KnownGrants(desk.store),
        plain_issuer=str,
    )
    action = Action(worker.tenant, "tool", "refund", {"order": "1042", "amount": 120})
    assert (
        worker.use_grant(desk.till.refund.approval, action, event.data["key"])
        == event.data["grant"]
    )
    assert sorted(view.used for view in granting.list_grants(desk.engine)) == [0, 1]


@pytest.mark.full
def test_uses_at_the_same_time_are_counted_exactly(redis_url, keys):
    """Twenty at once of a grant for seven: seven are used."""
    desk = Desk(redis_url, rule_of(grants=replace(ALLOWED, sums={})))
    grant = desk.granted(uses=7, sums={}).grant

    def used(number: int) -> str:
        return desk.store.do(
            UseGrant(grant.id, grant.digest(), f"key-{number}", {}, "effect", "run", "pay")
        ).word

    with ThreadPoolExecutor(20) as pool:
        words = list(pool.map(used, range(20)))
    assert sorted(words) == ["spent"] * 13 + ["used"] * 7


def test_a_grant_that_a_revoked_key_has_signed_takes_no_more_votes(redis_url, keys):
    """No call begins by it, so nobody is told that it was made; a new one is, by who has a key."""
    desk = Desk(redis_url, rule_of(3, need=2))
    record = desk.propose(desk.question(desk.run()))
    assert desk.sign(record).status == "counted"
    path = Path(os.environ["RUNNER_DECISION_KEYS"])
    written = json.loads(path.read_text())
    (own,) = (key for key in written["keys"] if key["kid"] == "ana")
    own["revoked"] = int(time.time())
    path.write_text(json.dumps(written))
    assert desk.sign(record, "ben").status == "superseded"
    assert granting.list_grants(desk.engine)[0].state == "over"


@pytest.mark.full
def test_a_vote_for_a_grant_that_was_made_is_too_late(redis_url, keys):
    """Nobody is told that it counts, and it is not kept: who wants the grant to end revokes it."""
    desk = Desk(redis_url, rule_of())
    record = desk.granted()
    late = desk.sign(record, "ben", "reject")
    assert (late.status, "revoke it" in late.detail) == ("superseded", True)
    (view,) = granting.list_grants(desk.engine)
    assert [vote.by for vote in view.votes] == [f"human:{LOGIN}|ana"]


@pytest.mark.full
def test_four_eyes_hold_for_grants(redis_url, keys):
    """Who has granted it does not have a call of their own run made by it; a run of another person's is."""
    desk = Desk(redis_url, rule_of(exclude=["requester"]))
    record = desk.propose(desk.question(desk.run(requester="eva")))
    assert desk.sign(record, "eva").status == "forbidden"
    assert desk.sign(record, "ana").status == "accepted"
    desk.run(requester="ana")
    assert desk.paid() == []
    desk.run(requester="ben")
    assert desk.paid() == [120]


@pytest.mark.full
@pytest.mark.parametrize(
    "reference", ["#/definitions/code", "#/properties/paid", "#/$defs/code"]
)
def test_a_bound_on_an_argument_that_refers_elsewhere(reference):
    """The reference leads to another part of the tool's schema, so a value that fits is no mistake."""
    code = {"enum": ["EUR", "CHF"]}
    properties = {"paid": code, "currency": {"$ref": reference}}
    schema = {"properties": properties, "definitions": {"code": code}, "$defs": {"code": code}}
    check_reach({"properties": {"currency": {"const": "EUR"}}}, schema)
    with pytest.raises(GrantRefused):
        check_reach({"properties": {"currency": {"const": "USD"}}}, schema)


@pytest.mark.full
@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("bounds.amount", {"bounds": {"properties": {"amount": {"maximum": 501}}}}),
        ("bounds.amount", {"bounds": {"properties": {"amount": {"minimum": 1}}}}),
        ("bounds.amount", {"bounds": {}}),
        ("bounds.amount", {"bounds": {"properties": {"amount": {"enum": [5, 600]}}}}),
        ("bounds.amount", {"bounds": {"properties": {"amount": {"maximum": 5, "minimum": 6}}}}),
        ("bounds.amount.maximum", {"bounds": {"properties": {"amount": {"maximum": "500"}}}}),
        (
            "bounds.amuont",
            {"bounds": {"properties": {"amount": {"maximum": 5}, "amuont": {"maximum": 5}}}},
        ),
        (
            "bounds.order",
            {"bounds": {"properties": {"amount": {"maximum": 5}, "order": {"maximum": 5}}}},
        ),
        (
            "bounds.order",
            {"bounds": {"properties": {"amount": {"maximum": 5}, "order": {"const": 7}}}},
        ),
        (
            "bounds.amount",
            {"bounds": {"properties": {"amount": {"maximum": 5, "multipleOf": 2}}}},
        ),
        ("bounds", {"bounds": {"anyOf": []}}),
        ("bounds", {"bounds": {"properties": {"amount": {"maximum": 5}}, "required": ["x"]}}),
        ("uses", {"uses": 0}),
        ("uses", {"uses": 11}),
        ("uses", {"uses": 1.5}),
        ("sums.amount", {"sums": {"amount": 2_001}}),
        ("sums.amount", {"sums": {}}),
        ("sums.amount", {"sums": {"amount": 0}}),
        ("sums.order", {"sums": {"amount": 5, "order": 5}}),
        ("until", {"lifetime": -1}),
        ("until", {"lifetime": 8 * 86_400}),
        ("graphs", {"graphs": ["tlil"]}),
        ("graphs", {"graphs": ["till", "other"]}),
    ],
)
def test_a_grant_that_can_not_be_is_refused_with_its_field(redis_url, keys, field, options):
    """Nothing is stored, and the question stays open."""
    desk = Desk(redis_url, rule_of())
    builder = GraphBuilder()
    builder.add_node(lambda ctx: 1, "look")
    other = builder.build()
    desk.engine.registry.add("other", lambda: other)
    desk.engine.publish(["other"])
    question = desk.question(desk.run())
    with pytest.raises(GrantRefused) as refusal:
        desk.propose(question, **options)
    assert refusal.value.field == field
    assert desk.store.signed(GrantRecord) == {}


def test_a_rule_without_grants_has_none(redis_url, keys):
    """No question of such a rule, nor an unknown one, can be granted; an unknown grant can't be revoked."""
    desk = Desk(redis_url, rule_of(grants=None))
    with pytest.raises(GrantRefused) as refusal:
        desk.propose(desk.question(desk.run()))
    assert refusal.value.field == "rule"
    for change in (desk.propose, partial(granting.revoke, desk.engine, reason="why")):
        with pytest.raises(NotFoundError):
            change("unknown")


# Whoever writes to Redis.


def _forged(desk: Desk, record, chance: random.Random):
    """Return what an intruder makes of a grant: wider, for others, with other or more votes."""
    document = json.loads(desk.raw.hget(desk.key, record.grant.id))
    grant, votes = document["grant"], document["votes"]
    match chance.randrange(9):
        case 0:
            grant["bounds"]["properties"]["amount"]["maximum"] = 1_000_000
        case 1:
            grant["bounds"] = {"properties": {}}
        case 2:
            grant["uses"] = grant["uses"] * 100
        case 3:
            grant["sums"] = {"amount": 1_000_000.0}
        case 4:
            grant["until"] += 10**10
        case 5:
            grant["requesters"] = []
        case 6:
            votes.append({**votes[0], "by": f"human:{LOGIN}|ben"})
            document["rule"]["need"] = 1
        case 7:
            body = {**votes[0]["body"], "by": f"human:{LOGIN}|ben"}
            votes.append({**votes[0], "by": f"human:{LOGIN}|ben", "body": body})
        case _:
            document["rule"]["auth"] = {"level": 0, "max_age": None, "acr": None}
            votes.append({**votes[0], "body": {}, "level": 3, "by": "human:|eve"})
    return document


@pytest.mark.full
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize(
    "count", [4, pytest.param(test_forged_writes.WRITES, marks=pytest.mark.slow)]
)
def test_no_grant_that_was_written_has_an_effect(redis_url, keys, count, level):
    """Two must grant it, ana has: whatever is written to it, no call is made by it."""
    desk, chance = Desk(redis_url, rule_of(level, need=2)), random.Random(level)  # noqa: S311 - to repeat
    desk.key = next(iter(desk.raw.scan_iter("*:grants")), None)
    record = desk.propose(desk.question(desk.run()))
    desk.sign(record)
    desk.key = next(iter(desk.raw.scan_iter("*:grants")))
    original = desk.raw.hget(desk.key, record.grant.id)
    for number in range(count):
        desk.raw.hset(desk.key, record.grant.id, original)
        forged = _forged(desk, record, chance)
        desk.raw.hset(desk.key, forged["grant"]["id"], json.dumps(forged))
        desk.run(chance.choice([120, 9_999]))
        assert desk.paid() == [], f"change {number}: {forged}"


@pytest.mark.full
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize(
    "count", [4, pytest.param(test_forged_writes.WRITES, marks=pytest.mark.slow)]
)
def test_a_grant_that_holds_is_not_widened_by_a_write(redis_url, keys, count, level):
    """Both have granted it: calls beyond what they signed are not made."""
    desk, chance = Desk(redis_url, rule_of(level, need=2)), random.Random(level)  # noqa: S311 - to repeat
    record = desk.propose(desk.question(desk.run()), requesters=[f"human:{LOGIN}|zoe"])
    assert desk.sign(record).status == "counted"
    assert desk.sign(record, "ben").status == "accepted"
    desk.key = next(iter(desk.raw.scan_iter("*:grants")))
    original = desk.raw.hget(desk.key, record.grant.id)
    for number in range(count):
        desk.raw.hset(desk.key, record.grant.id, original)
        forged = _forged(desk, record, chance)
        desk.raw.hset(desk.key, forged["grant"]["id"], json.dumps(forged))
        desk.run(chance.choice([9_999, 501]), requester="zoe")
        desk.run(120, requester="eva")
        assert desk.paid() == [], f"change {number}: {forged}"


def test_at_level_0_a_written_grant_has_an_effect(redis_url):
    """The control: without signatures what is written counts."""
    desk = Desk(redis_url, rule_of(0, need=2))
    record = desk.propose(desk.question(desk.run()))
    desk.sign(record)
    desk.key = next(iter(desk.raw.scan_iter("*:grants")))
    document = json.loads(desk.raw.hget(desk.key, record.grant.id))
    document["votes"].append({**document["votes"][0], "by": "human:|ben"})
    desk.raw.hset(desk.key, record.grant.id, json.dumps(document))
    desk.run()
    assert desk.paid() == [120]


def test_a_damaged_grant_allows_nothing_and_stops_nothing(redis_url, keys):
    """Another one still holds."""
    desk = Desk(redis_url, rule_of())
    desk.granted()
    key = next(iter(desk.raw.scan_iter("*:grants")))
    desk.raw.hset(key, "damaged", b"\x00{")
    desk.run()
    assert desk.paid() == [120]


# Bounds.

BOUNDS = st.dictionaries(
    st.sampled_from(["maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"]),
    st.integers(-3, 3),
    max_size=3,
)
VALUES = st.one_of(
    st.integers(-4, 4), st.floats(-4, 4), st.sampled_from(["1", "2.5", "x", True, None, [1]])
)


@given(BOUNDS, BOUNDS, VALUES)
def test_narrower_bounds_take_no_other_value(inner, outer, value):
    """What narrower bounds take, the wider ones do."""
    narrow, wide = ({"properties": {"n": bound}} for bound in (inner, outer))
    try:
        check_bounds(narrow)
        check_narrower(narrow, wide)
    except GrantRefused:
        return
    assert not fits(narrow, {"n": value}) or fits(wide, {"n": value})


@pytest.mark.parametrize(("number", "is_within"), [(5, True), (6, False), ("100", False)])
def test_the_bounds_of_a_rule_hold_for_numbers_inside_a_value(number, is_within):
    """A text that a tool would read as a number is not within a maximum, however deep it is."""
    wide = {"order": {"properties": {"sums": {"items": {"maximum": 5}}}}}
    narrow = {"order": {"const": {"sums": [number]}}}
    with nullcontext() if is_within else pytest.raises(GrantRefused, match="wider"):
        check_narrower({"properties": narrow}, {"properties": wide})


@given(BOUNDS)
def test_bounds_are_within_themselves(bound):
    """Unless nothing is within them."""
    bounds = {"properties": {"n": bound}}
    with suppress(GrantRefused):
        check_bounds(bounds)
        check_narrower(bounds, bounds)


@pytest.mark.parametrize(
    ("bound", "value", "is_within"),
    [
        ({"maximum": 50}, "49.99", True),
        ({"maximum": 50}, "50.000000000000000001", False),
        ({"maximum": 50}, "fifty", False),
        ({"maximum": 50}, True, False),
        ({"maximum": 50}, "1_0", False),
        ({"maximum": 50}, " 5", False),
        ({"maximum": 50}, None, False),
        ({"maxLength": 3}, 12, False),
        ({"maxLength": 3}, "abc", True),
        ({"const": "EUR"}, "EUR", True),
        ({"const": "EUR"}, "eur", False),
        ({"enum": [1, 2]}, True, False),
        ({"exclusiveMaximum": 50}, 50, False),
    ],
)
def test_a_bound_for_numbers_takes_numbers_alone(bound, value, is_within):
    """A keyword that JSON Schema ignores for another type refuses it here; a Decimal is a number."""
    assert fits({"properties": {"n": bound}}, {"n": value}) is is_within
    assert not fits({"properties": {"n": bound}}, {})
