"""The streams by which anyone may answer or start, read through one consumer group.

An entry stays pending until it was applied, so a reader that dies loses nothing: another one takes
its entries over. What can't be used goes to the dead letters with the reason. Every method raises
StoreError when Redis can't be reached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from runner.errors import StoreError
from runner.store import encoding
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import NAMESPACE, PARTITION, Keys
from runner.store.redis.scripts import Scripts

# A consumer group on streams: several readers share the entries, and take over from one that is gone.
#
# The group and its streams are made at the first read, and again when they are deleted while a reader waits.
# Every method raises StoreError when Redis can't be reached.


Found = list[tuple[str, bytes, Mapping[bytes, bytes] | None]]
"""Stream, id and fields of entries; no fields where an entry was deleted while a reader had it."""

LARGE = 4_000_000
"""Bytes at once beyond which entries are taken one by one: whatever is sent must fit into memory."""

TURN = 0.05
"""Seconds of one blocking read where streams lie on several servers."""


class Group:
    """One reader's side of a group; give each reader a name that no other has."""

    def __init__(self, connection: RedisConnection, name: str, reader: str, streams: Sequence[str]) -> None:
        """Nothing is connected yet."""
        self._redis, self._name, self._reader, self._streams = connection, name, reader, streams
        self._places: dict[str, Any] = {}
        self._joined = False
        self._large = False

    def read(self, wait: float, limit: int) -> Found:
        """Take new entries, at most `limit` of a stream, one if the last were large; wait so many seconds."""
        apart = self._redis.apart(self._streams)
        taken: Found = []
        for streams in apart:
            # Servers that have to be asked in turn are not waited for long: the next one may have some.
            block = max(1, round(min(wait, TURN if len(apart) > 1 else wait) * 1000))
            newest = dict.fromkeys(streams, ">")
            with self._joining():
                client = self._redis.client_of(streams[0])
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
                client = self._redis.client_of(stream)
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
        with self._redis.translated():
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
                client = self._redis.client_of(stream)
                client.xgroup_create(stream, self._name, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        self._joined = True


log = logging.getLogger(__name__)

GROUP = "runner"

EARLY = "stream"
"""The door to which the store hands early answers back that came on the stream."""

HAND = 10
"""Entries that a reader takes at once: their size is not known before they are read."""

KEPT_DEAD = 100_000
"""Dead letters that are kept at most."""

DEAD_BYTES = 100_000_000
"""Bytes of dead letters, as the server estimates them, at which the older half is deleted."""

DEAD_STAY = 30 * 86_400
"""Seconds that a dead letter is kept."""

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
    def early(self) -> list[Any]:
        """The messages of early answers that the store hands back, in the order in which they came."""
        return [encoding.load(message) for message in self.fields.values()]

    @property
    def key(self) -> str:
        """A name that no other message has, the same at every delivery."""
        return f"{self.stream}/{self.id}"


class Intake:
    """One reader of the streams; give each reader a name that no other has."""

    def __init__(
        self, url: str, reader: str, namespace: str = NAMESPACE, streams: Sequence[str] = ()
    ) -> None:
        """Open a database by its redis-py URL; nothing is connected yet.

        Without `streams` those of answers and starts are read, and that of early answers which came on them.
        """
        self._redis, self.keys = RedisConnection(url), Keys(namespace)
        self.early = self.keys.handed_early(EARLY)
        self._reader = reader
        self._streams = tuple(streams) or (self.keys.responses, self.keys.starts, self.early)
        self._group = Group(self._redis, GROUP, reader, self._streams)
        self._forget_at = 0.0

    def read(self, wait: float, limit: int = HAND) -> list[Entry]:
        """Take new entries; wait up to so many seconds for the first one."""
        return _entries(self._group.read(wait, limit))

    def take_over(self, idle: float, limit: int = HAND) -> list[Entry]:
        """Take entries that their readers have left alone for so many seconds: gone, or not applied yet."""
        return _entries(self._group.take_over(idle, limit))

    def done(self, entry: Entry) -> None:
        with self._redis.translated():
            client = self._redis.client_of(entry.stream)
            with client.pipeline(transaction=False) as pipe:
                pipe.xack(entry.stream, GROUP, entry.id)
                pipe.xdel(entry.stream, entry.id)
                pipe.execute()

    def write_dead_letter(self, entry: Entry, reason: str) -> None:
        """Move an entry to the dead letters, its fields as they came."""
        letter: dict[Any, Any] = {"stream": entry.stream, "id": entry.id, "reason": reason}
        kept = {BODY if name == BODY else b"field:" + name: value for name, value in entry.fields.items()}
        _write_dead_letter(self._redis, self.keys.dead_messages, {**letter, **kept})
        self.done(entry)

    def forget(self, idle: float, every: float = 0) -> list[str]:
        """Remove readers that gave no sign of life for so many seconds and hold nothing.

        With `every`, it is done once in so many seconds by all readers together, the first one does it:
        it lists them all, which is not for every reader to do at every turn.
        """
        if every:
            if time.monotonic() < self._forget_at:
                return []
            self._forget_at = time.monotonic() + every
            if self._redis.call("SET", self.keys.forgotten, 1, "NX", "PX", round(every * 1000)) is None:
                return []
        return self._forget(idle, "")

    def leave(self) -> None:
        """Stop being a reader; what this one still holds is taken over by others."""
        self._forget(0, self._reader)
        self._redis.close()

    def _forget(self, idle: float, reader: str) -> list[str]:
        gone: list[str] = []
        for stream in self._streams:
            reply = Scripts(self._redis, stream).run("forget", GROUP, round(idle * 1000), reader)
            gone += [name.decode() for name in reply[1:]]
        return gone


class Outbox:
    """Writes messages: those of the doors on behalf of others, and receipts."""

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._redis, self.keys = RedisConnection(url), Keys(namespace)

    def send(self, stream: str, body: bytes) -> str:
        said: bytes = self._redis.call("XADD", stream, "*", BODY, body)
        return said.decode()

    def write_dead_letter(self, door: str, body: bytes, reason: str) -> None:
        """Put a message that never was on a stream into the dead letters."""
        _write_dead_letter(
            self._redis, self.keys.dead_messages, {"stream": door, "id": "", "reason": reason, BODY: body}
        )

    def reply(self, stream: str, body: bytes) -> None:
        """Put a receipt on the stream that its receiver reads; it goes a day after the last one.

        One that can't be put there, where the name is that of no stream or of another namespace's, is put
        among the dead letters: it must not keep the messages behind it waiting.
        """
        if not stream.startswith(self.keys.replies):
            self.write_dead_letter(
                stream, body, f"the receipt was not sent: its stream must begin with {self.keys.replies}"
            )
            return
        try:
            self._redis.call("XADD", stream, "MAXLEN", "~", KEPT_REPLIES, "*", BODY, body)
            self._redis.call("EXPIRE", stream, REPLIES_STAY)
        except StoreError as error:
            if error.passing:
                raise
            log.warning("receipt.dead: %s The receipt is put among the dead letters.", error)
            self.write_dead_letter(stream, body, f"the receipt could not be sent: {error}")


def _write_dead_letter(connection: RedisConnection, stream: str, letter: dict[Any, Any]) -> None:
    """Add a dead letter, and delete those that are old, or the older half of too many bytes."""
    with connection.translated():
        client = connection.client_of(stream)
        added = client.xadd(stream, letter, maxlen=KEPT_DEAD, approximate=True)
        oldest = int(added.partition(b"-")[0]) - DEAD_STAY * 1000
        client.xtrim(stream, minid=max(0, oldest), approximate=True)
        try:
            size = client.memory_usage(stream) or 0
        except redis.ResponseError:
            size = 0  # a server that does not tell, or not this user: the number of letters is the limit
        if size > DEAD_BYTES:
            kept = client.xlen(stream) // 2
            client.xtrim(stream, maxlen=kept, approximate=False)
            log.warning(
                "dead.full: dead letters took more than %d bytes; the newest %d are kept.", DEAD_BYTES, kept
            )


def _entries(found: Found) -> list[Entry]:
    # An entry that was deleted while it was pending has no fields; there is nothing left to apply.
    return [Entry(stream, entry.decode(), fields) for stream, entry, fields in found if fields is not None]


# Reading a partition's notices through a consumer group, so that several readers share them.
#
# A notice stays pending until `done`; what a reader that is gone had in hand is taken over. Every
# method raises StoreError when Redis can't be reached.


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

    def __init__(
        self, url: str, group: str, reader: str, namespace: str = NAMESPACE, partition: str = PARTITION
    ) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._stream = Keys(namespace, partition).notices
        self._redis = RedisConnection(url, self._stream)
        self._name = group
        self._group = Group(self._redis, group, reader, [self._stream])

    def read(self, wait: float, limit: int = 100) -> list[Notice]:
        """Take new notices; wait up to so many seconds for the first one."""
        return _notices(self._group.read(wait, limit))

    def take_over(self, idle: float, limit: int = 100) -> list[Notice]:
        """Take notices that their readers have left alone for so many seconds."""
        return _notices(self._group.take_over(idle, limit))

    def done(self, notices: Sequence[Notice]) -> None:
        """Say that these were handled; the notices stay in the stream for other groups."""
        if notices:
            with self._redis.translated():
                self._redis.client.xack(self._stream, self._name, *(notice.entry for notice in notices))

    def leave(self) -> None:
        self._redis.close()


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
        encoding.load(said["question"]) if said["question"] else None,
        int(said["reminded"]),
    )


# Being woken: programs that can't ring the task queue ask a worker that sweeps to do it.


LONGEST = 4.0
"""Seconds of one wait; a command that takes longer counts as failed."""


class SweepRequests:
    """One sleeper on a partition's list of wishes; any number may sleep, one wish wakes one."""

    def __init__(self, url: str, namespace: str = NAMESPACE, partition: str = PARTITION) -> None:
        """Open a database by its redis-py URL; nothing is connected yet."""
        self._redis, self._key = RedisConnection(url), Keys(namespace, partition).wake

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds (at most 4); True when a sweep was asked for.

        Raises:
            StoreError: the store could not be reached.
        """
        return self._redis.call("BRPOP", self._key, f"{min(seconds, LONGEST):.3f}") is not None
