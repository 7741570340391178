"""Absences and reassignments: another person votes in one's place, for no more than was said."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runner import Client
from runner.approvals import Auth, Rule, SigningKey, absence_body
from runner.approvals.absences import Absence
from runner.approvals.proofs import encoded
from runner.approvals.rules import Principal, Voter
from runner.approvals.votes import absences, begin_absence, end_absence
from runner.audit.checkpoint import public_bytes
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.operations.answers import apply_decisions, reassign
from runner.operations.questions import read_question
from runner.records.interrupts import Decision
from runner.records.messages import vote_body
from runner.records.run import Status
from runner.store.redis.keys import Keys
from tests.execution import test_forged_writes
from tests.execution.test_effects import DOOR, LOGIN
from tests.execution.test_grants import Desk
from tests.graphs import single, wired
from tests.server.conftest import Site
from tests.waiting import wait_until

keys = test_forged_writes.keys

HOUR = 3_600_000


def rule_of(level=0, **options):
    options.setdefault("delegate", "anyone")
    return Rule(eligible=["group:finance"], auth=Auth(level=level), **options)


def now():
    return time.time_ns() // 1_000_000


class Office(Desk):
    """Ana is of finance, and zoe is not."""

    def who(self, name):
        return Principal(name, LOGIN if self.signed else "")

    def away(self, name="ana", to="zoe", *, groups=("finance",), since=0, until=HOUR, only=()):
        body = absence_body(
            self.store.namespace,
            self.who(name),
            self.who(to),
            since=now() + since,
            until=now() + until,
            only=only,
        )
        if self.signed:
            body = DOOR.sign(body, login={"groups": groups, "level": self.level})
        return begin_absence(self.engine, body, Voter(self.who(name), frozenset(groups)))

    def vote(self, question_id, name="zoe", *, groups=(), edit=None, digest="", key=DOOR):
        """Approve as somebody without groups; run what is ready, and return the status of the receipt."""
        (question,) = self.store.interrupts([question_id])
        digest, kind = digest or question.digest, "edit" if edit else "approve"
        body = vote_body(question_id, kind, self.who(name), digest=digest, response=edit)
        if self.signed:
            body = key.sign(body, login={"groups": list(groups), "level": self.level})
        voter = Voter(self.who(name), frozenset(groups))
        decision = Decision(question_id, edit, None, None, digest, kind, voter=voter, body=body)
        (receipt,) = apply_decisions(self.engine, [decision])
        self.go_on()
        return receipt.status

    def ask(self):
        return self.question(self.run())

    def write(self, by, absence):
        """Write an absence to Redis."""
        self.raw.hset(Keys("runner").absences, by, json.dumps(absence))


def seen(engine, question_id):
    """A question as people see it."""
    return read_question(engine.store, engine.store.interrupts([question_id])[0])


def told(events, kind):
    """What the events of a kind say."""
    return [event.data for event in events if event.kind == kind]


@pytest.mark.full
@pytest.mark.parametrize("level", [0, 2])
def test_another_votes_while_one_is_away(redis_url, keys, level):
    """Before and after, or without it, they may not; the question says who may, and the events who did."""
    office = Office(redis_url, rule_of(level))
    first, second = office.ask(), office.ask()
    assert office.vote(first) == "forbidden"
    office.away(since=HOUR, until=2 * HOUR)
    assert office.vote(first) == "forbidden"
    office.away()
    (away,) = seen(office.engine, first).away
    assert (away.by, away.to) == (office.who("ana").key, office.who("zoe").key)
    assert office.vote(first) == "accepted"
    assert office.paid() == [120]
    events = office.engine.store.events(first.partition(".")[0])
    (lent,) = told(events, "interrupt.delegated")
    assert (lent["by"], lent["to"]) == (away.by, away.to)
    end_absence(office.engine, office.who("ana"))
    assert office.vote(second) == "forbidden"
    with pytest.raises(NotFoundError):
        end_absence(office.engine, office.who("ana"))
    assert office.paid() == [120]


@pytest.mark.full
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(
    ("rule", "absence", "status"),
    [
        ({}, {"only": ["group:finance"]}, "accepted"),
        ({}, {"only": ["group:sales"], "groups": ("finance", "sales")}, "forbidden"),
        ({}, {"only": ["user:ana"]}, "forbidden"),
        ({}, {"name": "bob", "groups": ()}, "forbidden"),
        ({}, {"to": "ivy"}, "forbidden"),
        ({"delegate": "none"}, {}, "forbidden"),
        ({"delegate": "group"}, {}, "forbidden"),
        ({"exclude": ["user:zoe"]}, {}, "forbidden"),
        ({"exclude": ["user:ana"]}, {}, "forbidden"),
    ],
)
def test_no_absence_lends_more_than_the_rule_allows(
    redis_url, keys, *, level, rule, absence, status
):
    """Nor more than who is away may do by what they name."""
    issuer = f"human:{LOGIN}|" if level else ""
    rule = {
        name: [form.replace("user:", f"user:{issuer}") for form in value]
        if name == "exclude"
        else value
        for name, value in rule.items()
    }
    office = Office(redis_url, rule_of(level, **rule))
    question = office.ask()
    office.away(**absence)
    assert office.vote(question) == status


@pytest.mark.parametrize("level", [0, 2])
def test_a_lent_vote_is_one_vote_whoever_casts_it(redis_url, keys, level):
    """A weight of zoe's own, by which she may not vote, doesn't make two votes of ana's one."""
    office = Office(redis_url, rule_of(level, need=2, weights={"group:board": 2}))
    question = office.ask()
    office.away()
    assert office.vote(question, groups=("board",)) == "counted"
    assert office.paid() == []
    assert office.vote(question, "ben", groups=("finance",)) == "accepted"
    assert office.paid() == [120]


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ([], ["group:finance", "user:ana"]),
        (["user:human:|ana"], ["user:ana"]),
        (["group:finance", "group:sales"], ["group:finance"]),
    ],
)
def test_an_absence_adds_to_the_inbox_what_it_lends(only, names):
    """Not what anyone may decide: that is in nobody's own list."""
    absence = Absence("human:|ana", "human:|zoe", 1, 2, only, groups=["finance"])
    assert sorted(absence.selectors) == names


