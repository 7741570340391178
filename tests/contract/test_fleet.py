"""What a fleet does together: turns that one worker takes for all, and the slots of those that read."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import redis

from runner.celery import reader_slots
from runner.celery.application import make_app
from runner.celery.engines import connection_of
from runner.celery.reader_slots import SLOTS, ReaderSlots
from runner.celery.threads import AT_ONCE, Sweeper
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.records.workers import Worker
from runner.scheduler import changes
from runner.settings import Settings, as_broker
from runner.store.interface import Reply
from runner.store.redis.singleton_locks import SingletonLocks
from runner.store.redis.store import RedisStore
from runner.store.redis.transaction import run_view
from runner.store.redis.workers import PAGE, WorkerRegistry, described
from runner.store.requests import CancelRun
from runner.testing.in_process import ManualClock
from tests.contract.store.manual_worker import ManualWorker
from tests.waiting import wait_until

FLEET = 20


def calls(client) -> dict[str, int]:
    """Return how often the server has executed each command."""
    return {
        name.removeprefix("cmdstat_"): row["calls"]
        for name, row in client.info("commandstats").items()
    }


def test_a_turn_is_one_program_s_until_it_is_over(any_store):
    """The first that asks has it; the others don't, and those with another name do."""
    first, second = SingletonLocks(any_store.url), SingletonLocks(any_store.url)

    assert first.acquire("sweep", 60)
    assert not second.acquire("sweep", 60)
    assert not first.acquire("sweep", 60)
    assert second.acquire("tidy", 60)
    assert 0 < any_store.client.pttl("runner:lock:sweep") <= 60_000
    any_store.client.delete("runner:lock:sweep")  # as when its time is over
    assert second.acquire("sweep", 60)


def test_a_turn_ends_though_the_server_s_clock_is_set_back(any_store):
    """What ends by that clock would last an hour longer; the next that asks lets it end in time."""
    locks = SingletonLocks(any_store.url)
    assert locks.acquire("sweep", 0.5)
    any_store.client.pexpire("runner:lock:sweep", 3_600_000)

    assert not locks.acquire("sweep", 0.5)
    wait_until(lambda: locks.acquire("sweep", 0.5), "the next has its turn")


def rested() -> threading.Event:
    """Return a worker's sign to stop, set: it rests for no time."""
    stopping = threading.Event()
    stopping.set()
    return stopping


def reader(url, sweep_interval=60) -> ReaderSlots:
    """Return the slots of readers as a worker that never pauses has them."""
    settings = Settings(sweep_interval=sweep_interval)
    return ReaderSlots(Engine(RedisStore(url), None, Registry()), settings, "read", rested())


@pytest.mark.full
def test_few_workers_of_a_fleet_read(any_store):
    """However many there are, no more than the slots are taken; a free one is found."""
    fleet = [reader(any_store.url) for _ in range(FLEET)]

    lapses = [worker.acquire() for _ in range(20) for worker in fleet]

    assert len([moment for moment in lapses if moment]) == SLOTS


@pytest.mark.full
def test_a_worker_alone_always_has_a_slot(any_store):
    """The slot that it had need not be free for the next: there is no moment in which it doesn't read."""
    alone = reader(any_store.url)

    for _ in range(50):
        assert alone.acquire()
        for number in range(SLOTS):
            if number != alone._number:
                any_store.client.delete(f"runner:lock:read:{number}")


@pytest.mark.parametrize(
    ("sweep", "seconds"), [(0.5, 1.0), (5, 10.0), (3600, reader_slots.HOLD)]
)
def test_a_slot_is_held_for_two_sweeps_and_never_long(any_store, sweep, seconds):
    """What a reader had in hand that died is taken over when the next slot is taken: within ten seconds."""
    assert reader(any_store.url, sweep)._hold == seconds


class SweepingStore(RedisStore):
    """A store that counts its sweeps."""

    sweeps = 0

    def sweep(self, limit: int = 100) -> Reply:
        self.sweeps += 1
        return super().sweep(limit)


class BusyStore(SweepingStore):
    """A store in which something is always due."""

    def sweep(self, limit: int = 100) -> Reply:
        super().sweep(limit)
        return Reply("swept", count=1)


