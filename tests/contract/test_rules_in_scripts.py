"""Rules that stand in a script for its speed and once more elsewhere: both do the same.

The third one, when a join is ready, is held by `tests/properties/test_graph_against_model.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

import pytest
import redis

from runner.approvals import Rule
from runner.client import SweeperDispatcher
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.answers import apply_decisions
from runner.records.checkpoints import Saved
from runner.records.interrupts import Decision
from runner.records.run import Status
from runner.store.interface import Settlement
from runner.store.redis import scripts
from runner.store.redis.fast.fast_path import FastPath
from runner.store.redis.keys import Keys
from runner.store.redis.scripts import Script
from runner.store.redis.store import RedisStore
from runner.store.requests import AskQuestions, SaveCheckpoint, SettleVisit
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker
from tests.contract.test_staying import BELL, QUEUE
from tests.graphs import single

CHECKPOINTS = {
    "messages are added": [({"n": 1}, 0, ["one", "two"]), ({"n": 2}, 2, ["three"])],
    "messages are replaced": [({"n": 1}, 0, ["one", "two", "three"]), ({"n": 22}, 1, ["four"])],
    "messages are dropped": [({"n": 1}, 0, ["one", "two"]), ({}, 0, [])],
    "there are none": [({"n": 1}, 0, []), ({"n": 333}, 0, [])],
}


@pytest.fixture
def client(redis_url):
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def worker(redis_url):
    """A worker by hand on a store whose scripts ring."""
    clock = ManualClock()
    store = RedisStore(redis_url, clock=clock, lease=30)
    store.install_doorbell(BELL)
    yield ManualWorker(store, clock)
    store.close()


@pytest.mark.full
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_is_the_same_by_script_and_transaction(worker, client, name):
    """`save.lua` and `transaction/checkpoints.py` leave the same document, messages and size."""

    def checkpoint(write):
        run_id, token = worker.begin("a")
        states = []
        for document, keep, messages in CHECKPOINTS[name]:
            saved = Saved(document, keep, [{"text": text} for text in messages])
            assert write(token, saved).word in {"saved", "asked"}
            key = Keys().run(run_id)
            states.append((client.hmget(key, "k:a", "size"), client.hgetall(f"{key}:m")))
        return states

    by_script = checkpoint(lambda token, saved: worker.store.do(SaveCheckpoint(token, saved)))
    by_transaction = checkpoint(
        lambda token, saved: worker.store.do(AskQuestions(token, [], saved))
    )

    assert by_script == by_transaction
    assert by_script[0] != by_script[1]


def test_a_doorbell_is_the_same_from_a_settle_and_from_the_part(worker, client):
    """`apply.lua`, which has the template as a constant, pushes what `parts/doorbells.lua` does."""

    def ring():
        run_id, token = worker.begin("a>b a>c")
        client.delete(QUEUE)
        settlement = Settlement(Status.COMPLETED, "11", "out", {"v": 1})
        assert worker.store.do(SettleVisit(token, settlement, worker.nonce())).word == "settled"
        assert not client.exists(f"{Keys().prefix}wake")
        messages = client.lrange(QUEUE, 0, -1)
        return [
            re.sub(rb"@[\d.]+", b"@", bell).replace(run_id.encode(), b"run")
            for bell in messages
        ]

    before = worker.store._fast._doorbell
    from_part = ring()
    assert (
        worker.store._fast._doorbell != before
    )  # that settle was told its template is outdated
    from_constant = ring()

    assert from_part == from_constant
    assert len(from_part) == 2
    assert b'"id":"run.b.1.1"' in b"".join(from_part)


@pytest.mark.full
@pytest.mark.parametrize("output", [None, ["é", 1]])
@pytest.mark.parametrize(
    ("edges", "taken"), [("a>b b>c", 2), ("a>b b>c b>d", 1), ("a>b b>d c>d d>e", 1)]
)
def test_the_short_way_writes_what_the_long_one_does(
    worker, client, monkeypatch, *, edges, taken, output
):
    """`apply.lua` has a way of its own for one node that follows another; control: how often it is taken."""

    def walk(old, new):
        def changed(name, constants=""):
            text = assembled(name, constants).text
            assert name != "apply" or old in text
            text = text.replace(old, new)
            return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())

        client.flushall()
        worker.store.install_doorbell(BELL)
        monkeypatch.setattr(scripts, "script", changed)
        (_, token), replies = ManualWorker(worker.store, worker.clock).begin(edges), []
        while token:
            followers = sum(edge.startswith(f"{token.node}>") for edge in edges.split())
            settlement = Settlement(
                Status.COMPLETED, "1" * followers, output, {"v": 1}, may_continue=True
            )
            nonce = f"n{len(replies)}:worker"
            reply = worker.store.do(SettleVisit(token, settlement, nonce))
            token = reply.claim and reply.claim.token
            replies.append((reply.word, reply.claim and replace(reply.claim, token=None)))
        count = int(client.getdel("short") or 0)
        return count, re.sub(r"@[\d.]+", "@", repr((replies, stored(client))))

    assembled = scripts.script
    mark = b"local kind, visit, ended"
    count, by_short = walk(mark, b"redis.call('INCR', 'short') " + mark)
    none, by_long = walk(b"ARGV[11] == '' and step", b"false")

    assert count >= taken
    assert none == 0
    assert by_short == by_long


def stored(client):
    """Return all keys with their values, but for the numbers of a stream's entries."""
    read = {
        b"hash": lambda key: sorted(client.hgetall(key).items()),
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"string": client.get,
        b"set": client.smembers,
        b"stream": lambda key: [fields for _, fields in client.xrange(key)],
    }
    return [(key, read[client.type(key)](key)) for key in sorted(client.keys())]


