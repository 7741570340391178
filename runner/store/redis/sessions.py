"""The sessions of agents, and how their data travels between partitions.

A session has a home partition. A visit of a run in another one leaves its data there, as a part of the
session that is moved to the home before the session is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.records.checkpoints import Session
from runner.store.encoding import dump, load
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys


@dataclass(frozen=True, slots=True)
class SessionPart:
    """Session data outside of the session's home partition; `values` are name, value ...

    A value is [value] (JSON), or [] where the visit deleted it.
    """

    number: bytes
    messages: Sequence[bytes]
    values: Sequence[bytes]


class SessionStore:
    """The sessions in one partition."""

    def __init__(
        self, connection: RedisConnection, keys: Keys, call: Callable[..., list[Any]]
    ) -> None:
        """`call` runs a script."""
        self._redis, self._keys, self._call = connection, keys, call

    def read(self, session_id: str) -> Session:
        """Read a session as it is at one moment."""
        _, messages, values = self._call("snapshot", *self._keys.session(session_id))
        return Session(
            [load(message) for message in messages],
            {
                name.decode(): load(value)
                for name, value in zip(values[::2], values[1::2], strict=True)
            },
        )

    def forget(self, session_id: str) -> bool:
        with self._redis.translated():
            return bool(self._redis.client.delete(*self._keys.session(session_id)))

    def take_part(self, session_id: str) -> SessionPart | None:
        """Return what visits have left here for a session, until it is dropped; None for nothing."""
        reply = self._call("session_take", session_id)
        return SessionPart(*reply[1:]) if reply[0] == b"taken" else None

    def add_part(self, session_id: str, source: str, part: SessionPart) -> None:
        """Add a part that lay in the partition `source` to a session, once."""
        values: list[bytes] = []
        for name, wrapped in zip(part.values[::2], part.values[1::2], strict=True):
            value = load(wrapped)
            values += [name, dump(value[0]) if value else b""]
        self._call(
            "session_add",
            session_id,
            source,
            part.number,
            len(part.messages),
            *part.messages,
            *values,
        )

    def drop_part(self, session_id: str, part: SessionPart) -> None:
        """Delete a part that was added to its session."""
        self._call("session_drop", session_id, part.number)

    def forget_parts(self, session_id: str) -> None:
        """Forget which parts of a session have come and gone; first in its home."""
        with self._redis.translated():
            self._redis.client.delete(*self._keys.moved_session(session_id))
