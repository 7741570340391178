"""Large values: each is stored once for a run and all runs inside it, under a digest of its bytes.

In its place stands a reference, `@root digest`, which no JSON looks like; scripts pass it on unread. So
a value that goes through many nodes, or up from a nested graph, is written once, and reading it costs
one more request. It is compressed: the length of the value, a blank and what zlib made of it.
A process remembers those that it read or wrote last: it reads none of them again, nor compresses one that a
node passes on.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runner.errors import CorruptDocument
from runner.store.encoding import digest
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys

MARK = b"@"

LEVEL = 1
"""The level of zlib: the worker waits for it."""


REMEMBERED = 16_000_000
"""Bytes of the values that a process remembers, not compressed."""


class LargeValues:
    """The large values of one partition. Thread-safe."""

    def __init__(
        self, connection: RedisConnection, keys: Keys, call: Callable[..., list[Any]]
    ) -> None:
        """`call` runs a script by its name."""
        self._redis, self._keys, self._call = connection, keys, call
        self._values: dict[bytes, bytes] = {}
        self._lock = threading.Lock()

    def put(self, run_id: str, data: bytes) -> bytes:
        """Store a large value, and return a reference to it."""
        name = digest(data)
        # In a run inside another one the root is not known, nor so if the root has the value.
        is_known = b"%b%b %b" % (MARK, run_id.encode(), name.encode()) in self._values
        status, *root = self._call("shelve", run_id, name, b"" if is_known else _compressed(data))
        if status == b"absent":  # the store has lost it
            status, *root = self._call("shelve", run_id, name, _compressed(data))
        if status != b"shelved":
            return data  # the run is gone: the request that the value is for is refused as well
        reference = b"%b%b %b" % (MARK, root[0], name.encode())
        with self._lock:
            self._remember(reference, data)
        return reference

    def get(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values, each reference replaced by what it refers to.

        Raises:
            CorruptDocument: a value is gone.
        """
        references = {value for value in values if value is not None and value.startswith(MARK)}
        if not references:
            return list(values)
        large = self._read(references)
        return [large.get(value, value) if value is not None else None for value in values]

    def resolve(self, fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the fields of a run's hash, each reference replaced by what it refers to.

        Raises:
            CorruptDocument: a value is gone.
        """
        starts = {name: _start(name, value) for name, value in fields.items()}
        starts = {
            name: start
            for name, start in starts.items()
            if start >= 0 and fields[name].startswith(MARK, start)
        }
        if not starts:
            return dict(fields)
        large = self._read({fields[name][start:] for name, start in starts.items()})
        return {
            **fields,
            **{
                name: fields[name][:start] + large[fields[name][start:]]
                for name, start in starts.items()
            },
        }

    def _read(self, references: Iterable[bytes]) -> dict[bytes, bytes]:
        with (
            self._lock
        ):  # also while it reads: else all readers of a value that begin together read it
            values = {name: self._values[name] for name in references if name in self._values}
            values |= self._read_stored([name for name in references if name not in values])
            for reference, data in values.items():
                self._remember(reference, data)
        return values

    def _remember(self, reference: bytes, data: bytes) -> None:
        """Remember a value, and forget those that were used least lately where there are too many bytes."""
        self._values.pop(reference, None)
        self._values[reference] = data
        size = sum(map(len, self._values.values()))
        while size > REMEMBERED:
            size -= len(self._values.pop(next(iter(self._values))))

    def _read_stored(self, references: Sequence[bytes]) -> dict[bytes, bytes]:
        if not references:
            return {}
        with self._redis.translated(), self._redis.client.pipeline(transaction=False) as pipe:
            for reference in references:
                root, name = referred(reference)
                pipe.hget(self._keys.run(root, ":b"), name)
            values = dict(zip(references, pipe.execute(), strict=True))
        lost_values = [reference.decode() for reference, data in values.items() if data is None]
        if lost_values:
            raise CorruptDocument(
                f"the stored value {lost_values[0]} is gone, though a run refers to it."
            )
        return {reference: _restored(data) for reference, data in values.items()}


def referred(reference: bytes) -> tuple[str, str]:
    """Read where a large value is: its root, and its name there."""
    root, _, name = reference[1:].decode().partition(" ")
    return root, name


def size_of(data: bytes) -> int:
    """Return how many bytes a stored large value counts: as many as it had before it was compressed."""
    return int(data.partition(b" ")[0])


def _compressed(data: bytes) -> bytes:
    return b"%d %b" % (len(data), zlib.compress(data, LEVEL))


def _restored(data: bytes) -> bytes:
    return zlib.decompress(data.partition(b" ")[2])


def _start(name: bytes, value: bytes) -> int:
    """Return where in a field a reference would begin; -1 in a field that has none.

    In an entry it comes after the place in the order.
    """
    if name.startswith(b"x:"):
        return value.find(b" ") + 1
    return 0 if name in {b"task", b"state"} or name.startswith((b"o:", b"h:")) else -1
