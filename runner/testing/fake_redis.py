"""A Redis inside this process, made of fakeredis: for tests that need a store and run no worker.

The store's own scripts run in it, so it keeps the whole contract of stores without a server. Other
processes can't see it, so a worker, a broker or a program that a test starts needs a real server.
(fakeredis also has a TCP server, but its replies to scripts break at line ends, so that a claim
fails with "Bad simple string value".) It has no disk, replicas or memory limit, and no INFO, which
`runner doctor` reads; a script takes about a millisecond, ten times as long as on a server. It
needs the package `fakeredis[lua]`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.errors import needs_extra
from runner.immutable import immutable
from runner.store.addresses import CLIENTS
from runner.store.shared import RedisStore

with needs_extra("lua", "a store without a server", package="fakeredis"):
    import fakeredis
    import lupa  # type: ignore[import-untyped]  # noqa: F401 - no types; fakeredis runs scripts with it
    from fakeredis import FakeRedisConnection

SCHEME = "fakeredis"

SHA1 = (
    "lambda text: __import__('hashlib').sha1(text, usedforsecurity=False).hexdigest().encode()"
)
ADD_SHA1HEX = f'redis.sha1hex = python.eval("{SHA1}")'
"""The one function of Redis' Lua that the scripts call and fakeredis lacks."""


class Connection(FakeRedisConnection):
    """A connection whose commands block while they are sent."""

    def can_read(self, timeout: float | None = 0) -> bool:
        """Return True at once to a caller that waits for a reply: the reply is already there."""
        return bool(timeout) or super().can_read(timeout)


_servers: dict[str, fakeredis.FakeServer] = {}


@immutable
class FakeStore:
    """One fake server. `url` is its address, in this process only; `client` reads its keys."""

    url: str
    client: fakeredis.FakeRedis

    def open(self) -> RedisStore:
        """Open a store on it, for `builder.set_store`: the graph uses it when it is called."""
        return RedisStore(self.url, push=False)


@contextmanager
def fake_store() -> Iterator[FakeStore]:
    """Make an empty server; its data is deleted after the block."""
    url = f"{SCHEME}://{uuid.uuid4().hex}"
    _servers[url] = fakeredis.FakeServer()
    with _client(url, protocol=2) as client:
        client.eval(ADD_SHA1HEX, 0)
        yield FakeStore(url, client)
    del _servers[url]


def _client(url: str, **options: Any) -> fakeredis.FakeRedis:
    return fakeredis.FakeRedis(server=_servers[url], connection_class=Connection, **options)


CLIENTS[SCHEME] = _client
