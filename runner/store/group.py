"""A consumer group on streams: several readers share the entries, and take over from one that is gone.

The group and its streams are made at the first read, and again when they go while somebody reads.
Every method raises StoreError when Redis can't be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from runner.store.link import Link

Found = list[tuple[str, bytes, Mapping[bytes, bytes] | None]]
"""Stream, id and fields of entries; no fields where an entry was deleted while a reader had it."""

LARGE = 4_000_000
"""Bytes at once beyond which entries are taken one by one: whatever is sent must fit into memory."""

TURN = 0.05
"""Seconds of one blocking read where streams lie on several servers."""


class Group:
    """One reader's side of a group; give each reader a name that no other has."""

    def __init__(self, link: Link, name: str, reader: str, streams: Sequence[str]) -> None:
        """Nothing is connected yet."""
        self._link, self._name, self._reader, self._streams = link, name, reader, streams
        self._places: dict[str, Any] = {}
        self._joined = False
        self._large = False

    def read(self, wait: float, limit: int) -> Found:
        """Take new entries, at most `limit` of a stream, one if the last were large; wait so many seconds."""
        apart = self._link.apart(self._streams)
        taken: Found = []
        for streams in apart:
            # Servers that have to be asked in turn are not waited for long: the next one may have some.
            block = max(1, round(min(wait, TURN if len(apart) > 1 else wait) * 1000))
            newest = dict.fromkeys(streams, ">")
            with self._joining():
                client = self._link.client_of(streams[0])
                found = client.xreadgroup(
                    self._name, self._reader, newest, count=self._hand(limit), block=block
                )
            taken += [(stream.decode(), *entry) for stream, entries in found for entry in entries]
        return self._weighed(taken)

    def take_over(self, idle: float, limit: int) -> Found:
        """Take entries that their readers have left alone for so many seconds, on from the last ones."""
        taken: Found = []
        for stream in self._streams:
            with self._joining():
                start = self._places.get(stream, "0-0")
                client = self._link.client_of(stream)
                self._places[stream], found, *_ = client.xautoclaim(
                    stream, self._name, self._reader, round(idle * 1000), start, self._hand(limit)
                )
                taken += self._weighed([(stream, *entry) for entry in found])
        return taken

    def _hand(self, limit: int) -> int:
        return 1 if self._large else limit

    def _weighed(self, found: Found) -> Found:
        self._large = sum(len(value) for *_, fields in found if fields for value in fields.values()) > LARGE
        return found

    @contextmanager
    def _joining(self) -> Iterator[None]:
        with self._link.translated():
            if not self._joined:
                self._join()
            try:
                yield
            except redis.ResponseError:
                self._joined = False
                raise

    def _join(self) -> None:
        for stream in self._streams:
            try:
                client = self._link.client_of(stream)
                client.xgroup_create(stream, self._name, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        self._joined = True