@pytest.mark.full
def test_two_people_are_two(redis_url, keys):
    """Where two must approve, one who stands in for another casts one vote, and none of their own."""
    office = Office(redis_url, rule_of(2, need=2))
    question = office.ask()
    office.away()
    assert [office.vote(question), office.vote(question)] == ["counted", "duplicate"]
    assert office.paid() == []


@pytest.mark.full
@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(
    ("rule", "vote"),
    [
        ({"delegate": "group"}, {}),
        ({"exclude": ["group:sales"]}, {"groups": ["sales"]}),
        ({}, {"digest": "0" * 64}),
    ],
)
def test_a_vote_that_is_refused_takes_nobodys_place(redis_url, keys, *, level, rule, vote):
    """Who is away can still vote, and no event says that another has their vote."""
    office = Office(redis_url, rule_of(level, **rule))
    question = office.ask()
    office.away()
    assert office.vote(question, **vote) in {"forbidden", "rejected"}
    assert office.vote(question, "ana", groups=["finance"]) == "accepted"
    events = office.engine.store.events(question.partition(".")[0])
    assert not told(events, "interrupt.delegated")


@pytest.mark.full
@pytest.mark.parametrize("level", [0, 2])
def test_after_an_absence_no_earlier_loan_counts(redis_url, keys, level):
    """An edit voids the vote that was cast in their place; who is back votes themselves."""
    office = Office(redis_url, rule_of(level, need=3))
    question = office.ask()
    office.away()
    edit = {"order": "1042", "amount": 100}
    assert office.vote(question) == "counted"
    assert office.vote(question, "eva", groups=["finance"], edit=edit) == "counted"
    assert office.vote(question, edit=edit) == "counted"  # still away
    edit["amount"] = 90
    assert office.vote(question, "eva", groups=["finance"], edit=edit) == "counted"
    end_absence(office.engine, office.who("ana"))
    assert office.vote(question, edit=edit) == "forbidden"


