"""Ended runs lie packed in Redis: whoever reads them, or changes them, finds all that was there."""

from __future__ import annotations

import pytest

from bench import graphs
from runner.errors import CorruptDocument
from runner.operations import recovery
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.records.listings import InterruptQuery, RunQuery
from runner.records.run import Status
from runner.store.redis import packed_runs
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.requests import EmitEvent
from tests.graphs import Bench, single, wired

HOUR = 3_600.0
ANSWER = {"response": {"approved": True}, "responder": "ana@example.com"}


@pytest.fixture
def desk(redis_url):
    """Give what executes runs of a graph on a store, with a clock that can be moved."""
    stores = []

    def open_store(clock):
        stores.append(RedisStore(redis_url, clock=clock, push=False, retention=HOUR))
        return stores[-1]

    yield lambda graph=None: Bench(graph or graphs.FACTORIES["request"](), open_store)
    for store in stores:
        store.close()


def ended(bench):
    """Execute a run whose question is answered."""
    bench.start(None).finish()
    (question,) = bench.store.open_interrupts().items
    (receipt,) = apply_decisions(bench.engine, [Decision(question.id, **ANSWER)])
    assert receipt.status == "accepted"
    assert bench.finish().status is Status.COMPLETED
    return question.id


def pack(bench, seconds=61):
    """Sweep so long after the last run's end."""
    bench.clock.advance(seconds)
    bench.store._trim_at = 0
    bench.store.sweep(50)


def seen(bench, question):
    """Read all that is known of a run and its question."""
    store, run_id = bench.store, bench.run_id
    return (
        store.read(run_id, messages=True),
        store.peek(run_id),
        store.events(run_id),
        store.events(run_id, after="3", limit=4),
        store.events(run_id, after="15"),
        store.fetch(run_id, ["a", "ask", "b"]),
        store.interrupts([question, f"{run_id}.ask.1.0000000000000000"]),
        store.votes(question),
        store.standings([question]),
        store.answerers(run_id, "ask"),
        store.open_interrupts(InterruptQuery(closed=True)),
        store.runs(RunQuery(status=Status.COMPLETED)),
    )


def is_packed(bench, client):
    """Return whether the run has one entry in place of its events, and its hash no node."""
    key = Keys().run(bench.run_id)
    return (client.llen(f"{key}:e"), client.hexists(key, "n:a")) == (1, False)


def test_a_packed_run_reads_as_before(desk, client):
    """Each reader finds the same before and after; until a minute after its end it lies as it was."""
    bench = desk()
    question = ended(bench)
    before, key = seen(bench, question), Keys().run(bench.run_id)
    pack(bench, 59)
    assert not is_packed(bench, client)
    size, lives = client.memory_usage(key) + client.memory_usage(f"{key}:e"), client.pttl(key)

    pack(bench, 2)

    assert is_packed(bench, client)
    assert seen(bench, question) == before
    assert is_packed(bench, client)
    assert client.memory_usage(key) + client.memory_usage(f"{key}:e") < size * 0.6
    for name in (key, f"{key}:e"):
        assert 0 < client.pttl(name) <= lives


@pytest.mark.full
@pytest.mark.parametrize("change", ["answer", "event", "fork"])
def test_what_changes_a_packed_run_unpacks_it(desk, client, change):
    """A late answer gets its receipt, an event its number, and a fork all that it goes on with."""
    bench = desk()
    question = ended(bench)
    events, state = bench.store.events(bench.run_id), bench.store.read(bench.run_id)
    pack(bench)
    assert is_packed(bench, client)

    if change == "answer":
        late = Decision(question, {"approved": False}, responder="bo@example.com")
        (receipt,) = apply_decisions(bench.engine, [late])
        assert receipt.status == "duplicate"
    elif change == "event":
        bench.store.do(EmitEvent(bench.run_id, "progress", "b", 1, "late"))
        assert bench.store.events(bench.run_id)[-1].position == str(len(events) + 1)
    else:
        fork = recovery.fork(bench.engine, bench.run_id, "b")
        assert bench.store.read(fork).outputs["ask", 1] == {"approved": True}

    assert not is_packed(bench, client)
    assert bench.store.events(bench.run_id)[: len(events)] == events
    assert bench.store.read(bench.run_id).entries["a", 1] == state.entries["a", 1]
    for part in ("", ":e"):
        assert client.pttl(Keys().run(bench.run_id, part)) > 0


