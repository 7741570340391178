"""Ten thousand questions whose time is over, or which remind, in the same moment."""

from __future__ import annotations

import threading
import time

import pytest

from runner.celery.threads import BATCH
from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, shape

EACH = 20
FEW, MANY = 200, 500
"""So many nodes ask, each of them that many questions."""


@pytest.fixture
def clock():
    """One clock for everything: the moment is the test's."""
    return ManualClock()


@pytest.fixture
def store(databases, clock):
    """A store on a real server."""
    site = next(databases)
    store = RedisStore(site.url, lease=3600, push=False, clock=clock)
    yield store
    store.close()
    site.end()


@pytest.fixture
def worker(store):
    """Who does the work of all runs."""
    return ManualWorker(store)


def crowd(worker, runs, **options):
    """Let a score of questions wait on each of some nodes."""
    graph, names = shape("a"), [f"q{number}" for number in range(EACH)]
    return [worker.park(worker.start(graph), "a", *names, **options) for _ in range(runs)]


class Others:
    """Runs of other people, one after the other, while a sweeper has much to do.

    `turns` are the numbers of sweeps that were over when one of these runs ended.
    """

    def __init__(self, worker, sweeps) -> None:
        self.worker, self.graph, self.sweeps = worker, shape("a>b", name="others"), sweeps
        self.slowest, self.done, self.turns, self.errors = 0.0, 0, set(), []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go)

    def __enter__(self):
        self._run()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(60)
        assert self.errors == []

    def _go(self):
        try:
            while not self._stop.is_set():
                self._run()
        except Exception as error:  # noqa: BLE001 - told by the test
            self.errors.append(error)

    def _run(self):
        began = time.monotonic()
        self.worker.run(self.worker.start(self.graph), "a", "b")
        self.slowest, self.done = max(self.slowest, time.monotonic() - began), self.done + 1
        self.turns.add(len(self.sweeps))


def drain(worker, batch):
    """Sweep until nothing is due; return how much each sweep did, and how often others had a turn between."""
    sizes = []
    with Others(worker, sizes) as others:
        began = time.monotonic()
        while (count := worker.store.sweep(batch).count) > 0:
            sizes.append(count)
        rate, turns = sum(sizes) / (time.monotonic() - began), others.turns - {0, len(sizes)}
    figures = f"{rate:.0f} timers a second; {others.done} other runs, the slowest {others.slowest:.3f} s"
    print(figures)  # noqa: T201 - for whoever measures, with -s
    return sizes, len(turns)


@pytest.mark.parametrize("runs", [pytest.param(FEW, marks=pytest.mark.sample), MANY])
def test_ten_thousand_reminders_and_expiries_keep_nobody_waiting(worker, store, clock, runs):
    """They are handled a batch at a time, in the order of time; between the batches others go on."""
    nodes = crowd(worker, runs, expires_in=60, remind_every=30)
    clock.advance(30)
    reminders, turns = drain(worker, BATCH)
    assert sum(reminders) == runs * EACH
    assert max(reminders) <= BATCH
    assert turns > runs // 100
    page = store.open_interrupts(limit=100)
    assert {asked.reminded for asked in page} == {1}

    clock.advance(30)
    expiries, turns = drain(worker, BATCH)
    assert sum(expiries) >= runs * EACH
    assert max(expiries) <= BATCH
    assert turns > runs // 100
    assert not store.open_interrupts()
    assert {len(worker.claim(node[0].run_id, "a").answers) for node in nodes[:50]} == {EACH}
    assert store.sweep().count == 0


@pytest.mark.sample
def test_in_one_batch_they_would_stop_everybody(worker, clock):
    """The control: a sweep of a fifth of them without a limit is one script, in which nobody gets a turn."""
    crowd(worker, MANY // 5, expires_in=60)
    clock.advance(60)

    sizes, turns = drain(worker, MANY * EACH)

    assert sizes == [MANY // 5 * EACH]
    assert turns == 0
