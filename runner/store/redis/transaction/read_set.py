"""The read set of a transaction: values that were read, or that are only guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.store.redis.connection import Argument

Command = tuple[Argument, ...]
"""A command: its name, its key without the prefix, its arguments."""

HASH_CHUNK = 1_000
"""Fields that one command of a script reads: Lua's stack takes a few thousand arguments."""

ABSENT = {
    "HGETALL": (),
    "HKEYS": (),
    "LRANGE": (),
    "ZRANGE": (),
    "EXISTS": 0,
    "HSTRLEN": 0,
}
"""The reply of a command as long as it was not read."""


class ReadSet:
    """Fields and replies, those of each look of one moment.

    `Transactions.run` says why a commit may follow several looks. A speculative read set was not
    read: its `now` is 0, and times are counted from the moment of the commit. One that `has_entries` knows
    how many entries the audit has of its run.
    """

    def __init__(self) -> None:
        self.now = 0
        self.looks = 0
        self.is_speculative = self.has_entries = False
        self.references: dict[tuple[str, bytes], bytes] = {}
        """References to large values that were stored for this request."""
        self.limit_positions: dict[tuple[str, str], bytes] = {}
        """Answers of commits about limits: (limit, member) -> taken, ahead, whether one is the member's."""
        self.start_times: dict[str, int] = {}
        """The times that were reserved under rates."""
        self.rates: dict[str, int] = {}
        """Rates of which a time must be reserved first: limit -> ms between two."""
        self._fields: dict[str, dict[str, bytes | None]] = {}
        self._replies: dict[Command, Any] = {}
        self._missing_fields: dict[str, dict[str, None]] = {}
        self._missing_replies: dict[Command, None] = {}

    @property
    def is_incomplete(self) -> bool:
        """Return whether something was asked for that was not read yet."""
        return bool(self._missing_fields or self._missing_replies or self.rates)

    def speculate(
        self, fields: Mapping[str, Mapping[str, bytes | None]], replies: Mapping[Command, Any]
    ) -> None:
        """Take fields of hashes, by key, and replies as if they were read; the commit must validate them."""
        for key, values in fields.items():
            self._fields.setdefault(key, {}).update(values)
        self._replies.update(replies)
        self.is_speculative = True

    def request(self, wants: Iterable[tuple[str, str]], asks: Iterable[Command]) -> None:
        """Note fields (key, name) and commands that will be needed."""
        for key, name in wants:
            if name not in self._fields.get(key, {}):
                self._missing_fields.setdefault(key, {})[name] = None
        for command in asks:
            if command not in self._replies:
                self._missing_replies[command] = None

    def want(self, key: str, names: Iterable[str]) -> None:
        """Note fields of a hash that will be needed."""
        known_fields = self._fields.get(key, {})
        missing = [name for name in names if name not in known_fields]
        if missing:
            self._missing_fields.setdefault(key, {}).update(dict.fromkeys(missing))

    def ask(self, *command: Argument) -> None:
        """Note a command whose reply will be needed; it only reads."""
        if command not in self._replies:
            self._missing_replies[command] = None

    def fields(self, key: str, names: Iterable[str]) -> dict[bytes, bytes]:
        """Return those of the fields that there are."""
        self.want(key, names)
        known_fields = self._fields.get(key, {})
        return {
            name.encode(): value for name in names if (value := known_fields.get(name)) is not None
        }

    def field(self, key: str, name: str) -> bytes | None:
        known_fields = self._fields.get(key)
        if known_fields is not None and name in known_fields:
            return known_fields[name]
        self._missing_fields.setdefault(key, {})[name] = None
        return None

    def reply(self, *command: Argument) -> Any:
        """Return the reply of a command that only reads."""
        if command in self._replies:
            return self._replies[command]
        self._missing_replies[command] = None
        return ABSENT.get(str(command[0]))

    def reserve(self, times: Iterable[int]) -> None:
        """Remember the times that were reserved under the rates that asked for one."""
        self.start_times |= dict(zip(self.rates, times, strict=True))
        self.rates = {}

    def missing(self) -> tuple[list[Command], list[tuple[str, list[str]]]]:
        """Return the commands that read what is missing, and which hashes the first of them read."""
        hashes = [
            (key, names[start : start + HASH_CHUNK])
            for key, names in ((key, list(names)) for key, names in self._missing_fields.items())
            for start in range(0, len(names), HASH_CHUNK)
        ]
        commands: list[Command] = [("HMGET", key, *names) for key, names in hashes]
        return [*commands, *self._missing_replies], hashes

    def fill(self, reply: Sequence[Any], hashes: Sequence[tuple[str, list[str]]]) -> None:
        """Remember the time, and the replies of those commands."""
        self.now, self.looks = int(reply[0]), self.looks + 1
        for (key, names), values in zip(hashes, reply[1:], strict=False):
            self._fields.setdefault(key, {}).update(zip(names, values, strict=True))
        replies = reply[1 + len(hashes) :]
        self._replies.update(zip(self._missing_replies, replies, strict=True))
        self._missing_fields, self._missing_replies = {}, {}

    @property
    def contents(self) -> tuple[object, ...]:
        """All that was read, to compare it with what a later look reads."""
        return self._fields, self._replies, dict(self.limit_positions)

    def invalidate(self) -> None:
        """Have everything read again, at one moment."""
        self.is_speculative = False
        for key, names in self._fields.items():
            self._missing_fields[key] = dict.fromkeys(names)
        self._missing_replies = dict.fromkeys(self._replies)
        self._fields, self._replies, self.looks = {}, {}, 0
