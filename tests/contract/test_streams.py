from __future__ import annotations

import pytest
import redis

from runner.errors import StoreError
from runner.store.keys import RESPONSES, STARTS
from runner.store.streams import HAND, MAX_EARLY, Entry, Intake, Outbox


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def intake(redis_url):
    intake = Intake(redis_url, "reader-1")
    yield intake
    intake.leave()


def readers(client, stream=RESPONSES) -> set[str]:
    return {each["name"].decode() for each in client.xinfo_consumers(stream, "runner")}


def test_an_entry_is_read_once_and_goes_when_it_is_done(client, intake):
    """A message is handed to one reader, and its stream is empty once it was applied."""
    sent = client.xadd(RESPONSES, {"body": b"{}"}).decode()

    found = intake.read(0.01)

    assert found == [Entry(RESPONSES, sent, {b"body": b"{}"})]
    assert intake.read(0.01) == []
    intake.done(found[0])
    assert client.xlen(RESPONSES) == 0
    assert client.xpending(RESPONSES, "runner")["pending"] == 0


def test_both_streams_are_read_together(client, intake):
    """One reader serves answers and starts."""
    client.xadd(STARTS, {"body": b"1"})
    client.xadd(RESPONSES, {"body": b"2"})

    assert {entry.stream for entry in intake.read(0.01)} == {RESPONSES, STARTS}


def test_what_was_sent_before_the_first_worker_is_read(client, redis_url):
    """A message that came before the group existed is not skipped."""
    client.xadd(RESPONSES, {"body": b"early"})

    assert [entry.body for entry in Intake(redis_url, "late").read(0.01)] == [b"early"]


def test_entries_of_a_reader_that_is_gone_are_taken_over(client, intake, redis_url):
    """What a reader took and never finished goes to another one."""
    client.xadd(RESPONSES, {"body": b"1"})
    gone = Intake(redis_url, "gone")
    gone.read(0.01)

    assert intake.take_over(idle=3600) == []
    assert [entry.body for entry in intake.take_over(idle=0)] == [b"1"]


def test_taking_over_goes_round_however_many_wait(client, intake, redis_url):
    """Entries that wait at the front of the stream never hide those behind them."""
    for number in range(25):
        client.xadd(RESPONSES, {"body": str(number)})
    while intake.read(0.01):
        pass

    seen = {entry.body for _ in range(5) for entry in intake.take_over(idle=0, limit=5)}

    assert len(seen) == 25


def test_large_entries_are_taken_one_by_one(client, intake):
    """A reader that finds entries large takes one at a time, until they are small again."""
    for size in (500_000, 500_000, 1):
        for _ in range(HAND):
            client.xadd(RESPONSES, {"body": b"x" * size})

    hands = []
    while found := intake.read(0.01):
        hands.append(len(found))

    assert hands == [HAND, 1, HAND, 1, 8]


def test_a_dead_letter_keeps_the_bytes_and_the_reason(client, intake):
    """What can't be used is kept as it came, whatever it is."""
    client.xadd(RESPONSES, {"body": b"\xff\x00", "other": b"\xfe"})

    intake.bury(intake.read(0.01)[0], "not valid JSON")

    ((_, letter),) = client.xrange("runner:dead")
    assert letter[b"body"] == b"\xff\x00"
    assert letter[b"field:other"] == b"\xfe"
    assert (letter[b"stream"], letter[b"reason"]) == (RESPONSES.encode(), b"not valid JSON")
    assert client.xlen(RESPONSES) == 0


def test_readers_that_are_gone_are_forgotten_unless_they_hold_entries(client, intake, redis_url):
    """A dead reader's name goes, but never with entries that nobody has applied."""
    intake.read(0.01)
    Intake(redis_url, "empty").read(0.01)
    client.xadd(RESPONSES, {"body": b"1"})
    Intake(redis_url, "holding").read(0.01)

    assert intake.forget(3600) == []
    intake.forget(0)

    assert readers(client) == {"holding"}


