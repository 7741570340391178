from __future__ import annotations

import pytest
import redis

from runner.errors import StoreError
from runner.store.redis.connection import RedisConnection
from runner.store.redis.dead_letters import DeadLetters
from runner.store.redis.keys import Keys
from runner.store.redis.server_info import read_metrics
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import (
    EARLY,
    HAND,
    UNREAD,
    Bounds,
    Entry,
    Outbox,
    StreamReader,
    trim_notices,
)
from runner.store.redis.transaction.transaction import LETTERS

KEYS = Keys()
STREAMS = (KEYS.responses, KEYS.starts, KEYS.handed_early(EARLY))


@pytest.fixture
def client(any_store):
    return any_store.client


@pytest.fixture
def stream_reader(any_store):
    stream_reader = StreamReader(any_store.url)
    yield stream_reader
    stream_reader.close()


def test_an_entry_is_read_once_and_goes_when_it_is_done(client, stream_reader):
    """A message is handed to one reader, and its stream is empty once it was applied."""
    entry_id = client.xadd(KEYS.responses, {"body": b"{}"}).decode()

    entries = stream_reader.read(0.01)

    assert entries == [Entry(KEYS.responses, entry_id, {b"body": b"{}"})]
    assert stream_reader.read(0.01) == []
    stream_reader.done(entries[0])
    assert client.xlen(KEYS.responses) == 0
    assert client.xpending(KEYS.responses, "runner")["pending"] == 0


def test_both_streams_are_read_together(client, stream_reader):
    """One reader serves answers and starts."""
    client.xadd(KEYS.starts, {"body": b"1"})
    client.xadd(KEYS.responses, {"body": b"2"})

    assert {entry.stream for entry in stream_reader.read(0.01)} == {KEYS.responses, KEYS.starts}


def test_what_was_sent_before_the_first_worker_is_read(client, any_store):
    """A message that came before the group existed is not skipped."""
    client.xadd(KEYS.responses, {"body": b"early"})

    assert [entry.body for entry in StreamReader(any_store.url).read(0.01)] == [b"early"]


def test_entries_of_a_reader_that_is_gone_are_taken_over(client, stream_reader, any_store):
    """What a reader took and never finished goes to another one."""
    client.xadd(KEYS.responses, {"body": b"1"})
    gone = StreamReader(any_store.url)
    gone.read(0.01)

    assert stream_reader.take_over(idle=3600) == []
    assert [entry.body for entry in stream_reader.take_over(idle=0)] == [b"1"]


def test_taking_over_goes_round_however_many_wait(client, stream_reader, any_store):
    """Entries that wait at the front of the stream never hide those behind them."""
    for number in range(25):
        client.xadd(KEYS.responses, {"body": str(number)})
    while stream_reader.read(0.01):
        pass

    seen = {entry.body for _ in range(5) for entry in stream_reader.take_over(idle=0, limit=5)}

    assert len(seen) == 25


def test_large_entries_are_taken_one_by_one(client, stream_reader):
    """A reader that finds entries large takes one at a time, until they are small again."""
    for size in (500_000, 500_000, 1):
        for _ in range(HAND):
            client.xadd(KEYS.responses, {"body": b"x" * size})

    hands = []
    while entries := stream_reader.read(0.01):
        hands.append(len(entries))

    assert hands == [HAND, 1, HAND, 1, 8]


def test_a_dead_letter_keeps_the_bytes_and_the_reason(client, stream_reader):
    """What can't be used is kept as it came, whatever it is."""
    client.xadd(KEYS.responses, {"body": b"\xff\x00", "other": b"\xfe"})

    stream_reader.write_dead_letter(stream_reader.read(0.01)[0], "not valid JSON")

    ((_, letter),) = client.xrange("runner:dead")
    assert letter[b"body"] == b"\xff\x00"
    assert letter[b"field:other"] == b"\xfe"
    assert (letter[b"stream"], letter[b"reason"]) == (
        KEYS.responses.encode(),
        b"not valid JSON",
    )
    assert client.xlen(KEYS.responses) == 0