def with_key(key, **members):
    """Let workers and doors know a key, or know it with other members."""
    path = Path(os.environ["RUNNER_DECISION_KEYS"])
    others = [
        entry for entry in json.loads(path.read_text())["keys"] if entry["kid"] != key.kid
    ]
    entry = {"kty": "OKP", "crv": "Ed25519", "kid": key.kid, **members}
    entry["x"] = encoded(public_bytes(key.key.public_key()))
    path.write_text(json.dumps({"keys": [*others, entry]}))


def key_of(name):
    return SigningKey(name, Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b"k")))


@pytest.mark.full
def test_a_passkey_signs_one_absence_for_many_questions(redis_url, keys, monkeypatch):
    """Its counter is of the signature, not of the votes that it lends."""
    monkeypatch.setattr(test_forged_writes.PASSKEY, "count", 5)
    zoe = key_of("zoe")
    with_key(zoe, level=3, principal=f"human:{LOGIN}|zoe")
    office = Office(redis_url, rule_of(3))
    ben, to = office.who("ben"), office.who("zoe")
    body = absence_body("runner", ben, to, since=now(), until=now() + HOUR)
    signed = {**body, "proof": test_forged_writes.by_passkey(body)}
    begin_absence(office.engine, signed, Voter(ben))
    assert [office.vote(office.ask(), key=zoe) for _ in range(2)] == ["accepted"] * 2
    assert office.paid() == [120] * 2


@pytest.mark.full
@pytest.mark.parametrize("sees", ["door", "worker"])
def test_a_key_that_was_revoked_lends_no_vote_from_then_on(redis_url, keys, monkeypatch, sees):
    """A thief of a key dates an absence before its revocation, and it lasts for no year."""
    stolen = key_of("stolen")
    with_key(stolen, level=2)
    office = Office(redis_url, rule_of(2))
    ana = office.who("ana")
    first, second = office.ask(), office.ask()
    body = absence_body("runner", ana, office.who("zoe"), since=now(), until=now() + HOUR)
    login = {"groups": ["finance"], "level": 2}
    begin_absence(
        office.engine, stolen.sign(body, login=login, now=time.time() - 10), Voter(ana)
    )
    assert office.vote(first) == "accepted"
    known = office.engine.decision_keys.read()
    with_key(stolen, level=2, revoked=time.time() - 5)
    if sees == "worker":
        reads = iter([known] * 2)
        read = office.engine.decision_keys.read
        monkeypatch.setattr(
            type(office.engine.decision_keys), "read", lambda _: next(reads, None) or read()
        )
    assert office.vote(second) == ("accepted" if sees == "worker" else "forbidden")
    assert office.paid() == [120]


FORGED = {
    "until": lambda absence: {**absence, "since": 1, "until": now() + HOUR},
    "to": lambda absence: {**absence, "to": f"human:{LOGIN}|zoe"},
    "body": lambda absence: {**absence, "body": {**absence["body"], "until": now() + HOUR}},
    "tenant": lambda absence: {**absence, "body": {**absence["body"], "tenant": "other"}},
    "by": lambda absence: {**absence, "by": f"human:{LOGIN}|eva"},
}


@pytest.mark.full
@pytest.mark.parametrize("forged", FORGED)
def test_no_absence_that_was_written_has_an_effect(redis_url, keys, forged):
    """Whoever writes to Redis lengthens or redirects an absence, and nothing is paid."""
    office = Office(redis_url, rule_of(2))
    question = office.ask()
    to = "ivy" if forged == "to" else "zoe"
    absence = office.away(to=to, since=HOUR, until=2 * HOUR)
    if forged == "to":
        absence = office.away(to=to)
    written = FORGED[forged](asdict(absence))
    office.write(absence.by, written)
    # What a door can't see, the worker does.
    assert office.vote(question) == ("accepted" if forged in {"until", "to"} else "forbidden")
    assert office.paid() == []


@pytest.mark.full
def test_at_level_0_a_written_absence_has_an_effect(redis_url):
    """The control: where nothing is signed, what is stored counts."""
    office = Office(redis_url, rule_of(0))
    question = office.ask()
    written = Absence("human:|ana", "human:|zoe", 1, now() + HOUR, groups=["finance"])
    office.write("human:|ana", asdict(written))
    assert office.vote(question) == "accepted"
    assert office.paid() == [120]


