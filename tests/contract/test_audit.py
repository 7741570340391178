"""What the audit has: an entry for each event of a question with a rule, in the step that makes it true."""

from __future__ import annotations

import json

import pytest

from runner.operations.recovery import ForkOptions, plan_fork, write_retry
from runner.records.approvals import Rule
from runner.records.digests import Action
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.testing.contract import ManualWorker
from runner.testing.contract.manual_worker import shape
from runner.testing.contract.voting import REFUND, voting

RULE = Rule(eligible=["group:finance"])


def entries(store):
    """Read all entries, oldest first, without their times."""
    if isinstance(store, MemoryStore):
        appended = store.audit_entries
    else:
        appended = [json.loads(raw) for audit in store.audit_logs for _, raw in audit.kept()]
    return [{name: part for name, part in entry.items() if name != "at"} for entry in appended]


def types(store):
    return [entry["type"] for entry in entries(store)]


@pytest.fixture(params=["memory", "redis"])
def make(request, clock, redis_url):
    """Make a store of either kind."""
    stores = []

    def make(audit="approvals"):
        if request.param == "memory":
            return MemoryStore(clock, audit=audit)
        stores.append(RedisStore(redis_url, clock=clock, retention=60, audit=audit))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def answered(store, **options):
    """Take a run with one question to its end; return its id and the question."""
    worker = ManualWorker(store)
    if "rule" in options:
        people = voting(worker, **options)
        question, run_id = people.question, people.question.run_id
        people.vote("ana", comment="fine by me")
    else:
        run_id, question = worker.asking(shape("a"), **options)
        worker.answer(question)
    worker.settle(worker.claim(run_id, "a").token, "out")
    return run_id, question


def test_a_question_with_a_rule_is_audited_with_its_run(make):
    """From its first question with a rule on a run has entries, the first of which is its start."""
    store = make()
    run_id, question = answered(store, rule=RULE)

    appended = entries(store)
    assert [entry["type"] for entry in appended] == ["run.started", "asked", "voted", "decided", "run.ended"]
    assert [entry["run_n"] for entry in appended] == [0, 1, 2, 3, 4]
    assert {entry["run"] for entry in appended} == {run_id}
    assert {entry["partition"] for entry in appended} == {"p00"}
    asked, voted, decided = appended[1:4]
    assert asked["question"] == decided["question"] == question.id
    assert asked["digests"]["question"] == decided["digests"]["question"] == question.digest
    assert (asked["node"], asked["visit"]) == ("a", 1)
    assert (voted["actor"], voted["auth"]) == ("human:|ana", {"level": 0, "selector": "group:finance"})
    effect = Action.digest(REFUND)
    assert asked["digests"]["action"] == voted["digests"]["effect"] == decided["digests"]["effect"] == effect
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


def test_nothing_is_audited_where_it_is_off(make):
    """With "off" not even a question with a rule has an entry."""
    store = make("off")
    answered(store, rule=RULE)

    assert entries(store) == []


def test_a_cancelled_run_says_so(make):
    """A cancel leaves why by its hash, the withdrawn question and the end."""
    store = make()
    run_id = voting(ManualWorker(store), RULE).question.run_id
    store.cancel(run_id, "wrong customer")

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
    store.remove(run_id)

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
    store.fork(plan_fork(store, run_id, "a", None, ForkOptions("00new")))
    store.cancel("00new", "enough")
    write_retry(store, "00new")

    assert types(store)[4:] == ["run.started", "run.forked", "run.cancelled", "run.ended", "run.retried"]
    assert entries(store)[5]["outcome"] == {"source": run_id}


def test_a_child_run_names_its_root(make):
    """With "all" a nested graph's run has entries of its own; the first says inside which run it is."""
    store = make("all")
    worker = ManualWorker(store)
    token = worker.claim(worker.start(shape("a")), "a").token
    worker.start(shape("x"), parent=token)

    child = entries(store)[-1]
    assert (child["type"], child["run_n"], child["outcome"]["root"]) == ("run.started", 0, token.run_id)
