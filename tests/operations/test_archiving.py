"""One pass of archiving: what is written, what waits, and what is reported."""

from __future__ import annotations

import logging

import pytest
import redis

from runner.errors import ArchiveError
from runner.operations import archiving
from runner.operations.archiving import Archiving
from runner.records.listings import RunQuery
from runner.store.addresses import partition_addresses
from runner.store.archive.folder import FolderArchive
from runner.store.redis.keys import Keys
from runner.store.redis.partitions import PartitionedStore
from runner.store.redis.store import RedisStore
from runner.store.requests import CancelRun
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, shape

KEYS = Keys()


class PickyArchive(FolderArchive):
    """A folder that refuses some runs, as a database may: those whose task is in `refuses`, or all."""

    def __init__(self, place):
        super().__init__(place)
        self.refuses, self.is_down, self.writes = [], False, 0

    def write(self, runs):
        self.writes += 1
        if self.is_down or any(
            f'"task":"{task}"' in run.text for run in runs for task in self.refuses
        ):
            raise ArchiveError("it does not like that.")
        super().write(runs)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(redis_url, clock):
    store = RedisStore(redis_url, clock=clock, retention=60)
    yield store
    store.close()


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def worker(store):
    return ManualWorker(store)


@pytest.fixture
def archive(tmp_path):
    return PickyArchive(str(tmp_path / "archive"))


@pytest.fixture
def archivist(store, archive):
    archivist = Archiving(store, archive, pause=0, hold=86_400)
    archivist.run_once()
    return archivist


def ended(worker, task="task"):
    run_id = worker.start(shape("a"), task=task)
    worker.run(run_id, "a")
    return run_id


def archived(archive):
    return {run.run_id for run in archive.runs(RunQuery(), 1000)}


def waiting(client):
    return {run.decode() for run in client.zrange(KEYS.unarchived, 0, -1)}


def test_what_has_ended_is_archived_and_expires(worker, archivist, archive, client):
    """A pass archives a batch of ended runs, in one write, and lets them expire."""
    runs = {ended(worker) for _ in range(5)}
    goes_on = worker.start(shape("a"))

    assert archivist.run_once() is False

    assert (archived(archive), archive.writes, waiting(client)) == (runs, 1, set())
    assert all(client.pttl(KEYS.run(run)) > 0 for run in runs)
    assert client.pttl(KEYS.run(goes_on)) == -1


def test_large_runs_are_written_a_few_at_a_time(worker, archivist, archive, monkeypatch):
    """Exports are held and written up to a size, whatever the number of runs."""
    monkeypatch.setattr(archiving, "LARGEST", 25_000)
    runs = {ended(worker, "x" * 10_000) for _ in range(5)} | {ended(worker, "x" * 50_000)}

    archivist.run_once()

    assert archived(archive) == runs
    assert archive.writes >= 4


def test_more_than_a_batch_goes_on_at_once(worker, archivist, archive, monkeypatch):
    """A pass says that more wait, until there are none."""
    monkeypatch.setattr(archiving, "BATCH", 2)
    runs = {ended(worker) for _ in range(5)}

    more_wait = [archivist.run_once() for _ in range(3)]

    assert more_wait == [True, True, False]
    assert archived(archive) == runs


def test_a_run_that_can_not_be_written_keeps_no_other_back(
    worker, archivist, archive, client, clock
):
    """Of a batch, the other runs are archived; the one is reported by name, waits, and is tried again."""
    archive.refuses = ["bad"]
    good = {ended(worker), ended(worker)}
    bad = ended(worker, "bad")
    good.add(ended(worker))

    archivist.run_once()

    assert (archived(archive), waiting(client)) == (good, {bad})
    assert archivist.problem == f"run {bad}: it does not like that."
    assert client.pttl(KEYS.run(bad)) == -1
    archive.refuses = []
    clock.advance(61)
    archivist.run_once()
    assert (archived(archive), archivist.problem) == (good | {bad}, "")


@pytest.mark.full
def test_an_archive_that_is_down_is_not_asked_for_each_run(
    worker, archivist, archive, client, caplog
):
    """Where all fails, a pass ends after a few tries, and every run waits."""
    archive.is_down = True
    runs = {ended(worker) for _ in range(20)}

    with caplog.at_level(logging.ERROR):
        assert archivist.run_once() is False

    assert (waiting(client), archive.writes) == (runs, 4)
    assert archivist.problem == "it does not like that."
    assert "run.unarchived" not in caplog.text
    archivist.run_once()
    assert client.hget(KEYS.archive, "problem") == b"it does not like that."


def test_a_run_is_archived_with_those_inside_it(worker, store, archivist, archive, client):
    """A cancelled run ends with the last run inside it, and is archived with its end."""
    parent = worker.start(shape("a"))
    child = worker.start(shape("x", name="inner"), parent=worker.claim(parent, "a").token)
    token = worker.claim(child, "x").token
    store.do(CancelRun(parent, "enough"))
    archivist.run_once()
    assert archived(archive) == set()

    worker.settle(token)
    archivist.run_once()

    assert archived(archive) == {parent, child}
    assert archive.read(child)["status"] == "cancelled"
    store.sweep()
    assert min(client.pttl(KEYS.run(parent)), client.pttl(KEYS.run(child))) > 0


def test_runs_of_every_partition_are_archived(redis_url, clock, archive, client):
    """A pass takes the ended runs of all partitions, and lets them expire there."""
    where = partition_addresses(redis_url, 2)
    partitions = [
        RedisStore(place.url, partition=place.partition, clock=clock, retention=60)
        for place in where
    ]
    store = PartitionedStore(partitions, relays=False)
    worker, archivist = ManualWorker(store), Archiving(store, archive, pause=0, hold=86_400)
    archivist.run_once()
    runs = [worker.start(shape("a"), beside=beside) for beside in ("00", "01", "00", "01")]
    for run in runs:
        worker.run(run, "a")

    archivist.run_once()

    assert archived(archive) == set(runs)
    assert all(client.pttl(Keys(partition=f"p{run[:2]}").run(run)) > 0 for run in runs)
    store.close()
