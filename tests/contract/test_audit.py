"""What the audit has: an entry for each event of a question with a rule, in the step that makes it true."""

from __future__ import annotations

import json

import pytest

from runner.approvals import digests
from runner.approvals.ballots import Use
from runner.approvals.digests import Action
from runner.approvals.rules import Principal, Rule
from runner.operations.recovery import ForkOptions, plan_fork, write_retry
from runner.records.checkpoints import Saved
from runner.records.interrupts import preimages
from runner.records.run import EventKind, Status
from runner.store.interface import Settlement
from runner.store.redis.store import RedisStore
from runner.store.requests import (
    CancelRun,
    ForkRun,
    Intervene,
    RemoveRun,
    SettleVisit,
    UseDecision,
)
from tests.contract.store import ManualWorker
from tests.contract.store.voting import REFUND, voting

RULE = Rule(eligible=["group:finance"])


def entries(store):
    """Read all entries, oldest first, without their times."""
    appended = [json.loads(raw) for audit in store.audit_logs for _, raw in audit.kept()]
    return [{name: part for name, part in entry.items() if name != "at"} for entry in appended]


def types(store):
    return [entry["type"] for entry in entries(store)]


@pytest.fixture
def make(clock, in_redis):
    """Make a store that audits."""
    return lambda audit="approvals": in_redis(clock, retention=60, audit=audit)


def answered(store, **options):
    """Take a run with one question to its end; return its id and the question."""
    worker = ManualWorker(store)
    if "rule" in options:
        people = voting(worker, **options)
        question, run_id = people.question, people.question.run_id
        people.vote("ana", comment="fine by me")
    else:
        run_id, question = worker.asking("a", **options)
        worker.answer(question)
    worker.settle(worker.token(run_id, "a"), "out")
    return run_id, question


def test_a_question_with_a_rule_is_audited_with_its_run(make):
    """From its first question with a rule on a run has entries, the first of which is its start."""
    store = make()
    run_id, question = answered(store, rule=RULE)

    appended = entries(store)
    assert [entry["type"] for entry in appended] == [
        "run.started",
        "asked",
        "voted",
        "decided",
        "run.ended",
    ]
    assert [entry["run_n"] for entry in appended] == [0, 1, 2, 3, 4]
    assert {entry["run"] for entry in appended} == {run_id}
    assert {entry["partition"] for entry in appended} == {"p00"}
    asked, voted, decided = appended[1:4]
    assert asked["question"] == decided["question"] == question.id
    assert asked["digests"]["question"] == decided["digests"]["question"] == question.digest
    assert (asked["node"], asked["visit"]) == ("a", 1)
    auth = {"level": 0, "method": "asserted", "selector": "group:finance"}
    assert (voted["actor"], voted["auth"], voted["outcome"]["vote"]) == ("human:|ana", auth, 1)
    policy = digests.digest("policy", preimages(store.interrupts([question.id])[0])["policy"])
    assert {entry["digests"]["policy"] for entry in (asked, voted, decided)} == {policy}
    effect = Action.digest(REFUND)
    assert (
        asked["digests"]["action"]
        == voted["digests"]["effect"]
        == decided["digests"]["effect"]
        == effect
    )
    assert decided["outcome"] == {"decision": "approve"}
    assert "fine by me" not in json.dumps(appended)  # payloads by digest only


@pytest.mark.parametrize(("audit", "expected"), [
    ("off", []),
    ("approvals", []),
    ("all", ["run.started", "asked", "decided", "run.ended"]),
])  # fmt: skip
def test_a_run_without_a_rule_is_audited_only_with_all(make, audit, expected):
    """By default a question without a rule leaves nothing."""
    store = make(audit)
    answered(store)

    assert types(store) == expected


def test_a_hold_its_end_and_a_skip_name_the_operator(make):
    """Each has the actor, and the reason by its hash; the question of a skipped node is withdrawn."""
    store = make()
    run_id = voting(ManualWorker(store), RULE).question.run_id
    held, released = EventKind.NODE_HELD, EventKind.NODE_RELEASED
    for kind, by, outputs in (
        (held, "human:|ana", ()),
        (released, "human:|bo", ()),
        (EventKind.NODE_OVERRIDDEN, "human:|cy", ["paid"]),
    ):
        reply = store.do(Intervene(run_id, "a", kind, by, "a secret", outputs))
        assert reply.word == "done"

    appended = [
        (
            entry["type"],
            entry.get("actor"),
            entry["node"],
            "payload" in entry.get("digests", {}),
        )
        for entry in entries(store)[2:]
    ]
    assert appended == [
        ("held", "human:|ana", "a", True),
        ("node.released", "human:|bo", "a", False),
        ("withdrawn", None, "a", False),
        ("node.overridden", "human:|cy", "a", True),
    ]
    assert "secret" not in json.dumps(entries(store))


