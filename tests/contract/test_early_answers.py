"""Answers that come before their questions: each is found by the very step that asks, whatever else waits."""

from __future__ import annotations

import json

import pytest
import redis

from runner.approvals import Rule
from runner.celery import reader_slots
from runner.celery.stream_consumer import StreamConsumer
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.message_handlers import MAX_EARLY_BYTES
from runner.records.interrupts import Address
from runner.records.run import Status
from runner.settings import Settings
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.redis.transaction import early_answers
from tests.graphs import Bench, single

KEYS = Keys()
JUNK = 900
REPLIES = "runner:replies:early"
OTHER_REPLIES = "runner:replies:other"
SCHEMA = {"type": "string"}


class Site:
    """A run about to ask, and readers of the stream whose turns the test takes."""

    def __init__(self, url: str, **options: object) -> None:
        self.url, self.client = url, redis.Redis.from_url(url)
        graph = single(
            lambda ctx: ctx.interrupt("approval", "ok?", response_schema=SCHEMA, **options)
        )
        self.bench = Bench(
            graph, lambda clock: RedisStore(url, clock=clock, push=False)
        ).start()
        self.question = Address(self.bench.run_id, "a", 1).interrupt_id("function", "approval")
        self.reader = self.new_reader()

    def new_reader(self, engine: Engine | None = None) -> StreamConsumer:
        reader = StreamConsumer(None)
        reader.engine, reader.settings = (
            engine or self.bench.engine,
            Settings(redis_url=self.url, early_answer=60),
        )
        reader.prepare(None)
        return reader

    def send(self, question: str, response: object = "yes", **more: object) -> str:
        body = {"v": 1, "interrupt_id": question, "response": response, **more}
        return self.client.xadd(KEYS.responses, {"body": json.dumps(body)}).decode()

    def send_junk(self, number: int, **more: object) -> None:
        """Send answers to questions that the run may still ask, and never does."""
        with self.client.pipeline() as pipe:
            for place in range(number):
                body = {
                    "v": 1,
                    "interrupt_id": f"{self.question}{place}",
                    "response": "?",
                    **more,
                }
                pipe.xadd(KEYS.responses, {"body": json.dumps(body)})
            pipe.execute()

    def read_all(self, reader: StreamConsumer | None = None) -> None:
        """Take turns until nothing is left to read: a turn that gets no slot, or a short one, reads none."""
        reader = reader or self.reader
        while any(
            self.client.xlen(stream)
            for stream in (KEYS.responses, reader.messages.stream_reader.early)
        ):
            reader.run_once()

    def ask(self) -> None:
        assert self.bench.deliver() == "waiting"

    def receipts(self, stream: str = REPLIES) -> list[str]:
        return [
            json.loads(fields[b"body"])["status"] for _, fields in self.client.xrange(stream)
        ]

    def letters(self) -> list[bytes]:
        return [fields[b"id"] for _, fields in self.client.xrange(KEYS.dead_messages)]

    def close(self) -> None:
        self.bench.store.close()
        self.client.close()


@pytest.fixture
def site(redis_url, monkeypatch):
    monkeypatch.setattr(reader_slots, "SWEEPS", 0.02)
    site = Site(redis_url)
    yield site
    site.close()


@pytest.mark.slow
def test_among_hundreds_the_step_that_asks_finds_its_own(site):
    """With 900 junk answers kept, the step that asks hands back the good one, which a reader applies."""
    site.send_junk(JUNK)
    site.send(site.question, "early", reply_to=REPLIES)
    site.read_all()
    assert site.receipts() == []

    site.ask()
    site.read_all()

    assert site.receipts() == ["accepted"]
    assert site.bench.finish().results["a"].output == "early"


def test_no_reader_holds_an_early_answer(site):
    """It is kept in the store, and off the stream: a worker that dies then loses nothing."""
    site.send(site.question, "early", reply_to=REPLIES)
    site.read_all()
    assert site.client.xpending(KEYS.responses, "runner")["pending"] == 0
    other = site.new_reader()

    site.ask()
    site.read_all(other)

    assert site.receipts() == ["accepted"]


def test_a_reader_that_dies_with_it_in_hand_loses_nothing(site):
    """Its reader is never heard of again after the question was asked: another one applies it."""
    site.send(site.question, "early", reply_to=REPLIES)
    site.read_all()
    site.ask()
    (taken,) = site.new_reader().messages.stream_reader.read(0.01)
    site.reader.run_once()
    assert (taken.stream, site.receipts()) == (site.reader.messages.stream_reader.early, [])

    for entry in site.reader.messages.stream_reader.take_over(0):
        site.reader.messages.apply(entry)

    assert site.receipts() == ["accepted"]
    assert site.bench.finish().results["a"].output == "early"


def test_one_that_is_let_go_before_it_is_applied_is_lost(site):
    """Control: the answer of a reader that acknowledges first and then dies comes to nobody."""
    site.send(site.question, "early", reply_to=REPLIES)
    site.read_all()
    site.ask()
    dies = site.new_reader().messages.stream_reader
    for entry in dies.read(0.01):
        dies.done(entry)

    for entry in site.reader.messages.stream_reader.take_over(0):
        site.reader.messages.apply(entry)

    assert (site.receipts(), site.bench.result().status) == ([], Status.INTERRUPTED)