def pays(ctx):
    """Pay what was approved, which is used once the question is answered."""
    decision = ctx.interrupt("refund", "late", rule=Rule(need=2), action={"amount": 120})
    return decision.decision


def used_decision(redis_url, clock, monkeypatch, *, guesses):
    """Decide and use a question; return what is stored of that, and the looks of the node that goes on."""
    redis.Redis.from_url(redis_url).flushall()
    with monkeypatch.context() as patch:
        if not guesses:
            patch.setattr(FastPath, "knows", lambda *_: False)
        store, raw = (
            RedisStore(redis_url, clock=clock, push=True),
            redis.Redis.from_url(redis_url),
        )
        store.install_doorbell(BELL)
        registry = Registry()
        registry.add("pays", lambda: single(pays))
        engine = Engine(store, SweeperDispatcher(), registry)
        run = engine.start("pays", "go", run_id="00run")
        engine.deliver(run, "a", 1, 1)
        (asked,) = store.open_interrupts(limit=1).items
        for name in ("ana", "ben"):
            vote = Decision(asked.id, None, name, None, asked.digest, "approve")
            apply_decisions(engine, [vote])
        attempt = store.read(run).nodes["a"].attempt
        raw.config_resetstat()
        assert engine.deliver(run, "a", 1, attempt).word == "settled"
        trips = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        fields = raw.hgetall("runner:{p00}:r:00run")
        decided = [text for name, text in fields.items() if name.startswith(b"d:")]
        _, _, decision = decided[0].partition(b"{")
        steps = [step for _, step in raw.xrange("runner:{p00}:audit")]
        entries = [text for step in steps for text in step.values()]
        events = raw.lrange("runner:{p00}:r:00run:e", 0, -1)
        store.close()
        # Without how long it took, and nonces, which end with a number.
        nonces = re.findall(
            rb'(?<="nonce":")[^"]+|(?<=answered 1700000000000 )[^ ]+',
            b" ".join(fields.values()),
        )
        assert len(nonces) == 3
        size = int(fields[b"size"]) - len(fields[b"x:a.1"]) - sum(map(len, nonces))
    return trips, [json.loads(b"{" + decision), size, fields[b"audit"], events] + [
        json.loads(entry) for entry in entries
    ]


@pytest.mark.full
def test_a_decision_is_used_the_same_by_a_guess_and_after_a_look(redis_url, monkeypatch):
    """What the claim has read saves two looks, and leaves the same times, entries, events and size."""
    clock = ManualClock()
    trips, stored = used_decision(redis_url, clock, monkeypatch, guesses=True)
    with_looks, control = used_decision(redis_url, clock, monkeypatch, guesses=False)

    assert stored == control
    assert (trips, with_looks) == (3, 5)
    assert stored[0]["used"]["at"] == clock()
