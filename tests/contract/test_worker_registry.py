from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runner.records.workers import HANGS, SILENT, Worker
from runner.store.redis.connection import mapping_of
from runner.store.redis.workers import FORGOTTEN, WorkerRegistry, described


@pytest.fixture
def roster(any_store):
    roster = WorkerRegistry(any_store.url)
    yield roster
    roster.close()


def test_a_worker_is_on_the_list_until_it_leaves(roster):
    """What a worker tells is read as it was told, with when it was seen and how far its clock is off.

    Its first sign of life says that it was not listed, its second does not.
    """
    worker = Worker(name="celery@one", pid=7, graphs={"refund": "f1"}, queues=["runner"])
    assert roster.enter(described(worker), roster.now() + 5_000)
    assert not roster.enter(described(worker), roster.now() + 5_000)
    (row,) = roster.all()

    assert (row.name, row.pid, row.graphs, row.queues) == (
        "celery@one",
        7,
        worker.graphs,
        ["runner"],
    )
    assert row.alive(roster.now())
    assert 4_000 < row.ahead <= 5_000

    roster.leave(described(worker))
    assert roster.all() == []


def test_workers_of_one_name_and_pid_are_two(roster):
    """Containers often have one pid, and sometimes one name: doctor says so only if both are listed."""
    first, second = (Worker(name="celery@one", pid=1, started=at) for at in (1, 2))
    roster.enter(described(first), 0)
    roster.enter(described(second), 0)
    assert [row.started for row in roster.all()] == [1, 2]

    roster.leave(described(first))
    assert [row.started for row in roster.all()] == [2]


def test_a_container_that_was_killed_and_starts_again_is_listed_once(roster):
    """The entry from before goes when it is silent; living twins and the dead of other names stay."""
    before, after, twin = (Worker(name="celery@one", pid=1, started=at) for at in (1, 2, 3))
    other = Worker(name="celery@two", pid=1, started=1)
    for worker in (before, after, twin, other):
        roster.enter(described(worker), 0)
    roster.tidy()
    assert len(roster.all()) == 4
    for field, text in mapping_of(roster._redis.call("HGETALL", roster._key)).items():
        if field.endswith(b":1:1"):
            silent = {**json.loads(text), "seen": roster.now() - int(SILENT * 1000)}
            roster._redis.call("HSET", roster._key, field, json.dumps(silent))

    roster.tidy()

    assert [(row.name, row.started) for row in roster.all()] == [
        ("celery@one", 2),
        ("celery@one", 3),
        ("celery@two", 1),
    ]


def test_a_worker_without_a_sign_of_life_is_gone(roster):
    """Half a minute of silence is enough to say so; after a day it is no longer listed."""
    roster.enter(described(Worker(name="celery@one", pid=7)), 0)
    (row,) = roster.all()

    assert row.alive(row.seen + int(SILENT * 1000) - 1)
    assert not row.alive(row.seen + int(SILENT * 1000))
    roster.tidy()
    assert roster.all() == [row]
    roster.now = lambda: row.seen + int(FORGOTTEN * 1000) + 1
    roster.tidy()
    assert roster.all() == []


def test_a_worker_that_stops_hangs_when_it_should_have_ended():
    """One that was told to stop is stopping while its nodes may run, and hangs a while after that."""
    worker = Worker(name="celery@one", seen=1_000, stopping=5.0, grace=10.0)

    assert worker.state_at(1_000) == "stopping"
    assert replace(worker, stopping=10.0 + HANGS + 0.1).state_at(1_000) == "hangs"
    assert replace(worker, stopping=0.0).state_at(1_000) == "alive"
    assert worker.state_at(1_000 + int(SILENT * 1000)) == "gone"


def test_workers_of_other_releases_are_read(roster):
    """One that tells more than we know, or less, is listed all the same."""
    roster.enter({"name": "celery@old", "pid": 1, "started": 1}, 0)
    roster.enter({"name": "celery@new", "pid": 2, "started": 2, "mood": "good"}, 0)

    assert [worker.name for worker in roster.all()] == ["celery@new", "celery@old"]