def test_a_cancelled_run_says_so(make):
    """A cancel leaves why by its hash, the withdrawn question and the end."""
    store = make()
    run_id = voting(ManualWorker(store), RULE).question.run_id
    store.do(CancelRun(run_id, "wrong customer"))

    assert types(store)[2:] == ["run.cancelled", "withdrawn", "run.ended"]
    assert entries(store)[-1]["outcome"] == {"status": "cancelled"}
    assert "wrong customer" not in json.dumps(entries(store))


def test_time_is_audited(make, clock):
    """A reminder and an expiry are done by a sweep, and have entries."""
    store = make()
    voting(ManualWorker(store), RULE, remind_every=10, expires_in=15)
    clock.advance(11)
    store.sweep()
    clock.advance(5)
    store.sweep()

    assert types(store)[2:] == ["reminded", "expired"]


def test_a_removed_run_leaves_its_entries(make):
    """What was appended stays, and the last entry says that the run is gone."""
    store = make()
    run_id, _ = answered(store, rule=RULE)
    store.do(RemoveRun(run_id))

    assert types(store)[-1] == "run.removed"
    assert [entry["run_n"] for entry in entries(store)] == [0, 1, 2, 3, 4, 5]


def test_a_refused_vote_is_audited(make):
    """Who may not vote leaves an entry; who votes twice leaves none, as it changes nothing."""
    store = make()
    people = voting(ManualWorker(store), Rule(eligible=["group:finance"], need=3))
    people.vote("eve", groups=())
    people.vote("ana")
    people.vote("ana")

    assert types(store) == ["run.started", "asked", "refused", "voted"]
    assert entries(store)[2]["actor"] == "human:|eve"


def test_forks_and_retries_are_audited(make):
    """With "all" a fork begins with its start and its source, which a script writes in Redis."""
    store = make("all")
    run_id, _ = answered(store)
    store.do(ForkRun(plan_fork(store, run_id, "a", None, ForkOptions("00new"))))
    store.do(CancelRun("00new", "enough"))
    write_retry(store, "00new", by="human:|eva")

    assert types(store)[4:] == [
        "run.started",
        "run.forked",
        "run.cancelled",
        "run.ended",
        "run.retried",
    ]
    assert entries(store)[5]["outcome"] == {"source": run_id}
    assert entries(store)[8]["actor"] == "human:|eva"


def test_a_child_run_names_its_root(make):
    """With "all" a nested graph's run has entries of its own; the first says inside which run it is."""
    store = make("all")
    worker = ManualWorker(store)
    token = worker.claim(worker.start("a"), "a").token
    worker.start("x", parent=token)

    child = entries(store)[-1]
    assert (child["type"], child["run_n"], child["outcome"]["root"]) == (
        "run.started",
        0,
        token.run_id,
    )


def test_a_run_names_who_asked_for_it(make):
    """The first entry has the requester as its actor, and so has that of a child run."""
    store = make("all")
    worker = ManualWorker(store)
    asked = {"principal": "human:|cora", "on_behalf_of": ["human:|dan"]}
    run_id = worker.start("a", requester=asked)
    worker.start("x", parent=worker.token(run_id, "a"))

    assert [entry["actor"] for entry in entries(store)] == ["human:|cora"] * 2
    assert [entry["outcome"]["on_behalf_of"] for entry in entries(store)] == [
        ["human:|dan"]
    ] * 2


def test_a_vote_says_how_its_voter_is_known_and_which_one_it_follows(make):
    """`auth` has the proof of a vote, and one that comes after an edit names the voter's vote before."""
    store = make()
    worker = ManualWorker(store)
    people, now = (
        voting(worker, Rule(eligible=["group:finance"], need=2)),
        worker.clock.now // 1000,
    )
    ana = Principal("ana", "https://login.example")
    times = {"iat": now, "exp": now + 99}
    proof = {"alg": "Ed25519", "kid": "door", "jti": "1", **times, "auth_time": 80}
    people.vote(ana, level=2, body={"proof": proof})
    people.vote("ben", "edit", {"order": "7", "amount": "9"})
    people.vote(
        ana,
        "edit",
        {"order": "7", "amount": "9"},
        level=3,
        body={"proof": {"alg": "webauthn", **times}},
    )

    first, edit, last = (entry for entry in entries(store) if entry["type"] == "voted")
    issuer = {"iss": "https://login.example", "selector": "group:finance"}
    assert first["auth"] == {
        "level": 2,
        "method": "login",
        "at": 80_000,
        "kid": "door",
        "jti": "1",
        **issuer,
    }
    assert last["auth"] == {"level": 3, "method": "webauthn", "at": now * 1000, **issuer}
    assert (first.get("prev_vote"), edit.get("prev_vote"), last.get("prev_vote")) == (
        None,
        None,
        1,
    )
    assert [entry["outcome"]["vote"] for entry in (first, edit, last)] == [1, 2, 3]


