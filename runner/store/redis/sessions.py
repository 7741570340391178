"""The sessions of agents, and the moving of their data between partitions.

A session has a home partition. A visit of a run in another partition leaves its data in that one, as a part
of the session that is moved to the home before the session is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.immutable import immutable
from runner.records.checkpoints import Session, session_of
from runner.records.listings import (
    Page,
    SessionSummary,
    checked_limit,
    cursor_of,
    position_in,
    unreadable_cursor,
)
from runner.store.encoding import dump, load
from runner.store.redis.connection import RedisConnection, mapping_of, pairs
from runner.store.redis.keys import Keys

SCANNED = 5_000
"""The approximate number of keys searched for one page of a listing."""


@immutable
class SessionPart:
    """Session data outside of the session's home partition; `values` alternates names and values.

    A value is [value] (JSON), or [] if the visit deleted it.
    """

    number: bytes
    messages: Sequence[bytes]
    values: Sequence[bytes]


@dataclass
class SessionStore:
    """The sessions in one partition."""

    _redis: RedisConnection
    _keys: Keys
    _call: Callable[..., list[Any]]

    def read(self, session_id: str) -> Session:
        """Read a session as of one moment."""
        _, messages, values = self._call("snapshot", *self._keys.session(session_id))
        return Session(
            [load(message) for message in messages],
            {name.decode(): load(value) for name, value in mapping_of(values).items()},
        )

    def forget(self, session_id: str) -> bool:
        return bool(self._redis.call("DEL", *self._keys.session(session_id)))

    def take_part(self, session_id: str) -> SessionPart | None:
        """Return the part that visits left here for a session, until it is dropped; None without one."""
        reply = self._call("session_take", session_id)
        return SessionPart(*reply[1:]) if reply[0] == b"taken" else None

    def add_part(self, session_id: str, source: str, part: SessionPart) -> None:
        """Add a part from the partition `source` to a session, once."""
        values: list[bytes] = []
        for name, wrapped in mapping_of(part.values).items():
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
        """Forget the record of moved parts of a session; its home partition comes first."""
        self._redis.call("DEL", *self._keys.moved_session(session_id))


def list_sessions(
    partitions: Sequence[tuple[RedisConnection, Keys]], limit: int, cursor: str
) -> Page[SessionSummary]:
    """List the sessions of one batch of keys, sorted by id; a page may be empty although more follow.

    Pages follow the order of SCAN, one partition after the other. A session that lies in several partitions
    is listed in the first, and its messages in all of them are counted.

    Raises:
        UsageError: the limit or the cursor can't be used. StoreError: a server can't be reached.
    """
    number, start, end, last = _position(cursor, len(partitions))
    server, keys = partitions[number]
    with server.translated():
        follows, batch = server.client.scan(start, f"{keys.prefix}session:[ms]:*", SCANNED)
    with_messages, with_state = (
        {key[len(prefix) :].decode() for key in batch if key.startswith(prefix.encode())}
        for prefix in keys.session("")
    )
    # If the table of keys was resized since the last page, this is another batch: repeat rather than miss.
    names = [
        name
        for name in sorted(with_messages | with_state)
        if last is None or follows != end or name > last
    ]
    is_cut = len(names) > checked_limit(limit)
    names = names[:limit]
    sizes = [_sizes(*partition, names) for partition in partitions]
    items = tuple(
        _summary(name, sum(size[index][0] for size in sizes))
        for index, name in enumerate(names)
        if any(sizes[number][index])
        and not any(any(size[index]) for size in sizes[:number])
        # A session that has both keys is listed when SCAN returns the key of its messages.
        and (name in with_messages or not sizes[number][index][0])
    )
    if is_cut:
        return Page(items, cursor_of((number, json.dumps([start, follows, names[-1]]))))
    if not follows and number + 1 == len(partitions):
        return Page(items)
    return Page(items, cursor_of((number + (not follows), json.dumps([follows, 0, None]))))


def _position(cursor: str, partitions: int) -> tuple[int, int, int, str | None]:
    """Read a cursor: a partition, the two SCAN cursors around a batch, and the last id that was listed."""
    if not cursor:
        return 0, 0, 0, None
    number, batch = position_in(cursor)
    try:
        start, end, last = json.loads(batch)
        start = int(start)
        end = int(end)
    except (TypeError, ValueError) as error:
        raise unreadable_cursor(cursor) from error
    if not 0 <= number < partitions:
        raise unreadable_cursor(cursor)
    return number, start, end, last


def _sizes(server: RedisConnection, keys: Keys, names: Sequence[str]) -> list[tuple[int, int]]:
    """Count the messages and state values of sessions in one partition."""
    with server.translated(), server.pipeline() as pipe:
        for name in names:
            messages, state = keys.session(name)
            pipe.llen(messages)
            pipe.hlen(state)
        replies = pipe.execute()
    return list(pairs(replies))


def _summary(name: str, messages: int) -> SessionSummary:
    graph, session_id = session_of(name)
    return SessionSummary(session_id, messages, graph)
