"""The streams through which other programs answer and start runs, read by one consumer group.

An entry stays pending until it is applied, so a reader that dies loses nothing: another reader takes
its entries over. An unusable entry goes to the dead letters with the reason. Every method raises
StoreError when Redis can't be reached.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis

from runner.errors import StoreError
from runner.immutable import immutable
from runner.records.notices import Notice
from runner.records.size_limits import MAX_DEAD, MAX_DEAD_BYTES
from runner.store import encoding
from runner.store.addresses import NAMESPACE, partition_addresses
from runner.store.redis import measurements
from runner.store.redis.connection import RedisConnection, connected, mapping_of, partitions_at
from runner.store.redis.keys import PARTITION, Keys
from runner.store.redis.scripts import run_on

# A consumer group on streams: several programs share the entries, and take over from a program that is gone.
#
# They all read under one name: separate names would have to be removed when their programs die, by searching
# the entries of all. An entry's age shows that it was left.
#
# The group and its streams are made at the first read, and again if they are deleted while a reader waits.
# Every method raises StoreError when Redis can't be reached.


Found = list[tuple[str, bytes, Mapping[bytes, bytes] | None]]
"""Stream, id and fields of entries; None for the fields if an entry was deleted while a reader had it."""

READER = "worker"
"""The name under which all programs read."""

LARGE = 4_000_000
"""Bytes in one read above which entries are then taken one by one, so that they fit into memory."""

SHORT_BLOCK = 0.05
"""Seconds of one blocking read if the streams lie on several servers."""


def never() -> bool:
    """Return False: the default for a program that isn't told to stop."""
    return False


@dataclass
class Group:
    """One program's side of a group."""

    _redis: RedisConnection
    _name: str
    _streams: Sequence[str]
    _places: dict[str, Any] = field(default_factory=dict)
    _joined: bool = False
    _large: bool = False

    def read(self, wait: float, limit: int, is_stopping: Callable[[], bool]) -> Found:
        """Take new entries within `wait` seconds: `limit` of each stream, or one if the last were large."""
        apart = self._redis.apart(self._streams)
        taken: Found = []
        for streams in apart:
            # Servers that are asked in turn get a short wait: the next one may have entries.
            block = max(1, round(min(wait, SHORT_BLOCK if len(apart) > 1 else wait) * 1000))
            options = "COUNT", self._hand(limit), "BLOCK", block
            with self._joining():
                found = self._redis.call_blocking(
                    block / 1000,
                    is_stopping,
                    *("XREADGROUP", "GROUP", self._name, READER, *options),
                    *("STREAMS", *streams, *(">" for _ in streams)),
                )
            taken += [
                entry
                for stream, entries in found or ()
                for entry in _raw(stream.decode(), entries)
            ]
        return self._weighed(taken)

    def take_over(self, idle: float, limit: int) -> Found:
        """Take entries that have been pending for `idle` seconds, continuing after the last ones."""
        taken: Found = []
        for streams in self._redis.apart(self._streams):
            partition_addresses = [self._places.get(stream, "0-0") for stream in streams]
            arguments = (
                self._name,
                READER,
                round(idle * 1000),
                self._hand(limit),
                *partition_addresses,
            )
            with self._joining():
                replies = run_on(self._redis, "take_over", streams, *arguments)
            for stream, (self._places[stream], entries, *_) in zip(
                streams, replies, strict=True
            ):
                taken += self._weighed(_raw(stream, entries))
        return taken

    def _hand(self, limit: int) -> int:
        return 1 if self._large else limit

    def _weighed(self, found: Found) -> Found:
        self._large = (
            sum(len(value) for *_, fields in found if fields for value in fields.values())
            > LARGE
        )
        return found

    @contextmanager
    def _joining(self) -> Iterator[None]:
        if not self._joined:
            for stream in self._streams:
                _create_group(self._redis, stream, self._name, "0")
            self._joined = True
        try:
            yield
        except StoreError as error:
            self._joined = "NOGROUP" not in str(error)
            raise


def _create_group(connection: RedisConnection, stream: str, group: str, start: str) -> None:
    """Create a group, which reads a stream after `start`, unless it exists."""
    try:
        connection.call("XGROUP", "CREATE", stream, group, start, "MKSTREAM")
    except StoreError as error:
        if "BUSYGROUP" not in str(error):
            raise


def _raw(stream: str, entries: Sequence[Any]) -> Found:
    """Add the stream to entries from the server; old servers send None for a deleted entry."""
    return [
        (
            stream,
            entry[0],
            None if entry[1] is None else mapping_of(entry[1]),
        )
        for entry in entries
        if entry is not None
    ]