def test_who_was_shown_the_question_is_audited_with_what_they_did(make):
    """A door that says when it showed the question leaves an entry before that of what was done."""
    store = make()
    worker = ManualWorker(store)
    people = voting(worker, RULE)
    people.act("ben", "claim", ttl=1_000, shown_at=7)
    people.vote("ana", shown_at=8)
    voting(worker, RULE).vote("ana")  # control

    expected = [
        "shown",
        "claimed",
        "shown",
        "voted",
        "decided",
        "run.started",
        "asked",
        "voted",
        "decided",
    ]
    assert types(store)[2:] == expected
    ben, ana = (entry for entry in entries(store) if entry["type"] == "shown")
    assert (ben["actor"], ben["outcome"]) == ("human:|ben", {"shown_at": 7})
    assert (ana["actor"], ana["outcome"]) == ("human:|ana", {"shown_at": 8})
    assert ana["digests"]["question"] == people.question.digest


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
def test_the_end_of_an_effect_is_audited_with_its_node(make, status):
    """The settle that ends what was approved says so, by the digest of what came of it."""
    store = make()
    worker = ManualWorker(store)
    people = voting(worker, RULE)
    people.vote("ana")
    token = worker.token(people.question.run_id, "a")
    use = Use(people.question.id, Action.digest(REFUND), "key")
    store.do(UseDecision(token, use, Saved({"v": 1})))
    ended = Settlement(status, "", "paid", {"v": 1}, effects=[use.with_outcome(status, "paid")])
    assert [store.do(SettleVisit(token, ended, "nonce")).word for _ in range(2)] == [
        "settled"
    ] * 2  # a repeat

    assert types(store)[-3:] == ["used", "effect.ended", "run.ended"]
    ended = entries(store)[-2]
    assert ended["outcome"] == {"key": "key", "status": status}
    assert ended["digests"]["payload"] == digests.payload_digest("paid")
    assert ended["digests"]["effect"] == ended["digests"]["action"] == use.effect
    assert "paid" not in json.dumps(entries(store))


def test_the_end_of_a_call_is_audited_with_its_checkpoint(make):
    """The checkpoint that ends an approved call of an agent says so, once however often it is sent."""
    store = make()
    worker = ManualWorker(store)
    people = voting(worker, RULE)
    people.vote("ana")
    token = worker.token(people.question.run_id, "a")
    use = Use(people.question.id, Action.digest(REFUND), "key")
    for step in (
        use,
        use,
        use.with_outcome("failed", "lost"),
        use.with_outcome("failed", "lost"),
    ):
        assert store.do(UseDecision(token, step, Saved({"v": 1}))).word == "used"

    assert types(store)[-2:] == ["used", "effect.ended"]
    assert entries(store)[-1]["outcome"] == {"key": "key", "status": "failed"}


def test_a_run_whose_question_is_damaged_is_cancelled(clock, redis_url):
    """The entry of the withdrawal has the question's id alone; control: of a whole one digests, too."""
    store = RedisStore(redis_url, clock=clock, audit="approvals")
    worker = ManualWorker(store)
    for is_damaged in (True, False):
        run_id, question = worker.asking("a", rule=RULE)
        if is_damaged:
            _, _, name = question.id.partition(".")
            key = f"runner:{{p00}}:r:{run_id}"
            store.connection.call("HSET", key, f"i:{name}", b"1 2 0 z\xff")
        store.do(CancelRun(run_id, "damaged"))
        assert store.peek(run_id).status is Status.CANCELLED
        (withdrawal,) = [
            entry
            for entry in entries(store)
            if (entry["type"], entry["run"]) == ("withdrawn", run_id)
        ]
        assert withdrawal["question"] == question.id
        assert bool(withdrawal.get("digests")) is not is_damaged
    store.close()
