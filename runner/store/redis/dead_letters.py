"""Dead letters: messages that could not be used, and nodes that killed every worker they met.

Each is kept with its reason until it is deleted or sent again. A letter's id is `message:`
or `node:` and its place in its stream. Every method raises StoreError when Redis can't be reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.errors import NotFoundError, UsageError
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import NAMESPACE, Keys

KINDS = ("message", "node")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `at` is in ms of the store's clock; a node's has a run, a message's a body."""

    id: str
    kind: str
    at: int
    reason: str
    source: str = ""
    body: bytes = b""
    run_id: str = ""
    node: str = ""
    visit: int = 0


class DeadLetters:
    """The dead letters of one namespace in a database."""

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._redis, keys = RedisConnection(url), Keys(namespace)
        self._streams = {"message": keys.dead_messages, "node": keys.dead}
        # Those behind the Celery tasks that take messages.
        self._doors = {"runner.respond": keys.responses, "runner.start": keys.starts}

    def count(self) -> int:
        """Return how many there are."""
        return sum(int(self._redis.call("XLEN", stream)) for stream in self._streams.values())

    def all(self, limit: int = 100) -> list[DeadLetter]:
        letters = [
            _letter(kind, place.decode(), fields)
            for kind, stream in self._streams.items()
            for place, fields in self._redis.call("XREVRANGE", stream, "+", "-", "COUNT", limit)
        ]
        return sorted(letters, key=lambda letter: letter.at, reverse=True)[:limit]

    def get(self, letter_id: str) -> DeadLetter:
        """Return one letter.

        Raises:
            UsageError: that is no id of a letter. NotFoundError: there is none of that id.
        """
        kind, place = _parts(letter_id)
        entries = self._redis.call("XRANGE", self._streams[kind], place, place)
        if not entries:
            raise NotFoundError(f"there is no dead letter {letter_id!r}; it was dropped or sent again.")
        return _letter(kind, place, entries[0][1])

    def replay(self, letter: DeadLetter) -> str:
        """Put a message back on the stream that it came from, and return its id there.

        Raises:
            UsageError: it is a node's letter, or the message never was on a stream and can't be.
        """
        stream = self._doors.get(letter.source, letter.source)
        if letter.kind != "message" or stream not in self._doors.values() or not letter.body:
            streams = " or ".join(self._doors.values())
            raise UsageError(
                f"letter {letter.id} can't be sent again: it has no message for {streams}. "
                "Read it with `runner dead show`, send what was meant, and drop it."
            )
        sent: bytes = self._redis.call("XADD", stream, "*", b"body", letter.body)
        self.drop(letter.id)
        return sent.decode()

    def drop(self, letter_id: str) -> bool:
        """Delete a letter; False when there was none."""
        kind, place = _parts(letter_id)
        return bool(self._redis.call("XDEL", self._streams[kind], place))


def _parts(letter_id: str) -> tuple[str, str]:
    kind, _, place = letter_id.partition(":")
    if kind not in KINDS or not place.replace("-", "", 1).isdecimal():
        raise UsageError(f"{letter_id!r} is no id of a dead letter; they look like message:1700000000000-0.")
    return kind, place


def _letter(kind: str, place: str, fields: Sequence[bytes]) -> DeadLetter:
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    letter = DeadLetter(f"{kind}:{place}", kind, int(place.partition("-")[0]), _text(values, b"reason"))
    if kind == "message":
        return replace(letter, source=_text(values, b"stream"), body=values.get(b"body", b""))
    visit = int(values.get(b"visit", b"0"))
    return replace(letter, run_id=_text(values, b"run_id"), node=_text(values, b"node"), visit=visit)


def _text(values: Mapping[bytes, Any], name: bytes) -> str:
    value: bytes = values.get(name, b"")
    return value.decode(errors="replace")
