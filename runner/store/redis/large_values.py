"""Large values: each is stored once for a run and all runs inside it, under a digest of its bytes.

A reference takes its place: `@root digest`, which can't be mistaken for JSON; scripts pass it on unread. So a
value that goes through many nodes, or up from a nested graph, is written once, and reading it costs one more
request. The stored form is the length of the value, a blank, and the value compressed by zlib.
A process remembers the values that it read or wrote last, and doesn't read them again. It decompresses a
value only if a node reads it, and doesn't encode a value that a node passes on.
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
"""The level of zlib, low because the worker waits for it."""


REMEMBERED = 16_000_000
"""The most bytes of values, counted uncompressed, that a process remembers."""


class LargeValue(LazyValue):
    """A large value: compressed until its first read; all readers share a text. Thread-safe."""

    def __init__(self, name: str, *, stored: bytes = b"", data: bytes | None = None) -> None:
        """Take the value's JSON (`data`), or its compressed form (`stored`); `name` is its digest."""
        self.name, self.text = name, ""
        self.size = size_of(stored) if data is None else len(data)
        self._stored = stored
        self._data = data
        self._lock = threading.Lock()
        self._length, self._form = -1, ""  # of the read value, as Python objects

    def data(self) -> bytes:
        """Return the value's JSON."""
        with self._lock:
            if self._data is None:
                self._data = _restored(self._stored)
                self._stored = b""
            return self._data

    def read(self) -> JSON:
        """Decode the value; a text is decoded only once."""
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
        # Unlike ==, marshal tells 1 from 1.0 and True, and refuses types that aren't built in. Its later
        # versions also write whether anything else refers to an object.
        try:
            form = digest(marshal.dumps(value, 2))
        except ValueError:
            return False
        self._form = self._form or digest(marshal.dumps(load(self.data()), 2))
        return form == self._form and self.is_plain

    @property
    def is_plain(self) -> bool:
        return self.data().find(b'"__') < 0  # the prefix of all reserved keys


class LargeValues:
    """The large values of one partition. Thread-safe."""

    def __init__(
        self, connection: RedisConnection, keys: Keys, call: Callable[..., list[Any]]
    ) -> None:
        """Take a connection, and `call`, which runs a script by its name."""
        self._redis = connection
        self._keys = keys
        self._call = call
        self._values: dict[bytes, LargeValue] = {}
        self._lock = threading.Lock()

    def put(self, run_id: str, value: bytes | LargeValue) -> bytes:
        """Store a run's large value, given as JSON or a stored value, and return a reference to it."""
        large = LargeValue("", data=value) if isinstance(value, bytes) else value
        is_known = bool(large.name)
        large.name = large.name or digest(large.data())
        # For a run inside another, the root isn't known here, nor whether it has the value.
        is_known |= b"%b%b %b" % (MARK, run_id.encode(), large.name.encode()) in self._values
        data = b"" if is_known else _compressed(large.data())
        status, *root = self._call("shelve", run_id, large.name, data)
        if status == b"absent":  # the store has lost it
            status, *root = self._call("shelve", run_id, large.name, _compressed(large.data()))
        if status != b"shelved":
            # The run is gone: the request that writes the value will be refused as well.
            return large.data()
        reference = b"%b%b %b" % (MARK, root[0], large.name.encode())
        with self._lock:
            self._remember(reference, large)
        return reference

    def load(self, values: Sequence[bytes | None]) -> list[JSON | LargeValue]:
        """Decode values; large ones stay lazy.

        Raises:
            CorruptDocument: a value is gone.
        """
        large = self._read(values)
        return [
            large.get(value)
            or (load(value) if len(value) <= LARGE else LargeValue("", data=value))
            for text in values
            for value in [text or b"null"]
        ]

    def get(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values with each reference replaced by its value.

        Raises:
            CorruptDocument: a value is gone.
        """
        large = self._read(values)
        return [large[value].data() if value in large else value for value in values]

    def resolve(self, fields: Mapping[bytes, bytes]) -> dict[bytes, Any]:
        """Return the fields of a run's hash with references replaced by lazy values, or bytes in entries.

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
        """Return the large values that the references among `values` name, by reference."""
        references = {value for value in values if value is not None and value.startswith(MARK)}
        if not references:
            return {}
        with (
            self._lock
        ):  # also while it reads, so that readers who begin together read a value once
            large = {name: self._values[name] for name in references if name in self._values}
            large |= self._read_stored([name for name in references if name not in large])
            for reference, value in large.items():
                self._remember(reference, value)
        return large

    def _remember(self, reference: bytes, value: LargeValue) -> None:
        """Remember a value; forget the least recently used ones if there are too many bytes."""
        self._values.pop(reference, None)
        self._values[reference] = value
        size = sum(large.size for large in self._values.values())
        while size > REMEMBERED:
            size -= self._values.pop(next(iter(self._values))).size

    def _read_stored(self, references: Sequence[bytes]) -> dict[bytes, LargeValue]:
        if not references:
            return {}
        with self._redis.translated(), self._redis.pipeline() as pipe:
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
    """Read a reference: the root that has the large value, and the value's name there."""
    root, _, name = reference[1:].decode().partition(" ")
    return root, name


def size_of(data: bytes) -> int:
    """Return the bytes that a stored large value counts for: its length before compression."""
    return int(data.partition(b" ")[0])


def _compressed(data: bytes) -> bytes:
    return b"%d %b" % (len(data), zlib.compress(data, LEVEL))


def _restored(data: bytes) -> bytes:
    try:
        return zlib.decompress(data.partition(b" ")[2])
    except zlib.error as error:
        raise CorruptDocument(f"a stored value can't be read: {error}") from error


def _start(name: bytes, value: bytes) -> int:
    """Return the index in a field at which a reference would begin; -1 if the field can't hold one.

    In an entry it comes after the place in the order.
    """
    if name.startswith(b"x:"):
        return value.find(b" ") + 1
    return 0 if name in {b"task", b"state"} or name.startswith((b"o:", b"h:")) else -1
