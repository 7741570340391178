"""Servers that several modules need."""

from __future__ import annotations

import pytest
import redis

from runner.store.redis.store import RedisStore
from runner.testing import ManualClock
from runner.testing.plugin import private_store
from tests.postgres import postgres

__all__ = ["postgres"]


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


@pytest.fixture(scope="session")
def second_server():
    with private_store() as server:
        yield server


@pytest.fixture
def other_url(second_server):
    """Give the address of an empty database on another server."""
    with redis.Redis.from_url(second_server.url) as client:
        client.flushall()
    return second_server.url
