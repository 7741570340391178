"""Reading a partition's notices through a consumer group, so that several readers share them.

A notice stays pending until `done`; what a reader that is gone had in hand is taken over. Every
method raises StoreError when Redis can't be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from runner.store import layout
from runner.store.keys import PARTITION, Keys
from runner.store.link import Link


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice; `entry` is its place in the stream, `at` milliseconds, `question` as it was asked."""

    entry: str
    id: str
    kind: str
    run_id: str
    node: str
    visit: int
    detail: str
    at: int
    question: Any = None

    def message(self) -> dict[str, Any]:
        """Return it as the JSON message that other systems get."""
        said = {name: getattr(self, name) for name in ("id", "kind", "run_id", "node", "visit", "detail")}
        return {"v": 1, **said, "at": self.at, "question": self.question}


class NoticeReader:
    """One reader of a group; give each reader a name that no other has."""

    def __init__(self, url: str, group: str, reader: str, partition: str = PARTITION) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._link, self._stream = Link(url), Keys(partition).notices
        self._group, self._reader = group, reader
        self._place: Any = "0-0"
        self._joined = False

    def read(self, wait: float, limit: int = 100) -> list[Notice]:
        """Take new notices; wait up to so many seconds for the first one."""
        with self._joining():
            found = self._link.client.xreadgroup(
                self._group, self._reader, {self._stream: ">"}, count=limit, block=max(1, round(wait * 1000))
            )
        return [notice for _, entries in found for notice in _notices(entries)]

    def take_over(self, idle: float, limit: int = 100) -> list[Notice]:
        """Take notices that their readers have left alone for so many seconds."""
        with self._joining():
            self._place, entries, *_ = self._link.client.xautoclaim(
                self._stream, self._group, self._reader, round(idle * 1000), self._place, limit
            )
        return _notices(entries)

    def done(self, notices: Sequence[Notice]) -> None:
        """Say that these were handled; the notices stay in the stream for other groups."""
        if notices:
            with self._link.translated():
                self._link.client.xack(self._stream, self._group, *(notice.entry for notice in notices))

    def leave(self) -> None:
        """Stop being a reader; what this one still holds is taken over by others."""
        self._link.close()

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
        try:
            self._link.client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._joined = True


def _notices(entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> list[Notice]:
    # An entry that the stream's limit has removed meanwhile comes without fields.
    return [_notice(entry.decode(), found) for entry, found in entries if found]


def _notice(entry: str, found: Mapping[bytes, bytes]) -> Notice:
    said = {name.decode(): value for name, value in found.items()}
    return Notice(
        entry,
        said["id"].decode(),
        said["kind"].decode(),
        said["run_id"].decode(),
        said["node"].decode(),
        int(said["visit"]),
        said["detail"].decode(),
        int(said["at"]),
        layout.load(said["question"]) if said["question"] else None,
    )