def test_a_reader_that_leaves_is_no_longer_listed(client, redis_url):
    """A worker that stops leaves no name behind, and what it holds is taken over."""
    intake = Intake(redis_url, "mine")
    intake.read(0.01)
    assert readers(client) == {"mine"}

    intake.leave()

    assert readers(client) == set()


def test_streams_that_were_deleted_are_made_anew(client, intake):
    """A stream that an operator deletes is read again after one failed look."""
    intake.read(0.01)
    client.delete(RESPONSES, STARTS)

    with pytest.raises(StoreError, match="NOGROUP"):
        intake.read(0.01)
    client.xadd(RESPONSES, {"body": b"again"})

    assert [entry.body for entry in intake.read(0.01)] == [b"again"]


def test_the_age_of_an_entry_is_by_the_stores_clock(client, intake):
    """How old a message is does not depend on the worker's clock."""
    client.xadd(RESPONSES, {"body": b"1"}, id="1000-0")

    age = intake.age(intake.read(0.01)[0])

    seconds, _ = client.time()
    assert age == pytest.approx(seconds - 1, abs=2)


def test_an_entry_from_the_future_is_not_young_for_ever(client, intake):
    """Who names an entry by a clock that is ahead does not keep it, and those behind it, waiting."""
    seconds, _ = client.time()
    client.xadd(RESPONSES, {"body": b"1"}, id=f"{(seconds + 3600) * 1000}-0")

    assert intake.age(intake.read(0.01)[0]) == pytest.approx(3600, abs=2)


def test_a_receipt_that_can_not_be_sent_is_a_dead_letter(client, redis_url):
    """A name that is no stream keeps the receipt, and nobody else's message, from its place."""
    client.set("runner:replies:me", "mine")

    Outbox(redis_url).reply("runner:replies:me", b"{}")

    ((_, letter),) = client.xrange("runner:dead")
    assert (letter[b"stream"], letter[b"body"]) == (b"runner:replies:me", b"{}")
    assert b"WRONGTYPE" in letter[b"reason"]
    assert client.get("runner:replies:me") == b"mine"


def test_receipts_expire(client, redis_url):
    """A reply stream that nobody reads does not stay for ever."""
    Outbox(redis_url).reply("runner:replies:me", b"{}")

    assert 0 < client.ttl("runner:replies:me") <= 86_400
    assert [fields for _, fields in client.xrange("runner:replies:me")] == [{b"body": b"{}"}]


def test_a_door_without_a_stream_has_dead_letters_too(client, redis_url):
    """What came by another door and can't be used is kept with its reason."""
    outbox = Outbox(redis_url)
    outbox.bury("tasks.respond", b"?", "no kwargs")
    outbox.send(RESPONSES, b"{}")

    ((_, letter),) = client.xrange("runner:dead")
    assert (letter[b"stream"], letter[b"body"], letter[b"reason"]) == (b"tasks.respond", b"?", b"no kwargs")
    assert client.xlen(RESPONSES) == 1


def test_an_unreachable_store_is_a_store_error(tmp_path):
    """A reader whose store is away says so in the library's own words."""
    with pytest.raises(StoreError, match="could not be reached"):
        Intake(f"unix://{tmp_path}/none.sock", "r").read(0.01)


def test_so_many_entries_wait_and_no_more(client, intake):
    """Early answers have a limit, which those that readers only just took don't count for."""
    with client.pipeline() as pipe:
        for _ in range(MAX_EARLY + HAND):
            pipe.xadd(RESPONSES, {"body": b"{}"})
        pipe.execute()

    full = [bool(intake.read(0.01)) and intake.is_full(RESPONSES) for _ in range(MAX_EARLY // HAND + 1)]

    assert full == [False] * (MAX_EARLY // HAND) + [True]
    intake.done(intake.take_over(0, 1)[0])
    assert not intake.is_full(RESPONSES)
