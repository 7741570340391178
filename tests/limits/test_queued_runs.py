"""Runs that wait for others of their key: what damage does to them, and what is shown."""

from __future__ import annotations

from contextlib import closing

import pytest
import redis

from runner.limits.concurrency import Admission, Concurrency, Debounce
from runner.store.interface import Start
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.requests import StartRun
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, rung, shape

PREFIX = Keys("runner").prefix
NO_TEXT = b"\xff"


class Starts:
    """A store with a graph whose runs depend on each other by a tag, and starts of it."""

    def __init__(self, url, concurrency=None, debounce=None, name="g"):
        # Lists have the time of the server.
        self.raw = redis.Redis.from_url(url)
        self.clock = ManualClock(int(self.raw.time()[0]) * 1000)
        self.store = RedisStore(url, clock=self.clock)
        self.worker = ManualWorker(self.store, self.clock)
        self.name = name
        self.graph = shape("a", name=name, admission=Admission(0, concurrency, debounce))
        self.store.publish([self.graph])

    def start(self, run_id, account="7", **options):
        """Start a run later than the one before; return its reply."""
        self.clock.advance(1)
        self.worker.know(run_id, self.graph)
        start = Start(run_id, self.name, None, "task", tags={"account": account}, **options)
        return self.store.do(StartRun(start))

    def close(self):
        self.store.close()
        self.raw.close()


@pytest.fixture
def begin(redis_url):
    """Make a store with rules for starts; it is closed with the test."""
    opened = []

    def make(*rules, **options):
        opened.append(closing(Starts(redis_url, *rules, **options)))
        return opened[-1].__enter__()

    yield make
    for each in opened:
        each.__exit__(None, None, None)


@pytest.mark.parametrize("damaged", [0, 3])
def test_damaged_members_of_a_queue_hold_no_run_up(begin, damaged):
    """The run behind those that are no text begins with the end before it; control: none are damaged."""
    site = begin(Concurrency(1, by="tag:account"))
    assert [rung(site.start(name)) for name in ("00one", "00two")] == [["a.1.1"], []]
    queue = f"{PREFIX}key:q:g:account=7"
    for number in range(damaged):
        site.raw.zadd(queue, {NO_TEXT + b"%d" % number: number})
    site.start("00three")

    for name in ("00one", "00two", "00three"):
        site.worker.run(name, "a")
        assert site.worker.statuses(name) == "completed: a completed"
    assert site.raw.exists(queue) == 0


@pytest.mark.parametrize("when_full", ["queue", "refuse", "replace", "skip"])
def test_a_damaged_open_run_takes_one_place(begin, when_full):
    """A start beside one that is no text is answered as beside a run, and its place is the only one taken."""
    site = begin(Concurrency(2, by="tag:account", when_full=when_full))
    site.raw.zadd(f"{PREFIX}key:o:g:account=7", {NO_TEXT: 1})
    assert rung(site.start("00one")) == ["a.1.1"]
    word = {"refuse": "full", "skip": "exists"}.get(when_full, "started")
    reply = site.start("00two")
    assert (reply.word, rung(reply)) == (word, [])
    assert r"\xff first" in reply.detail or when_full != "refuse"


def test_a_damaged_debounced_run_is_no_run(begin):
    """A start beside one that is no text begins a run, which the next start of the key gets."""
    site = begin(None, Debounce(30, by="tag:account"))
    site.raw.zadd(f"{PREFIX}key:d:g:account=7", {NO_TEXT: 1})
    replies = [site.start("00one"), site.start("00two")]
    assert [(reply.word, reply.run_id) for reply in replies] == [
        ("started", "00one"),
        ("exists", "00one"),
    ]