log = logging.getLogger(__name__)

GROUP = "runner"

EARLY = "stream"
"""The door to which the store hands back early answers that came on the stream."""

HAND = 10
"""The most entries that a reader takes at once, since their size isn't known before they are read."""

DEAD_STAY = 30 * 86_400
"""Seconds that a dead letter is kept."""


@immutable
class Bounds:
    """The most dead letters of messages to keep, and the size at which the older half is deleted.

    The size is the server's estimate, in bytes.
    """

    letters: int = MAX_DEAD
    size: int = MAX_DEAD_BYTES


BOUNDS = Bounds()


KEPT_REPLIES = 10_000

REPLIES_STAY = 86_400  # seconds after the last receipt

BODY = b"body"


@immutable
class Entry:
    """One message in its stream."""

    stream: str
    id: str
    fields: Mapping[bytes, bytes]

    @property
    def body(self) -> bytes | None:
        """The message itself; None if the field `body` is missing."""
        return self.fields.get(BODY)

    @property
    def early(self) -> list[Any]:
        """The early answers' messages that the store hands back, in the order of their arrival."""
        return [encoding.load(message) for message in self.fields.values()]

    @property
    def key(self) -> str:
        """A unique name of the message, the same at every delivery."""
        return f"{self.stream}/{self.id}"


class StreamReader:
    """One program that reads the streams."""

    def __init__(
        self,
        place: str | RedisConnection,
        namespace: str = NAMESPACE,
        streams: Sequence[str] = (),
        bounds: Bounds = BOUNDS,
    ) -> None:
        """Take a database's redis-py URL or connection; nothing is connected yet.

        Without `streams` it reads answers, starts, and early answers that came on the stream.
        """
        self._redis = connected(place)
        self.keys = Keys(namespace)
        self._bounds = bounds
        self.early = self.keys.handed_early(EARLY)
        self._streams = tuple(streams) or (self.keys.responses, self.keys.starts, self.early)
        self._group = Group(self._redis, GROUP, self._streams)

    def read(
        self, wait: float, limit: int = HAND, is_stopping: Callable[[], bool] = never
    ) -> list[Entry]:
        """Take new entries; wait up to `wait` seconds for the first one, unless the program stops."""
        return _entries(self._group.read(wait, limit, is_stopping))

    def take_over(self, idle: float, limit: int = HAND) -> list[Entry]:
        """Take entries pending for `idle` seconds: their reader is gone, or could not apply them."""
        return _entries(self._group.take_over(idle, limit))

    def done(self, entry: Entry) -> None:
        stream = entry.stream
        self._redis.call_all(("XACK", stream, GROUP, entry.id), ("XDEL", stream, entry.id))

    def write_dead_letter(self, entry: Entry, reason: str) -> None:
        """Move an entry to the dead letters with its fields unchanged."""
        letter: dict[Any, Any] = {"stream": entry.stream, "id": entry.id, "reason": reason}
        kept = {
            BODY if name == BODY else b"field:" + name: value
            for name, value in entry.fields.items()
        }
        _write_dead_letter(self._redis, self.keys, self._bounds, {**letter, **kept})
        self.done(entry)

    def close(self) -> None:
        self._redis.close()