def test_a_packed_run_is_read_from_a_full_server(desk, client):
    """Redis 7.0 refuses all commands of a transaction when its memory is full, even those that read."""
    bench = desk()
    question = ended(bench)
    pack(bench)
    before = seen(bench, question)
    client.config_set("maxmemory", 1)
    try:
        assert seen(bench, question) == before
    finally:
        client.config_set("maxmemory", 0)


def test_a_packed_run_is_retried(desk, client):
    """It goes on where it failed, keeps what had completed, and is packed again after its new end."""
    broken = [True]
    graph = wired(
        {"a": lambda ctx: "once", "b": lambda ctx: 1 / (not broken[0])}, "a b"
    ).build()
    bench = desk(graph)
    assert bench.start(None).finish().status is Status.FAILED
    pack(bench)
    assert is_packed(bench, client)

    broken.clear()
    broken.append(False)
    assert recovery.retry(bench.engine, bench.run_id) == ["b"]
    assert client.pttl(Keys().run(bench.run_id, ":e")) == -1

    result = bench.finish()
    assert (result.status, result.results["a"].output) == (Status.COMPLETED, "once")
    before = bench.store.read(bench.run_id), bench.store.events(bench.run_id)
    pack(bench)
    assert is_packed(bench, client)
    assert (bench.store.read(bench.run_id), bench.store.events(bench.run_id)) == before


def test_a_run_that_changed_since_it_was_read_is_not_packed(desk, client, monkeypatch):
    """What is written between the reading of a run and its packing is not lost; control: the next one is."""
    bench = desk()
    ended(bench)
    written, text = [], packed_runs._text

    def meanwhile(fields, events):
        if not written:
            bench.store.do(EmitEvent(bench.run_id, "progress", "b", 1, "meanwhile"))
        written.append(True)
        return text(fields, events)

    monkeypatch.setattr(packed_runs, "_text", meanwhile)
    pack(bench)
    assert written
    assert not is_packed(bench, client)
    assert bench.store.events(bench.run_id)[-1].data == "meanwhile"

    ended(bench)
    pack(bench)
    assert is_packed(bench, client)


@pytest.mark.full
def test_each_ended_run_is_packed_once(desk, client):
    """Runs that end in one millisecond are all packed, more than one request looks at; none is read again."""
    bench = desk(single(lambda ctx: 1))
    for _ in range(packed_runs.AT_ONCE + 10):
        bench.start(None).finish()

    pack(bench)

    sizes = [client.llen(key) for key in client.scan_iter("*:r:*:e")]
    assert sizes == [1] * (packed_runs.AT_ONCE + 10)
    assert packed_runs.pack(bench.store._call) == 0


def test_runs_inside_others_and_those_around_them_are_not_packed(desk, client):
    """Their events are written by each other's steps."""
    bench = desk(wired({"a": single(lambda ctx: 1), "b": lambda ctx: 1}, "a b").build())
    bench.start(None).finish()

    pack(bench)

    assert all(client.llen(key) > 1 for key in client.scan_iter("*:r:*:e"))


def test_a_damaged_run_is_refused(desk, client):
    """A packed run whose text was damaged is not read as an empty one, nor changed."""
    bench = desk()
    ended(bench)
    pack(bench)
    key = Keys().run(bench.run_id, ":e")
    client.lset(key, 0, client.lindex(key, 0)[:-9])

    with pytest.raises(CorruptDocument, match="packed run can't be read"):
        bench.store.read(bench.run_id)
    with pytest.raises(CorruptDocument, match="packed run can't be read"):
        recovery.fork(bench.engine, bench.run_id, "b")
    assert client.llen(key) == 1


def test_a_packed_run_without_its_text_is_refused(desk, client):
    """Reads and changes end with an error that names the damage, where its text was deleted or evicted."""
    bench = desk()
    ended(bench)
    pack(bench)
    client.delete(Keys().run(bench.run_id, ":e"))

    with pytest.raises(CorruptDocument, match="packed run"):
        bench.store.read(bench.run_id)
    with pytest.raises(CorruptDocument, match="packed run"):
        recovery.fork(bench.engine, bench.run_id, "b")
