"""Ended runs and the archive, in the store: what expires when."""

from __future__ import annotations

import pytest

from runner.records.run import NodeRecord, Records, Rewrite, Status
from runner.store.redis.dead_letters import DeadLetters
from runner.store.redis.keys import Keys
from runner.store.requests import RemoveRun, RewriteRuns
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.key_dictionary import type_in_dictionary

KEYS = Keys()
HOLD = 86_400.0


@pytest.fixture
def worker(store):
    return ManualWorker(store)


def take(store, limit=10, **more):
    return store.archivable("there", limit, **{"pause": 0, "mine": 30, "hold": HOLD} | more)


def ended(worker, **start):
    run_id = worker.start("a", **start)
    worker.run(run_id, "a")
    return run_id


def end_of(store, run_id):
    return store.read(run_id).ended_at


def expires(client, run_id):
    return client.pttl(KEYS.run(run_id)) > 0


def test_a_run_expires_only_once_it_is_archived(worker, store, client):
    """With an archive, no key of an ended run has an expiry until the archive has it."""
    assert take(store) == []
    run_id = ended(worker, idempotency_key="k")
    own = [key for key in client.keys("*") if run_id in key.decode() or b":idem:" in key]
    assert len(own) > 2
    assert {client.pttl(key) for key in own} == {-1}

    assert take(store) == [run_id]
    store.archived({run_id: end_of(store, run_id)})

    assert all(0 < client.pttl(key) <= 60_000 for key in own)
    assert take(store) == []
    assert all(type_in_dictionary(key.decode()) for key in client.keys(f"{KEYS.prefix}*"))


def test_without_an_archive_a_run_expires_at_once(worker, store, client):
    """Control: nothing waits for an archive that there never was."""
    assert expires(client, ended(worker))
    assert take(store) == []


def test_a_run_that_was_taken_is_offered_again(worker, store, clock):
    """A worker that dies with a run leaves it to others, after a while."""
    take(store)
    run_id = ended(worker)
    assert take(store) == [run_id]
    assert take(store) == []

    clock.advance(31)

    assert take(store) == [run_id]


def test_few_runs_wait_for_others(worker, store, clock):
    """Fewer than a whole batch are offered when the first has waited for so long."""
    take(store)
    runs = [ended(worker), ended(worker)]
    assert take(store, 3, pause=50) == []
    assert take(store, 2, pause=50) == runs
    third = ended(worker)
    assert take(store, 2, pause=50) == []

    clock.advance(51)

    assert third in take(store, pause=50)


def test_the_runs_inside_stay_as_long_as_the_outermost(worker, store, client):
    """A child run is not archived by itself, and expires no sooner than the run that it is inside of."""
    take(store)
    parent = worker.start("a")
    child = worker.start(shape("x", name="inner"), parent=worker.token(parent, "a"))
    worker.run(child, "x")
    worker.run(parent, "a")
    store.sweep()
    assert (expires(client, parent), expires(client, child)) == (False, False)
    assert take(store) == [parent]

    store.archived({parent: end_of(store, parent)})
    store.sweep()

    assert (expires(client, parent), expires(client, child)) == (True, True)


def test_an_older_end_says_nothing_about_a_newer_one(worker, store, client, clock):
    """Of a run that was continued after it was read for the archive, the newer end is archived as well."""
    take(store)
    run_id = ended(worker)
    first = end_of(store, run_id)
    clock.advance(1)
    client.hset(KEYS.run(run_id), "ended", first + 1)  # what a retry and another end leave

    store.archived({run_id: first})
    assert not expires(client, run_id)

    store.archived({run_id: first + 1})
    assert expires(client, run_id)


def test_a_run_that_is_gone_is_forgotten(worker, store, client):
    """A run that was removed before it could be archived is not offered for ever."""
    take(store)
    run_id = ended(worker)
    store.do(RemoveRun(run_id))

    store.archived({run_id: 0})

    assert client.zcard(KEYS.unarchived) == 0


def test_a_run_that_can_not_be_archived_expires_in_the_end(
    worker, store, client, clock, redis_url
):
    """After `hold` a run that could not be written expires, and a dead letter says that it is lost."""
    take(store)
    run_id = ended(worker)
    for _ in range(30):
        assert take(store) in ([run_id], [])
        assert not expires(client, run_id)
        clock.advance(HOLD / 31)
    clock.advance(HOLD / 8 + 1)

    assert take(store) == []

    assert expires(client, run_id)
    (letter,) = DeadLetters(redis_url).all()
    assert (letter.run_id, letter.reason) == (
        run_id,
        "the run expires and is not in the archive: it could not be written",
    )


def test_runs_of_an_archive_that_is_gone_expire(worker, store, client, clock, redis_url):
    """Where no worker has archived for `hold`, the next sweep lets the runs expire that waited for it."""
    take(store)
    run_id = ended(worker)
    store.sweep()
    assert not expires(client, run_id)
    clock.advance(HOLD + 1)

    store.sweep()

    assert expires(client, run_id)
    assert expires(client, ended(worker))
    assert DeadLetters(redis_url).all()[0].run_id == run_id


def test_a_run_that_goes_on_when_the_archive_ends_stays(worker, store, client, clock):
    """A run that was continued before the archive had it does not expire when there is none any more."""
    take(store)
    run_id = worker.start("a")
    worker.fail(worker.token(run_id, "a"))
    again = Records({"a": NodeRecord(Status.READY, 1, 2)}, {}, {})
    assert (
        store.do(RewriteRuns([Rewrite(run_id, store.read(run_id).events, again)], "again")).word
        == "reopened"
    )
    clock.advance(HOLD + 1)

    store.sweep()

    assert client.exists(KEYS.archive) == 0
    assert not expires(client, run_id)


def test_archiving_goes_on_in_a_full_store(worker, store, client):
    """A server without memory still gives out what is to be archived, and lets it expire."""
    take(store)
    run_id = ended(worker)
    client.config_set("maxmemory", 1)
    try:
        taken = take(store)
        store.archived({run_id: end_of(store, run_id)})
    finally:
        client.config_set("maxmemory", 0)

    assert taken == [run_id]
    assert expires(client, run_id)
