"""The streams by which anyone may answer or start, read through one consumer group.

An entry stays pending until it was applied, so a reader that dies loses nothing: another one takes
its entries over. What can't be used goes to the dead letters with the reason. Every method raises
StoreError when Redis can't be reached.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.errors import StoreError
from runner.store.group import Found, Group
from runner.store.keys import DEAD_MESSAGES, RESPONSES, STARTS
from runner.store.link import Link
from runner.store.scripts import Scripts

log = logging.getLogger(__name__)

GROUP = "runner"

HAND = 10
"""Entries that a reader takes at once: nobody knows how large they are before they are there."""

MAX_EARLY = 1_000
"""Entries that wait for their questions at most, on each stream: each is looked at again every second."""

KEPT_DEAD = 100_000
KEPT_REPLIES = 10_000
REPLIES_STAY = 86_400  # seconds after the last receipt

BODY = b"body"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message as it stands in its stream."""

    stream: str
    id: str
    fields: Mapping[bytes, bytes]

    @property
    def body(self) -> bytes | None:
        """The message itself; None where the field `body` is missing."""
        return self.fields.get(BODY)

    @property
    def at(self) -> int:
        """When it was sent, in ms of the store's clock."""
        return int(self.id.partition("-")[0])

    @property
    def key(self) -> str:
        """A name that no other message has, the same at every delivery."""
        return f"{self.stream}/{self.id}"


class Intake:
    """One reader of the streams; give each reader a name that no other has."""

    def __init__(self, url: str, reader: str, streams: Sequence[str] = (RESPONSES, STARTS)) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._link = Link(url)
        self._reader, self._streams = reader, streams
        self._group = Group(self._link, GROUP, reader, streams)

    def read(self, wait: float, limit: int = HAND) -> list[Entry]:
        """Take new entries; wait up to so many seconds for the first one."""
        return _entries(self._group.read(wait, limit))

    def take_over(self, idle: float, limit: int = HAND) -> list[Entry]:
        """Take entries that their readers have left alone for so many seconds: gone, or not applied yet."""
        return _entries(self._group.take_over(idle, limit))

    def is_full(self, stream: str) -> bool:
        """Tell whether so many entries wait for their questions that no more are kept."""
        found = self._link.call("XPENDING", stream, GROUP)
        in_hand = HAND * len(found[3] or ())
        return int(found[0]) >= MAX_EARLY + in_hand

    def age(self, entry: Entry) -> float:
        """Say how many seconds ago an entry was sent, by the store's clock; of one ahead of it, how far."""
        seconds, micros = self._link.call("TIME")
        return abs(int(seconds) + int(micros) / 1e6 - entry.at / 1000)

    def done(self, entry: Entry) -> None:
        """Remove an entry that was applied."""
        with self._link.translated():
            client = self._link.client_of(entry.stream)
            with client.pipeline(transaction=False) as pipe:
                pipe.xack(entry.stream, GROUP, entry.id)
                pipe.xdel(entry.stream, entry.id)
                pipe.execute()

    def bury(self, entry: Entry, reason: str) -> None:
        """Move an entry to the dead letters, its fields as they came."""
        letter: dict[Any, Any] = {"stream": entry.stream, "id": entry.id, "reason": reason}
        kept = {BODY if name == BODY else b"field:" + name: value for name, value in entry.fields.items()}
        with self._link.translated():
            client = self._link.client_of(DEAD_MESSAGES)
            client.xadd(DEAD_MESSAGES, {**letter, **kept}, maxlen=KEPT_DEAD, approximate=True)
        self.done(entry)

    def forget(self, idle: float) -> list[str]:
        """Remove readers that gave no sign of life for so many seconds and hold nothing."""
        return self._forget(idle, "")

    def leave(self) -> None:
        """Stop being a reader; what this one still holds is taken over by others."""
        self._forget(1e9, self._reader)
        self._link.close()

    def _forget(self, idle: float, own: str) -> list[str]:
        gone: list[str] = []
        for stream in self._streams:
            said = Scripts(self._link, stream).run("forget", GROUP, round(idle * 1000), own)
            gone += [name.decode() for name in said[1:]]
        return gone


class Outbox:
    """Writes messages: those of the doors on behalf of others, and receipts."""

    def __init__(self, url: str) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._link = Link(url)

    def send(self, stream: str, body: bytes) -> str:
        """Put a message on a stream and return its id there."""
        said: bytes = self._link.call("XADD", stream, "*", BODY, body)
        return said.decode()

    def bury(self, door: str, body: bytes, reason: str) -> None:
        """Put a message that never was on a stream into the dead letters."""
        letter: list[str | bytes | int] = ["stream", door, "id", "", "reason", reason, BODY, body]
        self._link.call("XADD", DEAD_MESSAGES, "MAXLEN", "~", KEPT_DEAD, "*", *letter)

    def reply(self, stream: str, body: bytes) -> None:
        """Put a receipt on the stream that its receiver reads; it goes a day after the last one.

        One that can't be put there, where the name is that of no stream, is put among the dead letters:
        it must not keep the messages behind it waiting.
        """
        try:
            self._link.call("XADD", stream, "MAXLEN", "~", KEPT_REPLIES, "*", BODY, body)
            self._link.call("EXPIRE", stream, REPLIES_STAY)
        except StoreError as error:
            if error.passing:
                raise
            log.warning("receipt.dead: %s The receipt is put among the dead letters.", error)
            self.bury(stream, body, f"the receipt could not be sent: {error}")


def _entries(found: Found) -> list[Entry]:
    # An entry that was deleted while it was pending has no fields; there is nothing left to apply.
    return [Entry(stream, entry.decode(), fields) for stream, entry, fields in found if fields is not None]
