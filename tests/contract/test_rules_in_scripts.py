"""Rules that stand in a script for its speed and once more elsewhere: both do the same.

The third one, when a join is ready, is held by `tests/properties/test_graph_against_model.py`.
"""

from __future__ import annotations

import re

import pytest
import redis

from runner.records.checkpoints import Saved
from runner.records.run import Status
from runner.store.interface import Settlement
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.requests import AskQuestions, SaveCheckpoint, SettleVisit
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker
from tests.contract.test_staying import BELL, QUEUE

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
            re.sub(rb"@[\d.]+", b"@", bell).replace(run_id.encode(), b"run") for bell in messages
        ]

    before = worker.store._fast._doorbell
    from_part = ring()
    assert worker.store._fast._doorbell != before  # that settle was told its template is outdated
    from_constant = ring()

    assert from_part == from_constant
    assert len(from_part) == 2
    assert b'"id":"run.b.1.1"' in b"".join(from_part)