def test_an_absence_is_checked_where_it_is_said(redis_url, keys):
    """Somebody else votes, it ends in the future, and it is signed by the person."""
    office = Office(redis_url, rule_of(2))
    for options in (
        {"to": "ana"},
        {"until": -1},
        {"until": 400 * 24 * HOUR},
        {"only": ["x:y"]},
    ):
        with pytest.raises(UsageError):
            office.away(**options)
    body = absence_body("runner", "ana", "zoe", since=now(), until=now() + HOUR)
    with pytest.raises(UsageError, match="another person"):
        begin_absence(office.engine, body, Voter(Principal("eva")))
    assert absences(office.engine) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("only", "status"),
    [((), "accepted"), (["user:ana"], "accepted"), (["group:x"], "forbidden")],
)
def test_a_plain_question_is_answered_for_an_absent_assignee(
    redis_url, monkeypatch, only, status
):
    """While ana is away and by zoe alone; the receipt, the event and the audit say for whom."""
    monkeypatch.setenv("RUNNER_AUDIT", "all")
    site = Site(redis_url, {"ask": lambda: asking(assignees=["ana", "eva"])})
    client: Client = site.client
    run, later = site.start("ask"), site.start("ask")
    (question,), (other,) = run.interrupts(), later.interrupts()
    assert client.respond(question.id, 5, responder="zoe").status == "forbidden"
    client.begin_absence(by="ana", to="zoe", until=now() + HOUR, only=only)
    assert client.respond(question.id, 5, responder="ivy").status == "forbidden"
    view = seen(client.engine, question.id)
    assert [away.to for away in view.away] == ["human:|zoe"] * (status == "accepted")
    receipt = client.respond(question.id, 5, responder="zoe")
    assert receipt.status == status
    if status == "accepted":
        assert receipt.detail == "for ana"
        (event,) = told(run.events(), "interrupt.answered")
        assert (event["responder"], event["instead_of"]) == ("zoe", "human:|ana")
        (log,) = client.engine.store.audit_logs
        entries = [json.loads(text) for _, text in log.after("0")]
        (entry,) = [each for each in entries if each["type"] == "decided"]
        assert entry["actor"] == "human:|zoe"
        assert entry["outcome"]["instead_of"] == "human:|ana"
    client.end_absence("ana")
    assert client.respond(other.id, 5, responder="zoe").status == "forbidden"
    assert client.respond(other.id, 5, responder="ana").status == "accepted"


# -- reassigning -------------------------------------------------------------------------------------


def asking(**options):
    return single(lambda ctx: ctx.interrupt("how much?", **options))


def two_questions(redis_url, rule):
    """A client, and a question of each of two runs that ask by a rule."""
    site = Site(redis_url, {"ask": lambda: asking(rule=rule, action={"amount": 5})})
    return site.client, [site.start("ask").interrupts()[0] for _ in range(2)]


def test_a_plain_question_is_asked_again_of_another(redis_url):
    """Who was asked can't answer any more; events say who did it, and why."""
    site = Site(redis_url, {"ask": lambda: asking(assignees=["ana"])})
    client: Client = site.client
    run = site.start("ask")
    (question,) = run.interrupts()
    with pytest.raises(UsageError, match="reason"):
        client.reassign(question.id, to="ben", reason=" ")
    receipt = client.reassign(question.id, to="ben", reason="ana has left", by="ops")
    assert receipt.status == "accepted"
    site.work()
    (again,) = run.interrupts()
    assert (again.assignees, again.name) == (["ben"], "how much?")
    assert client.respond(question.id, 5, responder="ana").status == "superseded"
    assert client.respond(again.id, 5, responder="ana").status == "forbidden"
    assert client.respond(again.id, 5, responder="ben").status == "accepted"
    site.work()
    assert run.status == Status.COMPLETED
    (event,) = told(run.events(), "interrupt.withdrawn")
    assert event == {"reason": "ana has left", "reask": True, "by": "human:|ops", "to": ["ben"]}
    with pytest.raises(ConflictError):
        client.reassign(again.id, to="eva", reason="too late")


