"""Servers that several modules need."""

from __future__ import annotations

import pytest
import redis

from runner.testing.plugin import private_store
from tests.postgres import postgres

__all__ = ["postgres"]


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