def fleet_of_sweepers(url, store=SweepingStore) -> tuple[SweepingStore, list[Sweeper]]:
    """Make sweepers whose turns the test takes: they never rest."""
    store = store(url)
    engine, settings = (
        Engine(store, None, Registry()),
        Settings(redis_url=url, broker_url=as_broker(url)),
    )
    app = make_app(settings)
    sweepers = []
    for _ in range(FLEET):
        sweeper = Sweeper(None)
        sweeper.engine, sweeper.settings, sweeper.stopping = engine, settings, rested()
        sweeper.prepare(SimpleNamespace(app=app))
        sweepers.append(sweeper)
    return store, sweepers


def test_a_fleet_sweeps_as_often_as_one_worker_would(redis_url, monkeypatch):
    """Of workers whose turns come together one sweeps; when the next turn comes, somebody does again."""
    monkeypatch.setattr("runner.celery.threads.SWEEP_APART", 60)
    store, sweepers = fleet_of_sweepers(redis_url)
    for number in range(1, 4):
        for sweeper in sweepers:
            sweeper.run_once()

        assert store.sweeps == number
        with redis.Redis.from_url(redis_url) as client:
            client.delete("runner:lock:sweep")


@pytest.mark.full
def test_without_turns_each_sweeps_for_itself(redis_url, monkeypatch):
    """Control: the work then grows with the fleet."""
    monkeypatch.setattr(SingletonLocks, "acquire", lambda *_: True)
    store, sweepers = fleet_of_sweepers(redis_url)
    for sweeper in sweepers:
        sweeper.run_once()

    assert store.sweeps == FLEET


def test_a_requested_sweep_is_done_whoever_swept_last(redis_url, monkeypatch):
    """A program that can't ring asks for a sweep: that which was just done may have been before its node."""
    monkeypatch.setattr("runner.celery.threads.SWEEP_APART", 60)
    store, (sweeper, *_) = fleet_of_sweepers(redis_url)
    sweeper.run_once()
    sweeper._is_requested = True
    sweeper.run_once()

    assert store.sweeps == 2


def take_turn(sweeper: Sweeper) -> None:
    """Let a worker that does not stop take one turn, and pause shortly; then it has no connection."""
    sweeper.stopping, sweeper.settings = threading.Event(), Settings(sweep_interval=0.1)
    sweeper.run_once()
    connection_of(sweeper.engine).release()


@pytest.mark.full
@pytest.mark.parametrize(("at_once", "sweeps", "left"), [(AT_ONCE, 4, 0), (1, 1, 10)])
def test_a_turn_goes_on_while_something_is_due(redis_url, monkeypatch, at_once, sweeps, left):
    """A stop of more questions than a sweep closes ends in one turn; control: one sweep a turn."""
    monkeypatch.setattr("runner.celery.threads.AT_ONCE", at_once)
    monkeypatch.setattr("runner.store.requests.CALLER_MS", 0)
    for module in (changes, run_view):
        monkeypatch.setattr(module, "DRAIN_LIMIT", 5)
    store, (sweeper, *_) = fleet_of_sweepers(redis_url)
    worker = ManualWorker(store, ManualClock())
    run_id = worker.start("a")
    worker.park(run_id, "a", *(f"q{number}" for number in range(20)))
    store.do(CancelRun(run_id, "enough"))
    take_turn(sweeper)

    assert (store.sweeps, len(store.open_interrupts())) == (sweeps, left)


def test_a_turn_ends_though_something_is_always_due(redis_url):
    """What is due all the time keeps a worker neither from sealing the audit nor from its pause."""
    store, (sweeper, *_) = fleet_of_sweepers(redis_url, BusyStore)
    take_turn(sweeper)

    assert store.sweeps == AT_ONCE


@pytest.mark.full
def test_the_list_of_workers_is_read_in_pages(redis_url):
    """However large the fleet is, no command reads the whole list, and each worker is on it once."""
    client, roster = redis.Redis.from_url(redis_url), WorkerRegistry(redis_url)
    for number in range(3 * PAGE):
        roster.enter(described(Worker(name=f"w{number:04}@host", pid=1)), 0)
    client.config_resetstat()

    assert [worker.name for worker in roster.all()] == [
        f"w{number:04}@host" for number in range(3 * PAGE)
    ]
    assert "hgetall" not in calls(client)
    assert calls(client)["hscan"] >= 3