def test_readers_of_every_program_are_one(client, stream_reader, any_store):
    """Programs come and go, and the server keeps one name: a command never goes through those of all."""
    stream_reader.read(0.01)
    for _ in range(3):
        StreamReader(any_store.url).read(0.01)

    for stream in STREAMS:
        assert [consumer["name"] for consumer in client.xinfo_consumers(stream, "runner")] == [
            b"worker"
        ]


def test_a_program_that_stops_ends_its_wait(redis_url):
    """A reader that would wait for minutes stops at once, and what comes then goes to another one."""
    client, stream_reader = redis.Redis.from_url(redis_url), StreamReader(redis_url)
    assert stream_reader.read(600, is_stopping=lambda: True) == []

    client.xadd(KEYS.responses, {"body": b"1"})
    assert [entry.body for entry in stream_reader.read(0.5)] == [b"1"]


@pytest.mark.full
def test_dead_letters_that_are_deleted_are_counted(redis_url):
    """Each that the bounds have deleted is counted; control: below them none is, and all are there."""
    client, outbox = (
        redis.Redis.from_url(redis_url),
        Outbox(redis_url, bounds=Bounds(letters=200)),
    )
    letters = DeadLetters(redis_url)
    for number in range(150):
        outbox.write_dead_letter("door", b"%d" % number, "bad")
    assert (letters.count(), letters.dropped()) == (150, 0)

    for number in range(850):
        outbox.write_dead_letter("door", b"%d" % number, "bad")

    assert letters.count() < 400
    assert letters.count() + letters.dropped() == 1000
    (metric,) = [
        one
        for one in read_metrics(redis_url)
        if one.name == "runner_dead_letters_dropped_total"
    ]
    assert metric.value == letters.dropped()
    client.close()


@pytest.mark.full
def test_dead_letters_of_nodes_that_are_deleted_are_counted(redis_url):
    """Those of every partition are, beyond the number that stays; control: up to that number none is."""
    letters, client = DeadLetters(redis_url, partitions=2), redis.Redis.from_url(redis_url)
    for number, more in ((0, 0), (1, 101)):
        keys = Keys(partition=f"p{number:02d}")
        with client.pipeline() as pipe:
            for _ in range(LETTERS - 1 + more):
                pipe.xadd(keys.dead, {"reason": "bad"})
            pipe.execute()
        client.zadd(keys.timers, {"no timer": 1})
        RedisStore(redis_url, partition=keys.partition, push=False).sweep()
        if not more:
            assert (letters.count(), letters.dropped()) == (LETTERS, 0)

    assert letters.count() + letters.dropped() == 2 * LETTERS + 101
    assert letters.dropped() >= 100
    metrics = read_metrics(redis_url, partitions=2)
    (metric,) = [one for one in metrics if one.name == "runner_dead_letters_dropped_total"]
    assert metric.value == letters.dropped()
    client.close()


@pytest.mark.full
def test_dead_letters_are_bounded_in_bytes(redis_url):
    """However large the messages are that can't be used, they take bounded memory; the newest stay."""
    client, outbox = (
        redis.Redis.from_url(redis_url),
        Outbox(redis_url, bounds=Bounds(size=1_000_000)),
    )
    for number in range(60):
        outbox.write_dead_letter("door", b"%d" % number + b"x" * 100_000, "bad")

    assert client.memory_usage(KEYS.dead_messages) < 1_500_000
    ((_, newest),) = client.xrevrange(KEYS.dead_messages, count=1)
    assert newest[b"body"].startswith(b"59x")


@pytest.mark.full
def test_dead_letters_are_bounded_in_time(redis_url):
    """A dead letter that has lain for longer than a month is deleted as others come."""
    client, outbox = redis.Redis.from_url(redis_url), Outbox(redis_url)
    for number in range(1, 301):
        client.xadd(KEYS.dead_messages, {"body": b"old"}, id=f"{number}-1")
    outbox.write_dead_letter("door", b"new", "bad")

    assert client.xlen(KEYS.dead_messages) < 150