@pytest.mark.parametrize("sweeps", [True, False])
def test_a_question_that_never_comes_is_unknown_in_the_end(site, sweeps):
    """When its time is over the sweep hands it back: unknown, and a dead letter. Control: no sweep."""
    entry_id = site.send(f"{site.question}0", reply_to=REPLIES)
    site.read_all()
    site.bench.clock.advance(59)
    site.bench.engine.sweep()
    site.read_all()
    assert site.receipts() == []

    site.bench.clock.advance(2)
    if sweeps:
        site.bench.engine.sweep()
    site.read_all()

    assert site.receipts() == (["unknown"] if sweeps else [])
    assert site.letters() == ([entry_id.encode()] if sweeps else [])
    assert site.client.exists(KEYS.early) == (not sweeps)


def test_of_two_early_answers_the_first_wins(site):
    """They are applied in the order in which they came; the sender of the second learns who won."""
    site.send(site.question, "first", reply_to=REPLIES)
    site.send(site.question, "second", reply_to=REPLIES)
    site.read_all()

    site.ask()
    site.read_all()

    assert site.receipts() == ["accepted", "duplicate"]
    assert site.bench.finish().results["a"].output == "first"


def test_an_answer_against_the_schema_is_judged_as_any_other(site):
    """An early answer that the question does not allow is rejected, and the next one counts."""
    site.send(site.question, 5, reply_to=REPLIES)
    site.send(site.question, "fits", reply_to=REPLIES)
    site.read_all()

    site.ask()
    site.read_all()

    assert site.receipts() == ["rejected", "accepted"]


def test_a_vote_that_is_left_waits_for_another_reader(redis_url):
    """A reader without its graph tries it no other time, which would keep it from one that has it."""
    site = Site(redis_url, rule=Rule())
    site.ask()
    (question,) = site.bench.result().interrupts
    vote = {"v": 2, "interrupt_id": question.id, "digest": question.digest, "by": "ana"}
    vote = {**vote, "decision": "respond", "response": "yes", "reply_to": REPLIES}
    other = site.new_reader(Engine(site.bench.store, site.bench, Registry()))
    site.client.xadd(KEYS.responses, {"body": json.dumps(vote)})
    (entry,) = other.messages.stream_reader.read(0.01)

    assert other.messages.apply(entry)
    assert site.receipts() == []
    (entry,) = site.reader.messages.stream_reader.take_over(0)
    assert site.reader.messages.apply(entry)
    assert site.receipts() == ["accepted"]


@pytest.mark.full
@pytest.mark.parametrize("key", [{}, {"idempotency_key": "mine"}])
def test_one_applied_twice_is_one_answer(site, key):
    """Two readers that both have it give it one effect, and its sender the same receipt."""
    site.send(site.question, "early", reply_to=REPLIES, **key)
    site.read_all()
    site.ask()
    entries = site.reader.messages.stream_reader.read(0.01)
    other = site.new_reader()

    for reader in (site.reader, other):
        for entry in entries:
            reader.messages.apply(entry)

    assert site.receipts() == ["accepted", "accepted"]
    events = [event.kind for event in site.bench.store.events(site.bench.run_id)]
    assert events.count("interrupt.answered") == 1


def test_an_answer_whose_question_came_meanwhile_is_applied_at_once(site, monkeypatch):
    """The question is asked between the look for it and the keeping: the store says so, nothing is kept."""
    keep = RedisStore.keep_early

    def keeps_late(store, *arguments):
        site.ask()
        return keep(store, *arguments)

    monkeypatch.setattr(RedisStore, "keep_early", keeps_late)
    site.send(site.question, "early", reply_to=REPLIES)
    site.read_all()

    assert site.receipts() == ["accepted"]
    assert not site.client.exists(KEYS.early)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "size"), [(3, 65_536_000), (1_000, 1_000)])
def test_no_more_are_kept_than_have_room(site, monkeypatch, number, size):
    """One beyond the limits, of number or of bytes, is unknown at once and a dead letter; the others stay."""
    monkeypatch.setattr(early_answers, "MOST", number)
    monkeypatch.setattr(early_answers, "MOST_BYTES", size)
    site.send(site.question, "early", reply_to=OTHER_REPLIES)
    site.read_all()
    site.send_junk(20, reply_to=REPLIES)
    site.read_all()
    refused = site.receipts()
    assert set(refused) == {"unknown"}
    assert len(site.letters()) == len(refused) >= 16

    site.ask()
    site.read_all()
    site.send_junk(1, reply_to=OTHER_REPLIES)
    site.read_all()

    assert site.receipts(OTHER_REPLIES) == ["accepted"], (
        "one is applied, and leaves its room to another"
    )


def test_a_large_one_is_unknown_at_once(site):
    """Beyond 64 KB none is kept."""
    site.send(site.question, "x" * MAX_EARLY_BYTES, reply_to=REPLIES)
    site.read_all()

    assert site.receipts() == ["unknown"]


def test_when_all_were_applied_nothing_is_left(site):
    """Neither their bytes nor their times stay behind."""
    site.send_junk(5)
    site.send(site.question, "early")
    site.read_all()
    site.ask()
    site.bench.clock.advance(61)
    site.bench.engine.sweep()
    site.read_all()

    members = site.client.zrange(KEYS.timers, 0, -1)
    assert not [member for member in members if member.startswith(b"early|")]
    assert not site.client.exists(KEYS.early)
    assert (
        site.client.xpending(site.reader.messages.stream_reader.early, "runner")["pending"] == 0
    )
