"""The Redis store keeps the contract, and the memory store its part for one run."""

from __future__ import annotations

import pytest

from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from tests.contract.store import RunStoreContract, StoreContract


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
