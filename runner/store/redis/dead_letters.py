"""Dead letters: messages that could not be used, and nodes that were given up.

Each is kept with its reason until it is deleted or sent again. A letter's id is `message:` or `node:`, for
a node the number of its partition unless it is 0, and its place in its stream. Every method raises
StoreError when Redis can't be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from runner.errors import NotFoundError, UsageError
from runner.records.dead_letters import DeadLetter
from runner.store.addresses import NAMESPACE
from runner.store.redis import measurements
from runner.store.redis.connection import RedisConnection, mapping_of, partitions_at


class DeadLetters:
    """The dead letters of one namespace in the partitions of a store."""

    def __init__(self, urls: str, namespace: str = NAMESPACE, partitions: int = 1) -> None:
        """Take the servers' URLs, as in RUNNER_REDIS_URL; nothing is connected yet."""
        self._partitions = partitions_at(urls, namespace, partitions)
        self._first, keys = self._partitions[0]
        self._messages = keys.dead_messages
        # The streams of the Celery tasks that take messages.
        self._doors = {"runner.respond": keys.responses, "runner.start": keys.starts}

    def count(self) -> int:
        """Count the dead letters."""
        return sum(int(redis.call("XLEN", stream)) for _, redis, stream in self._streams())

    def dropped(self) -> int:
        """Count the letters that were deleted because they were too many, too old or too large."""
        (field,) = measurements.dropped(0)
        counts = (redis.call("HGET", keys.metrics, field) for redis, keys in self._partitions)
        return sum(int(float(count or 0)) for count in counts)

    def all(self, limit: int = 100) -> list[DeadLetter]:
        letters = [
            _letter(kind, place.decode(), fields)
            for kind, redis, stream in self._streams()
            for place, fields in redis.call("XREVRANGE", stream, "+", "-", "COUNT", limit)
        ]
        return sorted(letters, key=lambda letter: letter.at, reverse=True)[:limit]

    def get(self, letter_id: str) -> DeadLetter:
        """Return one letter.

        Raises:
            UsageError: the id can't be a letter's. NotFoundError: no letter has it.
        """
        kind, redis, stream, place = self._find(letter_id)
        entries = redis.call("XRANGE", stream, place, place)
        if not entries:
            raise NotFoundError(
                f"there is no dead letter {letter_id!r}; it was dropped or sent again."
            )
        return _letter(kind, place, entries[0][1])

    def replay(self, letter: DeadLetter) -> str:
        """Put a message back on the stream that it came from, and return its id there.

        Raises:
            UsageError: it is a node's letter, or its message does not belong on a stream.
        """
        stream = self._doors.get(letter.source, letter.source)
        if letter.kind != "message" or stream not in self._doors.values() or not letter.body:
            streams = " or ".join(self._doors.values())
            raise UsageError(
                f"letter {letter.id} can't be sent again: it has no message for {streams}. "
                "Read it with `runner dead list --json`, and send the right message instead."
            )
        sent: bytes = self._first.call("XADD", stream, "*", b"body", letter.body)
        self.drop(letter.id)
        return sent.decode()

    def drop(self, letter_id: str) -> bool:
        """Delete a letter; return False if it didn't exist."""
        _, redis, stream, place = self._find(letter_id)
        return bool(redis.call("XDEL", stream, place))

    def _streams(self) -> Iterator[tuple[str, RedisConnection, str]]:
        """Return the streams of letters, each with the prefix of its letters' ids."""
        yield "message", self._first, self._messages
        for number, (redis, keys) in enumerate(self._partitions):
            yield f"node:{number}" if number else "node", redis, keys.dead

    def _find(self, letter_id: str) -> tuple[str, RedisConnection, str, str]:
        """Return the prefix of a letter's id, its stream, and its place there."""
        start, _, place = letter_id.rpartition(":")
        for kind, redis, stream in self._streams():
            if kind == start and place.replace("-", "", 1).isdecimal():
                return kind, redis, stream, place
        raise UsageError(
            f"{letter_id!r} is not the id of a dead letter; ids look like message:1700000000000-0."
        )


def _letter(start: str, place: str, fields: Sequence[bytes]) -> DeadLetter:
    values = mapping_of(fields)
    is_message = start == "message"
    at = int(place.partition("-")[0])
    kind: Literal["message", "node"] = "message" if is_message else "node"
    letter = DeadLetter(f"{start}:{place}", kind, at, _text(values, b"reason"))
    if is_message:
        return replace(letter, source=_text(values, b"stream"), body=values.get(b"body", b""))
    visit = int(values.get(b"visit", b"0"))
    return replace(
        letter, run_id=_text(values, b"run_id"), node=_text(values, b"node"), visit=visit
    )


def _text(values: Mapping[bytes, Any], name: bytes) -> str:
    value: bytes = values.get(name, b"")
    return value.decode(errors="replace")
