"""Large values: each is stored once for a run and all runs inside it, under a digest of its bytes.

In its place stands a reference, `@root digest`, which no JSON looks like; scripts pass it on unread. So
a value that goes through many nodes, or up from a nested graph, is written once, and reading it costs
one more request. It is compressed: the length of the value, a blank and what zlib made of it.
A process remembers those that it read or wrote last: it reads none of them again. What no node of it reads it
does not decompress, nor encode what a node passes on.
"""

from __future__ import annotations

import marshal
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runner.errors import CorruptDocument
from runner.records.codec import JSON, LazyValue
from runner.store.encoding import LARGE, digest, load
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys

MARK = b"@"

LEVEL = 1
"""The level of zlib: the worker waits for it."""


REMEMBERED = 16_000_000
"""Bytes of the values that a process remembers, not compressed."""


class LargeValue(LazyValue):
    """A large value: compressed until it is first read, as a text shared by all its readers. Thread-safe."""

    def __init__(self, name: str, *, stored: bytes = b"", data: bytes | None = None) -> None:
        """`name` is the digest of its `data`; `stored` is that compressed."""
        self.name, self.text = name, ""
        self.size = size_of(stored) if data is None else len(data)
        self._stored, self._data, self._lock = stored, data, threading.Lock()
        self._length, self._form = -1, ""  # of what was read; its digest as Python objects

    def data(self) -> bytes:
        """Return its JSON."""
        with self._lock:
            if self._data is None:
                self._data, self._stored = _restored(self._stored), b""
            return self._data

    def read(self) -> JSON:
        """Decode it; a text is decoded once."""
        if self.text:
            return self.text
        value = load(self.data())
        self._length = len(value)
        if isinstance(value, str):
            self.text, self.size = value, self.size + len(value)
        return value

    def holds(self, value: object) -> bool:
        if not isinstance(value, (str, list, dict)) or len(value) != self._length:
            return False
        if type(value) is str:
            return value == self.text
        # Unlike ==, marshal tells 1 from 1.0 and True, and refuses what is not of a built-in type. Its later
        # versions write what else refers to an object, too.
        try:
            form = digest(marshal.dumps(value, 2))
        except ValueError:
            return False
        self._form = self._form or digest(marshal.dumps(load(self.data()), 2))
        return form == self._form and self.is_plain

    @property
    def is_plain(self) -> bool:
        return self.data().find(b'"__') < 0  # how each of the reserved keys begins


class LargeValues:
    """The large values of one partition. Thread-safe."""

    def __init__(
        self, connection: RedisConnection, keys: Keys, call: Callable[..., list[Any]]
    ) -> None:
        """`call` runs a script by its name."""
        self._redis, self._keys, self._call = connection, keys, call
        self._values: dict[bytes, LargeValue] = {}
        self._lock = threading.Lock()

    def put(self, run_id: str, value: bytes | LargeValue) -> bytes:
        """Store a large value of a run, JSON or one that is stored already, and return a reference to it."""
        large = LargeValue("", data=value) if isinstance(value, bytes) else value
        is_known = bool(large.name)
        large.name = large.name or digest(large.data())
        # In a run inside another one the root is not known, nor so if the root has the value.
        is_known |= b"%b%b %b" % (MARK, run_id.encode(), large.name.encode()) in self._values
        data = b"" if is_known else _compressed(large.data())
        status, *root = self._call("shelve", run_id, large.name, data)
        if status == b"absent":  # the store has lost it
            status, *root = self._call("shelve", run_id, large.name, _compressed(large.data()))
        if status != b"shelved":
            # The run is gone: the request that the value is for is refused as well.
            return large.data()
        reference = b"%b%b %b" % (MARK, root[0], large.name.encode())
        with self._lock:
            self._remember(reference, large)
        return reference

    def load(self, values: Sequence[bytes | None]) -> list[JSON | LargeValue]:
        """Decode values, but for large ones.

        Raises:
            CorruptDocument: a value is gone.
        """
        large = self._read(values)
        return [
            large.get(value)
            or (load(value) if len(value) <= LARGE else LargeValue("", data=value))
            for value in [value or b"null" for value in values]
        ]

    def get(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values, each reference replaced by what it refers to.

        Raises:
            CorruptDocument: a value is gone.
        """
        large = self._read(values)
        return [large[value].data() if value in large else value for value in values]

    def resolve(self, fields: Mapping[bytes, bytes]) -> dict[bytes, Any]:
        """Return the fields of a run's hash, each reference replaced by its value: lazy but in entries.

        Raises:
            CorruptDocument: a value is gone.
        """
        starts = {name: _start(name, value) for name, value in fields.items()}
        large = self._read(
            [fields[name][start:] for name, start in starts.items() if start >= 0]
        )
        return {
            name: value[:start] + large[value[start:]].data()
            if start > 0 and value[start:] in large
            else large.get(value, value)
            for (name, value), start in zip(fields.items(), starts.values(), strict=True)
        }

    def _read(self, values: Iterable[bytes | None]) -> dict[bytes, LargeValue]:
        """Return the large values that are referred to, by their references."""
        references = {value for value in values if value is not None and value.startswith(MARK)}
        if not references:
            return {}
        with (
            self._lock
        ):  # also while it reads: else all readers of a value that begin together read it
            large = {name: self._values[name] for name in references if name in self._values}
            large |= self._read_stored([name for name in references if name not in large])
            for reference, value in large.items():
                self._remember(reference, value)
        return large

    def _remember(self, reference: bytes, value: LargeValue) -> None:
        """Remember a value, and forget those that were used least lately where there are too many bytes."""
        self._values.pop(reference, None)
        self._values[reference] = value
        size = sum(large.size for large in self._values.values())
        while size > REMEMBERED:
            size -= self._values.pop(next(iter(self._values))).size

    def _read_stored(self, references: Sequence[bytes]) -> dict[bytes, LargeValue]:
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
        return {
            name: LargeValue(referred(name)[1], stored=data) for name, data in values.items()
        }


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
    try:
        return zlib.decompress(data.partition(b" ")[2])
    except zlib.error as error:
        raise CorruptDocument(f"a stored value can't be read: {error}") from error


def _start(name: bytes, value: bytes) -> int:
    """Return where in a field a reference would begin; -1 in a field that has none.

    In an entry it comes after the place in the order.
    """
    if name.startswith(b"x:"):
        return value.find(b" ") + 1
    return 0 if name in {b"task", b"state"} or name.startswith((b"o:", b"h:")) else -1
