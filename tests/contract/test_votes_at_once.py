"""Votes that come at once, by several doors, on a real server: one decision, and each person once."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import pytest

from runner.approvals.digests import Action
from runner.approvals.rules import Principal, Rule
from runner.client import Client, SweeperDispatcher
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.message_handlers import IncomingMessage, handle_answer
from runner.records import codec
from runner.store import encoding
from runner.store.redis import scripts
from runner.store.redis.store import RedisStore
from runner.store.redis.transaction import questions
from runner.store.redis.transaction.run_view import RunInTransaction
from runner.store.redis.transaction.sets import EITHER
from tests.contract.store.manual_worker import ManualWorker, shape

pytestmark = pytest.mark.full

CALL = Action("runner", "tool", "refund", {"amount": "10"})

VOTERS = 50


@pytest.fixture
def clients(redis_url, clock):
    """A client for each of ten threads, with connections of its own."""
    stores = [RedisStore(redis_url, clock=clock, retention=60) for _ in range(10)]
    yield [client_of(store) for store in stores]
    for store in stores:
        store.close()


def client_of(store) -> Client:
    client = Client(store=store, dispatcher=SweeperDispatcher())
    client.engine.directory = ""
    return client


@pytest.fixture
def ask(store, clock):
    """Ask by a rule; return the question."""
    worker = ManualWorker(store, clock)

    def asking(rule: Rule, **options):
        _, asked = worker.asking("a", rule=rule, action=CALL, **options)
        (question,) = store.interrupts([asked.id])
        return question

    return asking


def vote_at_once(clients, question) -> Counter[str]:
    """Let all vote at the same time, ten at once; count what became of them."""
    begin = Barrier(len(clients))

    def vote(client, first):
        begin.wait()
        voters = range(first, VOTERS, len(clients))
        return [str(client.vote(question.id, "approve", by=f"voter{n}").status) for n in voters]

    with ThreadPoolExecutor(len(clients)) as pool:
        words = pool.map(vote, clients, range(len(clients)))
        return Counter(word for each in words for word in each)


def test_a_decision_is_taken_back_or_followed(clients, ask, store, clock):
    """Its voter and three sweeps come in the millisecond in which its time ends: one of them wins."""
    won = Counter[bool]()
    for number in range(30):
        question = ask(Rule(undo=1))
        begin = Barrier(4)
        assert clients[0].vote(question.id, "approve", by="ana").status == "accepted"
        clock.advance(0.999)

        def take_back(question=question, begin=begin):
            begin.wait()
            return clients[0].withdraw_vote(question.id, by="ana").status

        def sweep(client, question=question, begin=begin, number=number):
            begin.wait()
            if client is clients[1]:
                for _ in range(number % 6):  # so that now one of them is first, now the other
                    client.engine.store.interrupts([question.id])
                clock.advance(0.001)
            client.engine.store.sweep()

        with ThreadPoolExecutor(4) as pool:
            receipt = pool.submit(take_back)
            list(pool.map(sweep, clients[1:4]))
        is_back = receipt.result() == "withdrawn_vote"
        store.sweep()
        (now,) = store.interrupts([question.id])
        kinds = [event.kind for event in store.events(question.run_id)]
        assert kinds.count("interrupt.answered") == (not is_back)
        assert (now.is_open, len(store.votes(question.id))) == (is_back, not is_back)
        won[is_back] += 1
    assert set(won) == {True, False}, won


def test_fifty_who_vote_at_once_decide_once(clients, ask, store):
    """Of a rule that needs three, three count and the third decides; the others come too late."""
    question = ask(Rule(need=3))

    words = vote_at_once(clients, question)

    assert words == {"counted": 2, "accepted": 1, "duplicate": VOTERS - 3}
    votes = store.votes(question.id)
    assert [vote["n"] for vote in votes] == [1, 2, 3]
    assert len({vote["by"] for vote in votes}) == 3
    kinds = [event.kind for event in store.events(question.run_id)]
    assert (kinds.count("interrupt.voted"), kinds.count("interrupt.answered")) == (3, 1)


@pytest.mark.slow
def test_without_the_guard_votes_are_lost(clients, ask, store, monkeypatch):
    """The control: where nobody looks whether the tally has changed meanwhile, votes overwrite others.

    The audit takes one entry of a run after the other, which alone would keep votes apart.
    """

    def unguarded(run, interrupt_id):
        return encoding.standing(
            run.write_set.read_unvalidated(run.key, questions.votes_field(interrupt_id), EITHER)
        )

    def unlocked(run, name, text):
        run.write_set.put(run.key, name, text)

    monkeypatch.setattr(RunInTransaction, "standing", unguarded)
    monkeypatch.setattr(RunInTransaction, "_replace", unlocked)
    monkeypatch.setattr(RunInTransaction, "audit", lambda run, entry: None)
    numbers = []
    for _ in range(10):
        question = ask(Rule(need=20))
        words = vote_at_once(clients, question)
        numbers.append(words["counted"] + words["accepted"])

    assert any(number != 20 for number in numbers)


def veto_and_quorum_at_once(clients, ask, turn):
    """A veto and the last approval at the same time: return what became of both, and the decision."""
    question = ask(Rule(need=2))
    clients[0].vote(question.id, "approve", by="ana")
    begin = Barrier(2)

    def vote(client, who, decision):
        begin.wait()
        return str(client.vote(question.id, decision, by=who).status)

    first, second = (clients[1], clients[2]) if turn % 2 else (clients[2], clients[1])
    with ThreadPoolExecutor(2) as pool:
        words = sorted(pool.map(vote, (first, second), ("ben", "cid"), ("approve", "reject")))
    return words, clients[0].interrupt(question.id).decision


def test_the_order_of_the_server_decides_between_veto_and_quorum(clients, ask):
    """One of the two decides, and the other is too late."""
    for turn in range(20):
        words, decision = veto_and_quorum_at_once(clients, ask, turn)
        assert (words, decision in {"approve", "reject"}) == (["accepted", "duplicate"], True)


def test_without_the_order_both_decide(clients, ask, monkeypatch):
    """The control: where nobody looks whether what was read still holds, both are told that they decided."""
    whole = scripts.script

    def blind(name, constants=""):
        known = whole(name, constants)
        text = known.text.replace(b"if changed then return {'changed', positions} end", b"")
        return replace(
            known, text=text, sha=hashlib.sha1(text, usedforsecurity=False).hexdigest()
        )

    monkeypatch.setattr(scripts, "script", blind)

    assert any(
        veto_and_quorum_at_once(clients, ask, turn)[0] == ["accepted", "accepted"]
        for turn in range(200)
    )


def calls(client) -> int:
    return sum(entry["calls"] for entry in client.info("commandstats").values())


@pytest.mark.slow
def test_a_vote_costs_the_same_whoever_voted_before(ask, client, store):
    """Commands of a vote don't grow with the votes that there are, nor with other questions that wait."""
    few, many = ask(Rule(need=3)), ask(Rule(need=1_000))
    voting = client_of(store)
    for n in range(300):
        voting.vote(many.id, "approve", by=f"voter{n}")
    for _ in range(50):
        ask(Rule())
    voting.vote(few.id, "approve", by="ana")
    costs = []
    for question, who in ((few, "ben"), (many, "zoe")):
        before = calls(client)
        assert voting.vote(question.id, "approve", by=who).status == "counted"
        costs.append(calls(client) - before)

    assert costs[0] == costs[1]


