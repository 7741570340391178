"""The two stores keep the contract."""

from __future__ import annotations

import pytest

from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from tests.contract.store import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, clock):
        return MemoryStore(clock=clock, lease=30)


class TestRedisStore(StoreContract):
    @pytest.fixture
    def store(self, clock, redis_url):
        store = RedisStore(redis_url, clock=clock, lease=30, push=False)
        yield store
        store.close()