def test_streams_that_were_deleted_are_made_again(redis_url):
    """A stream that an operator deletes is read again after one failed look."""
    client, stream_reader = redis.Redis.from_url(redis_url), StreamReader(redis_url)
    stream_reader.read(0.01)
    client.delete(KEYS.responses, KEYS.starts)

    with pytest.raises(StoreError, match="NOGROUP"):
        stream_reader.read(0.01)
    client.xadd(KEYS.responses, {"body": b"again"})

    assert [entry.body for entry in stream_reader.read(0.01)] == [b"again"]
    client.close()
    stream_reader.close()


def test_a_receipt_that_can_not_be_sent_is_a_dead_letter(client, any_store):
    """A name that is no stream keeps the receipt, and nobody else's message, from its place."""
    client.set("runner:replies:me", "mine")

    Outbox(any_store.url).reply("runner:replies:me", b"{}")

    ((_, letter),) = client.xrange("runner:dead")
    assert (letter[b"stream"], letter[b"body"]) == (b"runner:replies:me", b"{}")
    assert b"WRONGTYPE" in letter[b"reason"]
    assert client.get("runner:replies:me") == b"mine"


def test_receipts_expire(client, any_store):
    """A reply stream that nobody reads does not stay for ever."""
    Outbox(any_store.url).reply("runner:replies:me", b"{}")

    assert 0 < client.ttl("runner:replies:me") <= 86_400
    assert [fields for _, fields in client.xrange("runner:replies:me")] == [{b"body": b"{}"}]


def test_a_door_without_a_stream_has_dead_letters_too(client, any_store):
    """What came by another door and can't be used is kept with its reason."""
    outbox = Outbox(any_store.url)
    outbox.write_dead_letter("runner.respond", b"?", "no kwargs")
    outbox.send(KEYS.responses, b"{}")

    ((_, letter),) = client.xrange("runner:dead")
    assert (letter[b"stream"], letter[b"body"], letter[b"reason"]) == (
        b"runner.respond",
        b"?",
        b"no kwargs",
    )
    assert client.xlen(KEYS.responses) == 1


@pytest.mark.full
def test_a_sweep_deletes_notices_that_nobody_needs(client, any_store):
    """The stream of notices does not grow for ever where no group reads it."""
    for number in range(UNREAD + 10):
        client.xadd(KEYS.notices, {"n": number})
    store = RedisStore(any_store.url)

    store.sweep()

    assert client.xlen(KEYS.notices) == UNREAD
    store.close()


def test_an_unreachable_store_is_a_store_error(tmp_path):
    """A reader whose store is away says so in the library's own words."""
    with pytest.raises(StoreError, match="could not be reached"):
        StreamReader(f"unix://{tmp_path}/none.sock").read(0.01)


@pytest.mark.full
def test_notices_go_when_every_group_has_acknowledged_them(client, any_store):
    """What one group still has to read, or holds, stays for all; without a group the newest stay."""
    connection, notices = RedisConnection(any_store.url), KEYS.notices
    trim_notices(connection, notices)
    assert not client.exists(notices)
    ids = [client.xadd(notices, {"n": number}) for number in range(UNREAD + 10)]
    trim_notices(connection, notices)
    assert client.xlen(notices) == UNREAD

    for group in ("quick", "slow"):
        client.xgroup_create(notices, group, id="0")
    trim_notices(connection, notices)
    assert client.xlen(notices) == UNREAD
    client.xreadgroup("quick", "one", {notices: ">"}, count=9)
    client.xreadgroup("slow", "one", {notices: ">"}, count=5)
    client.xack(notices, "quick", *ids[10:19])
    client.xack(notices, "slow", *ids[10:12], ids[14])
    trim_notices(connection, notices)
    assert client.xrange(notices)[0][0] == ids[12]
    client.xack(notices, "slow", *ids[12:14])
    trim_notices(connection, notices)
    assert client.xrange(notices)[0][0] == ids[15]
    connection.close()
