"""The Redis store keeps the contract, and the memory store its part for one run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.store.requests import AnswerQuestions
from tests.contract.store import ManualWorker, RunStoreContract, StoreContract


@pytest.mark.full
class TestMemoryStore(RunStoreContract):
    @pytest.fixture
    def store(self, clock):
        return MemoryStore(clock=clock, lease=30)


class TestRedisStore(StoreContract):
    @pytest.fixture
    def store(self, clock, redis_url):
        store = RedisStore(redis_url, clock=clock, lease=30, push=False)
        yield store
        store.close()


def test_each_test_of_the_contract_has_a_name_of_its_own():
    """Of two in different classes of the contract, only the first would run."""
    names = [name for room in StoreContract.__mro__ for name in vars(room)]
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == len(set(tests))


class AnyPart(MemoryStore):
    """A store without the promise of sets: each answer counts for itself."""

    def do(self, request):
        if not isinstance(request, AnswerQuestions) or len(request.answers) == 1:
            return super().do(request)
        replies = [self.do(replace(request, answers=[answer])) for answer in request.answers]
        receipts = [receipt for reply in replies for receipt in reply.receipts]
        return replace(replies[0], receipts=receipts)


def test_a_store_that_takes_a_part_of_a_set_is_noticed(clock):
    """The control: where the good half of a set is applied, the pairs of late answers say so."""
    store, told = AnyPart(clock=clock, lease=30), RunStoreContract()
    with pytest.raises(AssertionError, match="open"):
        told.test_an_answer_that_comes_too_late_changes_nothing_and_is_told_why(
            ManualWorker(store, clock), store
        )
