"""An embedded store that also listens on a loopback port, with a password."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from runner.dev.embedded import EmbeddedStore, find_server
from tests.ports import free_port


class TcpStore(EmbeddedStore):
    """Its socket and its port need a random password."""

    def __init__(self, *, appendonly: bool = False, directory: Path | None = None) -> None:
        super().__init__(find_server(), appendonly=appendonly, directory=directory)
        self.port, self._password = free_port(), secrets.token_hex(16)

    @property
    def url(self) -> str:
        return f"{super().url}&password={self._password}"

    @property
    def broker_url(self) -> str:
        return super().broker_url.replace("://", f"://:{self._password}@")

    @property
    def tcp_url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def _settings(self) -> str:
        return f"{super()._settings()}port {self.port}\nrequirepass {self._password}\n"

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return client.ping()
        except redis.RedisError:
            return False


@contextmanager
def tcp_store(**options: object) -> Iterator[TcpStore]:
    """Run such a server for the length of a `with` block."""
    store = TcpStore(**options)
    try:
        store.start()
        yield store
    finally:
        store.stop()