def test_what_lasts_of_a_vote_is_in_the_size_of_its_run(ask, client, store):
    """Votes count among the bytes of a run: whoever votes much, and whatever is taken back."""
    question = ask(Rule(need=3, veto=None))
    voting = client_of(store)
    keys = [name for name in client.keys("*") if name.decode().endswith(f"r:{question.run_id}")]
    key = keys[0].decode()

    def bytes_of_votes() -> int:
        return sum(
            len(value) for name, value in client.hgetall(key).items() if name.startswith(b"v:")
        )

    before = int(client.hget(key, "size")) - bytes_of_votes()
    voting.vote(question.id, "approve", by="ana", comment="x" * 1_000)
    voting.vote(question.id, "edit", by="ben", response={"amount": "5"})
    voting.vote(question.id, "edit", by="ben", response={"amount": "6"})
    voting.vote(question.id, "reject", by="cid")
    voting.withdraw_vote(question.id, by="cid")

    assert int(client.hget(key, "size")) - bytes_of_votes() == before


def test_one_person_by_two_doors_counts_once(clients, ask):
    """A vote over a stream and one by a client: whichever comes second is a duplicate."""
    question = ask(Rule(need=2))
    stream = Engine(clients[0].engine.store, SweeperDispatcher(), Registry())
    stream.directory = ""
    stream.registry.add("g", lambda: shape("a"))
    body = codec.dump_json(
        {
            "v": 2,
            "interrupt_id": question.id,
            "decision": "approve",
            "by": "ana",
            "digest": question.digest,
        }
    )

    def by_stream() -> str:
        verdict = handle_answer(stream, IncomingMessage("1-0", "responses/1-0", body))
        assert verdict.receipt is not None
        return verdict.receipt.status

    def by_client() -> str:
        return str(clients[1].vote(question.id, "approve", by="human:|ana").status)

    with ThreadPoolExecutor(2) as pool:
        words = [future.result() for future in (pool.submit(by_stream), pool.submit(by_client))]

    assert sorted(words) == ["counted", "duplicate"]
    assert str(clients[2].vote(question.id, "approve", by="ben").status) == "accepted"


def test_another_person_by_the_second_door_counts_too(clients, ask):
    """The control: what is one person's second vote is another one's first."""
    question = ask(Rule(need=2))

    words = [
        str(clients[n].vote(question.id, "approve", by=who).status)
        for n, who in enumerate(("ana", "ben"))
    ]

    assert words == ["counted", "accepted"]


class Meanwhile:
    """A directory of no groups; something happens while it is asked, which is after the question is read."""

    def __init__(self) -> None:
        self.happens = list[Callable[[], object]]()

    def groups(self, _: Principal) -> list[str]:
        while self.happens:
            self.happens.pop()()
        return []

    def roles(self, _: Principal) -> list[str]:
        return []


MEANWHILE = Meanwhile()


def test_a_vote_counts_by_what_holds_when_it_is_written(clients, ask, store, clock):
    """The first read also has what the vote reads, which may have changed since: then it is read again."""
    first, other = clients[:2]
    first.engine.directory = f"{__name__}:MEANWHILE"
    changes = {
        "counted": lambda question: None,
        "accepted": lambda question: other.vote(question.id, "approve", by="ana"),
        "duplicate": lambda question: other.vote(question.id, "approve", by="ben"),
        "superseded": lambda question: other.withdraw(question.id),
        "expired": lambda question: clock.advance(60),
    }
    came = {}
    for word, change in changes.items():
        question = ask(Rule(need=2), expires_in=60)
        MEANWHILE.happens = [partial(change, question)]
        receipt = first.vote(question.id, "approve", by="ben")
        came[word] = str(receipt.status), len(store.votes(question.id))

    assert came == {
        "counted": ("counted", 1),
        "accepted": ("accepted", 2),
        "duplicate": ("duplicate", 1),
        "superseded": ("superseded", 0),
        "expired": ("expired", 0),
    }
