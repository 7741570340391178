"""The primary is lost and its replica takes over: what was acknowledged as durable is there."""

from __future__ import annotations

import threading

import pytest

from runner import Client, Status
from runner.errors import NotDurable, StoreError
from runner.store.redis import durability
from runner.store.redis.fast import fast_path
from runner.store.redis.store import RedisStore
from runner.store.requests import SettleVisit
from tests.celery.workers import Site
from tests.chaos.load import Load
from tests.chaos.servers import Pair
from tests.chaos.transitions import SETTLED, Walk
from tests.waiting import wait_until

ROUNDS = 5
PROGRESS = 150
"""Seconds that everything may take to end after the last failover."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A primary that keeps what it has while tests take turns with it, and its replica."""
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.end()


@pytest.fixture
def behind(pair):
    """The pair, empty and in step, whose replica a test may freeze; a dead one is back afterwards."""
    pair.primary.client.flushall()
    wait_until(lambda: not pair.replica.client.dbsize(), "the replica is empty, too")
    yield pair
    for server in (pair.primary, pair.replica):
        if server.alive:
            server.thaw()
            server.client.config_set("masterauth", "")
    if not pair.replica.alive:
        pair.bring_back()


@pytest.fixture
def opened(pair):
    """Open stores of the pair at a level; they are closed in the end."""
    stores = []

    def store(level):
        stores.append(RedisStore(pair.url, push=False, durability=level))
        return stores[-1]

    yield store
    for store_of_level in stores:
        store_of_level.close()


def until(verb, walk):
    """Send the requests of a walk up to one, and return how that is sent."""
    for name, _, send in walk:
        if name == verb:
            return send
        send("")
    raise AssertionError(verb)


def ask_again(request):
    """Repeat a request until there is a primary that takes it."""
    replies = []

    def taken_once():
        try:
            replies.append(request())
        except StoreError:
            return False
        return True

    wait_until(taken_once, "a primary takes requests")
    return replies[0]


@pytest.mark.sample
def test_a_replica_that_is_behind_makes_answers_not_durable(behind, opened):
    """While no replica confirms, an answer is refused as not durable; repeated later, it was taken once."""
    store = opened("replica")
    answer = until("answer", Walk(store, "00walk"))
    behind.fall_behind()
    with pytest.raises(NotDurable, match="no replica confirmed it"):
        answer("")
    behind.catch_up()

    assert ask_again(lambda: answer("")) == "accepted"
    assert [event.kind for event in store.events("00walk")].count("interrupt.answered") == 1
    decision = "d:" + Walk(store, "00walk").question.id.partition(".")[2]
    assert behind.replica.client.hget("runner:{p00}:r:00walk", decision)


def test_a_repeat_without_the_mark_would_be_called_durable(behind, opened, monkeypatch):
    """Control: a repeat on a new connection has written nothing, so a server has nothing to wait for."""
    answer = until("answer", Walk(opened("fast"), "00walk"))
    behind.replica.freeze()
    assert answer("") == "accepted"
    again = Walk(opened("replica"), "00walk")
    with pytest.raises(NotDurable):
        again._answer("a")
    again = Walk(opened("replica"), "00walk")
    say = durability._send
    unmarked = lambda link, *command: None if command[0] == "SET" else say(link, *command)  # noqa: E731
    monkeypatch.setattr(durability, "_send", unmarked)

    assert again._answer("a") == "accepted"


def test_fast_may_forget_and_is_then_as_it_was(behind, opened):
    """Control: at the level `fast` a failover forgets an accepted answer; the question is open as before."""
    store = opened("fast")
    walk = Walk(store, "00walk")
    answer = until("answer", walk)
    wait_until(
        lambda: behind.replica.client.keys("runner:{p00}:open:*"),
        "the replica has the question",
    )
    before = store.read("00walk")
    behind.fall_behind()
    assert answer("") == "accepted"
    behind.fail_over()

    assert ask_again(lambda: store.read("00walk")) == before
    assert answer("") == "accepted"


def claimed_twice(pair, opened):
    """Let a claim be lost in a failover, and the node be claimed again; say what the lost worker is told."""
    store = opened("fast")
    claim = until("claim", walk := Walk(store, "00walk"))
    wait_until(
        lambda: pair.replica.client.exists("runner:{p00}:timers"), "the replica has the run"
    )
    pair.fall_behind()
    assert claim("lost") == "claimed"
    lost = walk.token
    pair.fail_over()
    assert ask_again(lambda: claim("new")) == "claimed"
    return store.do(SettleVisit(lost, SETTLED, "late")).word, store.do(
        SettleVisit(walk.token, SETTLED, "own")
    ).word


def test_a_worker_whose_claim_was_lost_is_refused(behind, opened):
    """A claim that the new primary never saw gives no right to write: no other claim has its fence."""
    assert claimed_twice(behind, opened) == ("stale", "settled")


def test_with_fences_that_only_count_the_lost_worker_would_win(behind, opened, monkeypatch):
    """Control: where each claim adds one, the lost claim and the next share a fence: the wrong one wins."""
    monkeypatch.setattr(fast_path, "next_fence", lambda fence, _: fence + 1)

    assert claimed_twice(behind, opened) == ("settled", "stale")


def test_a_worker_does_not_end_its_task_before_the_replica_has_it(behind, tmp_path):
    """A node whose end no replica confirms is not called done: its worker waits, says so, and goes on."""
    site, client = Site(behind.primary.url, tmp_path), Client(redis_url=behind.url)
    try:
        # The settle of `a` has claimed `b` already: its lease must last for as long as the worker waits.
        site.ready(
            1,
            RUNNER_DURABILITY="replica",
            RUNNER_REDIS_URL=behind.url,
            RUNNER_GRAPHS="tests.celery.node_lines,tests.celery.graphs",
            RUNNER_LEASE=str(PROGRESS),
        )
        behind.replica.freeze()
        run = client.start("chain", "go")
        wait_until(
            lambda: "store.not_durable: no replica" in site.workers[0].output(),
            "the worker says so",
        )
        assert "succeeded" not in site.workers[0].output()
        behind.replica.thaw()

        assert run.wait(PROGRESS).status is Status.COMPLETED
        wait_until(
            lambda: site.workers[0].output().count("succeeded") == 3, "the tasks have ended"
        )
        assert [event.node for event in run.events() if event.kind == "node.started"] == [
            "a",
            "b",
            "c",
        ]
    finally:
        site.end()
        client.engine.store.close()


def test_failovers_under_load_lose_nothing_that_is_durable(pair, tmp_path):
    """Five primaries are killed while runs start and people answer: at level `replica` all of it holds."""
    pair.primary.client.flushall()
    site = Site(pair.primary.url, tmp_path)
    levels = {"RUNNER_DURABILITY": "replica", "RUNNER_REDIS_URL": pair.url}
    try:
        site.ready(2, **levels)
        with Load(pair.url, durability="replica") as load:
            for _ in range(ROUNDS):
                count = len(load.started)
                wait_until(
                    lambda count=count: len(load.started) > count + 3, "runs are accepted"
                )
                pair.fail_over()
                threading.Event().wait(0.5)
                pair.bring_back()
        load.finish(PROGRESS)
        load.check()
        assert load.errors["StoreError"]
        assert all(worker.alive for worker in site.workers)
    finally:
        site.end()
        load.close()