class Outbox:
    """Writes receipts, and messages that doors send on behalf of others."""

    def __init__(
        self, place: str | RedisConnection, namespace: str = NAMESPACE, bounds: Bounds = BOUNDS
    ) -> None:
        """Take a database's redis-py URL or connection; nothing is connected yet."""
        self._redis = connected(place)
        self.keys = Keys(namespace)
        self._bounds = bounds

    def send(self, stream: str, body: bytes) -> str:
        said: bytes = self._redis.call("XADD", stream, "*", BODY, body)
        return said.decode()

    def write_dead_letter(self, door: str, body: bytes, reason: str) -> None:
        """Put a message that was never on a stream into the dead letters."""
        letter = {"stream": door, "id": "", "reason": reason, BODY: body}
        _write_dead_letter(self._redis, self.keys, self._bounds, letter)

    def reply(self, stream: str, body: bytes) -> None:
        """Put a receipt on its receiver's stream, which expires a day after the last receipt.

        A receipt that can't be put there, because the name isn't a stream's or belongs to another namespace,
        becomes a dead letter, so that it doesn't block later messages.
        """
        if not stream.startswith(self.keys.replies):
            self.write_dead_letter(
                stream,
                body,
                f"the receipt was not sent: its stream must begin with {self.keys.replies}",
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


def _write_dead_letter(
    connection: RedisConnection, keys: Keys, bounds: Bounds, letter: dict[Any, Any]
) -> None:
    """Add a dead letter, delete letters that are too many, too old or too large, and count those."""
    stream = keys.dead_messages
    with connection.translated():
        client = connection.client_of(stream)
        oldest = int(client.xadd(stream, letter).partition(b"-")[0]) - DEAD_STAY * 1000
        dropped = client.xtrim(stream, maxlen=bounds.letters, approximate=True)
        dropped += client.xtrim(stream, minid=max(0, oldest), approximate=True)
        try:
            size = client.memory_usage(stream) or 0
        except redis.ResponseError:
            size = 0  # the server won't tell this user: only the number of letters counts
        if size > bounds.size:
            dropped += client.xtrim(stream, maxlen=client.xlen(stream) // 2, approximate=False)
    if dropped:
        for field, count in measurements.dropped(dropped).items():
            connection.call("HINCRBYFLOAT", keys.metrics, field, str(count))
        log.warning(
            "dead.full: the oldest %d dead letters were deleted, as %d letters and %d bytes are kept at "
            "most. Raise RUNNER_DEAD_LETTERS or RUNNER_DEAD_BYTES to keep more.",
            *(dropped, bounds.letters, bounds.size),
        )


def _entries(found: Found) -> list[Entry]:
    # An entry that was deleted while it was pending has no fields, so it can't be applied.
    return [
        Entry(stream, entry.decode(), fields)
        for stream, entry, fields in found
        if fields is not None
    ]


# A partition's notices are read through a consumer group, so that several readers share them.
#
# A notice stays pending until `done`; other readers take over the notices of a reader that is gone. Every
# method raises StoreError when Redis can't be reached.


class NoticeReader:
    """One program that reads notices for a group."""

    def __init__(
        self,
        place: str | RedisConnection,
        group: str,
        namespace: str = NAMESPACE,
        partition: str = PARTITION,
    ) -> None:
        """Take a database's redis-py URL or connection; nothing is connected yet."""
        self._stream = Keys(namespace, partition).notices
        self._redis = connected(place, self._stream)
        self._name = group
        self._group = Group(self._redis, group, [self._stream])

    def read(
        self, wait: float, limit: int = 100, is_stopping: Callable[[], bool] = never
    ) -> list[Notice]:
        """Take new notices; wait up to `wait` seconds for the first one, unless the program stops."""
        return _notices(self._group.read(wait, limit, is_stopping))

    def take_over(self, idle: float, limit: int = 100) -> list[Notice]:
        """Take notices that have been pending for `idle` seconds."""
        return _notices(self._group.take_over(idle, limit))

    def done(self, notices: Sequence[Notice]) -> None:
        """Acknowledge handled notices, which stay in the stream for other groups."""
        if notices:
            self._redis.call(
                "XACK", self._stream, self._name, *(notice.entry for notice in notices)
            )

    def close(self) -> None:
        self._redis.close()


class NoticeGroups:
    """The consumer groups of the notices of all partitions."""

    def __init__(self, urls: str, namespace: str = NAMESPACE, partitions: int = 1) -> None:
        """Take the servers' URLs, as in RUNNER_REDIS_URL; nothing is connected yet."""
        self._namespace = namespace
        self._places = partition_addresses(urls, partitions)
        self._streams = [
            (server, keys.notices)
            for server, keys in partitions_at(urls, namespace, partitions)
        ]

    def listen(self, group: str) -> None:
        """Keep new notices for a group from now on."""
        for server, stream in self._streams:
            _create_group(server, stream, group, "$")

    def leave(self, group: str) -> None:
        """Stop keeping notices for a group, and drop the notices that it has not taken."""
        for server, stream in self._streams:
            if server.call("EXISTS", stream):
                server.call("XGROUP", "DESTROY", stream, group)

    def readers(self, group: str) -> list[NoticeReader]:
        """Return a group's reader for each partition, each on a new connection."""
        return [
            NoticeReader(place.url, group, self._namespace, place.partition)
            for place in self._places
        ]

    def release(self) -> None:
        """Close this thread's connections."""
        for server, _ in self._streams:
            server.release()


UNREAD = 500
"""The notices that are kept if no group reads them."""


def trim_notices(connection: RedisConnection, stream: str) -> None:
    """Delete notices that every group has acknowledged, or without a group all but the newest."""
    if not connection.call("EXISTS", stream):
        return
    groups = [mapping_of(fields) for fields in connection.call("XINFO", "GROUPS", stream)]
    if not groups:
        connection.call("XTRIM", stream, "MAXLEN", UNREAD)
        return
    pending = connection.call_all(*(("XPENDING", stream, group[b"name"]) for group in groups))
    # If nothing is pending, the last delivered notice and all before it are done.
    kept = [
        _place(least) if least else _after(group[b"last-delivered-id"])
        for group, (_, least, *_) in zip(groups, pending, strict=True)
    ]
    connection.call("XTRIM", stream, "MINID", "{}-{}".format(*min(kept)))


def _after(entry: bytes) -> tuple[int, int]:
    moment, number = _place(entry)
    return moment, number + 1


def _place(entry: bytes) -> tuple[int, int]:
    moment, _, number = entry.partition(b"-")
    return int(moment), int(number)


class NoticeTail:
    """Reads the notices of all partitions as they come, beside the groups that consume them.

    A notice that every group has done may be deleted before it is read here: so use it to show notices, not
    for work that must be done for each.
    """

    def __init__(self, urls: str, namespace: str = NAMESPACE, partitions: int = 1) -> None:
        """Take the servers' URLs, as in RUNNER_REDIS_URL; nothing is connected yet."""
        places = partitions_at(urls, namespace, partitions)
        self._streams = [(server, keys.notices) for server, keys in places]

    def end(self) -> tuple[str, ...]:
        """Return the position after the last notice of each partition, even if that was deleted."""
        return tuple(self._last(server, stream) for server, stream in self._streams)

    def knows(self, position: Sequence[str]) -> bool:
        """Return whether all notices after a position still exist.

        They do if the position's own notice exists, since the oldest are deleted first, or if no notice has
        come since.
        """
        return len(position) == len(self._streams) and all(
            bool(server.call("XRANGE", stream, part, part))
            or self._last(server, stream) == part
            for (server, stream), part in zip(self._streams, position, strict=True)
        )

    def read(
        self, after: Sequence[str], limit: int = 100
    ) -> list[tuple[Notice, tuple[str, ...]]]:
        """Return the notices after a position, each with the position after it."""
        partitions = []
        for number, (server, stream) in enumerate(self._streams):
            entries = server.call("XRANGE", stream, f"({after[number]}", "+", "COUNT", limit)
            partitions.append(
                [
                    (
                        number,
                        _notice(entry.decode(), mapping_of(fields)),
                    )
                    for entry, fields in entries
                ]
            )
        reached = list(after)
        notices = []
        for number, notice in heapq.merge(*partitions, key=lambda item: item[1].at):
            reached[number] = notice.entry
            notices.append((notice, tuple(reached)))
        return notices

    @staticmethod
    def _last(server: RedisConnection, stream: str) -> str:
        if not server.call("EXISTS", stream):
            return "0-0"
        return str(
            mapping_of(server.call("XINFO", "STREAM", stream))[b"last-generated-id"], "utf-8"
        )


def _notices(found: Found) -> list[Notice]:
    # An entry that the stream's limit has removed in the meantime comes without fields.
    return [_notice(entry.decode(), fields) for _, entry, fields in found if fields]


def _notice(entry: str, found: Mapping[bytes, bytes]) -> Notice:
    said = {name.decode(): value for name, value in found.items()}
    run_id, node, detail = (said[name].decode() for name in ("run_id", "node", "detail"))
    visit = int(said["visit"])
    question = None
    if "question" in said:
        # The fields that a question's id contains aren't stored with it; the id is the detail.
        place = {"id": detail, "run_id": run_id, "node_id": node, "visit": visit}
        question = {**place, **encoding.load(said["question"])}
    return Notice(
        entry,
        said["id"].decode(),
        said["kind"].decode(),
        run_id,
        node,
        visit,
        detail,
        int(said["at"]),
        question,
        int(said.get("reminded", 0)),
        encoding.load(said["data"]) if "data" in said else None,
    )


# Wake-ups: programs that can't ring the task queue ask a sweeping worker to do it.


class SweepRequests:
    """Waits on lists of requests for a sweep; any number may wait, and one request wakes one."""

    def __init__(
        self, place: str | RedisConnection, keys: Sequence[str] = (Keys().wake,)
    ) -> None:
        """Take a database's redis-py URL or connection; `keys` are the lists there."""
        self._redis = connected(place)
        self._keys = keys

    def wait(self, seconds: float, is_stopping: Callable[[], bool] = never) -> bool:
        """Wait up to `seconds`, unless the program stops; return whether a sweep was requested.

        Raises:
            StoreError: the store could not be reached.
        """
        command = "BRPOP", *self._keys, f"{seconds:.3f}"
        return self._redis.call_blocking(seconds, is_stopping, *command) is not None
