"""Reading a partition's notices through a consumer group, so that several readers share them.

A notice stays pending until `done`; what a reader that is gone had in hand is taken over. Every
method raises StoreError when Redis can't be reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.store import layout
from runner.store.group import Found, Group
from runner.store.keys import PARTITION, Keys
from runner.store.link import Link


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice; `entry` is its place in the stream, `at` milliseconds, `question` as it was asked.

    `reminded` counts the reminders of a question, this one included; 0 where it is none.
    """

    entry: str
    id: str
    kind: str
    run_id: str
    node: str
    visit: int
    detail: str
    at: int
    question: Any = None
    reminded: int = 0

    def message(self) -> dict[str, Any]:
        """Return it as the JSON message that other systems get."""
        said = {name: getattr(self, name) for name in ("id", "kind", "run_id", "node", "visit", "detail")}
        count = {"reminded": self.reminded} if self.reminded else {}
        return {"v": 1, **said, "at": self.at, "question": self.question, **count}


class NoticeReader:
    """One reader of a group; give each reader a name that no other has."""

    def __init__(self, url: str, group: str, reader: str, partition: str = PARTITION) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._stream = Keys(partition).notices
        self._link = Link(url, self._stream)
        self._name = group
        self._group = Group(self._link, group, reader, [self._stream])

    def read(self, wait: float, limit: int = 100) -> list[Notice]:
        """Take new notices; wait up to so many seconds for the first one."""
        return _notices(self._group.read(wait, limit))

    def take_over(self, idle: float, limit: int = 100) -> list[Notice]:
        """Take notices that their readers have left alone for so many seconds."""
        return _notices(self._group.take_over(idle, limit))

    def done(self, notices: Sequence[Notice]) -> None:
        """Say that these were handled; the notices stay in the stream for other groups."""
        if notices:
            with self._link.translated():
                self._link.client.xack(self._stream, self._name, *(notice.entry for notice in notices))

    def leave(self) -> None:
        """Stop being a reader; what this one still holds is taken over by others."""
        self._link.close()


def _notices(found: Found) -> list[Notice]:
    # An entry that the stream's limit has removed meanwhile comes without fields.
    return [_notice(entry.decode(), fields) for _, entry, fields in found if fields]


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
        int(said.get("reminded", 0)),
    )