@pytest.mark.full
def test_an_operator_reassigns_within_the_rule(redis_url):
    """As far as it lets somebody stand in; who was to decide can't any more."""
    graphs = {
        name: lambda rule=rule: asking(rule=rule, action={"amount": 5})
        for name, rule in {
            "anyone": Rule(eligible=["ana"], delegate="anyone"),
            "none": Rule(eligible=["ana"]),
            "two": Rule(eligible=["ana", "eva"], delegate="anyone"),
        }.items()
    }
    site = Site(redis_url, graphs)
    client: Client = site.client
    (free,), (fixed,), (two,) = (site.start(name).interrupts() for name in graphs)
    assert client.reassign(fixed.id, to="ben", reason="ana has left").status == "forbidden"
    with pytest.raises(UsageError, match="whom they replace"):
        client.reassign(two.id, to="ben", reason="ana has left")
    options = {"to": "ben", "reason": "ana has left", "by": "ops"}
    assert client.reassign(two.id, **options, instead_of="ana").status == "accepted"
    assert client.reassign(free.id, **options).status == "accepted"
    assert client.vote(free.id, "approve", by="ana").status == "forbidden"
    assert client.vote(free.id, "approve", by="ben").status == "accepted"
    run = client.run(free.run_id)
    (event,) = told(run.events(), "interrupt.delegated")
    assert event["by"] == "human:|ops"
    assert (event["instead_of"], event["to"]) == ("human:|ana", "human:|ben")
    assert event["comment"] == "ana has left"


def test_one_who_is_eligible_themselves_uses_up_nobodys_vote(redis_url):
    """Their vote is their own, and the other's goes to a third person."""
    rule = Rule(eligible=["ana", "eva"], need=2, delegate="anyone")
    client, (question, _) = two_questions(redis_url, rule)
    options = {"instead_of": "ana", "reason": "ana has left"}
    assert client.reassign(question.id, to="eva", **options).status == "accepted"
    votes = [client.vote(question.id, "approve", by="eva").status for _ in range(2)]
    assert votes == ["counted", "duplicate"]
    assert client.reassign(question.id, to="ben", **options).status == "accepted"
    assert client.vote(question.id, "approve", by="ben").status == "accepted"


def test_where_votes_are_signed_only_the_person_lends_theirs(redis_url, keys):
    """An operator is told what to do instead."""
    office = Office(redis_url, rule_of(2))
    with pytest.raises(UsageError, match="reask"):
        reassign(office.engine, office.ask(), "ben", "ana has left", instead_of="ana")


EXCLUSIONS = {
    "requester": ({"exclude": ["requester"]}, "req"),
    "on behalf": ({"exclude": ["requester"]}, "bea"),
    "requester of a login": ({"exclude": ["requester"]}, "human:https://login|req"),
    "person": ({"exclude": ["user:ben"]}, "ben"),
    "group": ({"exclude": ["group:sales"]}, "sam"),
    "stage": ({"stages": [Rule(eligible=["ana"], exclude=["user:ben"])]}, "ben"),
    "agent": ({}, "agent:|bot"),
    "answerer": ({"exclude": ["answered:first"]}, "ivo"),
}


class Sales:
    """A directory with sam in sales."""

    def groups(self, principal):
        """Return sales for sam."""
        return ["sales"] if principal.sub == "sam" else []

    def roles(self, principal):
        """Return nothing."""
        return []


SALES = Sales()


@pytest.mark.full
@pytest.mark.parametrize("exclusion", EXCLUSIONS)
@pytest.mark.parametrize("who", ["operator", "person"])
def test_nobody_whom_the_rule_excludes_is_put_in_anothers_place(
    redis_url, monkeypatch, who, exclusion
):
    """They are refused with the reason of a vote, and ana keeps her vote."""
    monkeypatch.setenv("RUNNER_DIRECTORY", f"{__name__}:SALES")
    options, excluded = EXCLUSIONS[exclusion]
    rule = Rule(
        **({} if "stages" in options else {"eligible": ["ana"]}), delegate="anyone", **options
    )

    nodes = {
        "first": lambda ctx: ctx.interrupt("first?"),
        "pay": lambda ctx: ctx.interrupt("pay?", rule=rule).decision,
    }
    site = Site(redis_url, {"ask": wired(nodes, "first pay").build})
    client: Client = site.client
    run = client.start("ask", "go", requester="req", on_behalf_of=["bea"])
    site.work()
    client.respond(run.interrupts()[0].id, True, responder="ivo")
    site.work()
    (question,) = run.interrupts()

    def lend(to):
        if who == "person":
            return client.delegate(question.id, to=to, by="ana")
        return client.reassign(
            question.id, to=to, instead_of="ana", reason="ana is ill", by="ops"
        )

    refused = lend(excluded)
    assert refused.status == "forbidden"
    assert client.vote(question.id, "approve", by=excluded).status == "forbidden"
    assert "may not vote in your place: " in refused.detail
    assert lend("eva").status == "accepted"
    assert client.vote(question.id, "approve", by="eva").status == "accepted"


@pytest.mark.full
@pytest.mark.parametrize("who", ["operator", "person"])
def test_a_loan_with_an_end_returns_the_vote(redis_url, who):
    """Until then the other votes, afterwards ana does; nobody can lend until a time that is past."""
    client, (question, other) = two_questions(
        redis_url, Rule(eligible=["ana"], delegate="anyone")
    )

    def lend(question_id, to, until):
        if who == "person":
            return client.delegate(question_id, to=to, by="ana", until=until)
        return client.reassign(question_id, to=to, reason="ana is ill", by="ops", until=until)

    with pytest.raises(UsageError, match="in the future"):
        lend(question.id, "ben", now() - 1)
    end = now() + 60_000
    assert lend(other.id, "ben", end).status == "accepted"
    view = seen(client.engine, other.id)
    assert view.delegated == {"human:|ben": "human:|ana"}
    assert view.delegation_ends == {"human:|ana": end}
    assert client.vote(other.id, "approve", by="ana").status == "forbidden"
    assert client.vote(other.id, "approve", by="ben").status == "accepted"

    end = now() + 300
    assert lend(question.id, "ben", end).status == "accepted"
    run = client.run(question.run_id)
    (event,) = told(run.events(), "interrupt.delegated")
    assert event["until"] == end
    wait_until(lambda: now() > end, "the end of the loan")
    assert client.vote(question.id, "approve", by="ben").status == "forbidden"
    view = seen(client.engine, question.id)
    assert view.delegated == {}
    assert lend(question.id, "eva", now() + 60_000).status == "accepted"
    assert client.vote(question.id, "approve", by="ana").status == "forbidden"
    end = now() + 300
    assert lend(question.id, "eva", end).status == "accepted"
    wait_until(lambda: now() > end, "the end of the second loan")
    assert client.vote(question.id, "approve", by="ana").status == "accepted"


@pytest.mark.full
def test_a_vote_that_is_taken_back_returns_to_its_owner(redis_url):
    """By the stand-in, whose loan may be over by then; and no loan ends in a thousand years."""
    rule = Rule(eligible=["ana", "cid"], need=2, delegate="anyone")
    client, (question, other) = two_questions(redis_url, rule)
    with pytest.raises(UsageError, match="366 days"):
        client.delegate(question.id, to="ben", by="ana", until=10**15)
    end = now() + 3_000
    for each in (question, other):
        client.delegate(each.id, to="ben", by="ana", until=end)
        assert client.vote(each.id, "approve", by="ben").status == "counted"
    assert client.withdraw_vote(question.id, by="ben").status == "withdrawn_vote"
    wait_until(lambda: now() > end, "the end of the loans")
    assert client.vote(other.id, "approve", by="ana").status == "forbidden"
    assert client.withdraw_vote(other.id, by="ben").status == "withdrawn_vote"

    for each in (question, other):
        view = seen(client.engine, each.id)
        assert view.delegation_ends == {}
        assert client.vote(each.id, "approve", by="ana").status == "counted"
        assert client.vote(each.id, "approve", by="cid").status == "accepted"
