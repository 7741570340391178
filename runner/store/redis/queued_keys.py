"""Concurrency keys of graphs for which runs wait, with their waiting and open runs."""

from __future__ import annotations

from collections.abc import Sequence

from runner.immutable import immutable
from runner.limits.concurrency import QueuedKey, RunOfKey, of_graph
from runner.records.listings import Page, checked_limit, cut, position_in
from runner.store.apply_transition import OPEN, QUEUED
from runner.store.redis.connection import RedisConnection, mapping_of, pairs
from runner.store.redis.keys import STATUSES, Keys, queued_index

MOST_RUNS = 10
"""The most waiting runs, and the most open runs, that are named for a key."""


@immutable
class _Entry:
    """A key in its graph's index; `queue` is the end of its lists' names."""

    redis: RedisConnection
    keys: Keys
    graph: str
    queue: bytes
    since: int

    @property
    def position(self) -> tuple[int, str]:
        return self.since, self.queue.decode(errors="backslashreplace")


def queued_keys(
    partitions: Sequence[tuple[RedisConnection, Keys]], graph: str, limit: int, cursor: str
) -> Page[QueuedKey]:
    """List the keys for which runs wait, longest wait first, of one graph, or of all graphs with "".

    Raises:
        UsageError: the limit or the cursor can't be used. StoreError: a server can't be reached.
    """
    checked_limit(limit)
    previous = position_in(cursor) if cursor else None
    entries = [
        entry
        for redis, keys in partitions
        for entry in _entries(redis, keys, graph, previous and previous[0], limit)
        if previous is None or entry.position > previous
    ]
    page = cut(
        sorted(entries, key=lambda each: each.position), lambda each: each.position, limit
    )
    keys_of = [_read([each for each in page if each.redis is redis]) for redis, _ in partitions]
    by_entry = {entry: key for keys in keys_of for entry, key in keys.items()}
    return Page(tuple(by_entry[entry] for entry in page if entry in by_entry), page.next)


def _entries(
    redis: RedisConnection, keys: Keys, graph: str, at: int | None, limit: int
) -> list[_Entry]:
    """Read each graph's entries of a time (ms), and one more than `limit` of the following ones."""
    names = [graph] if graph else list(redis.texts(keys.graphs))
    low = "-inf" if at is None else str(at)
    following_range = (f"({low}", "+inf", "BYSCORE", "LIMIT", 0, limit + 1, "WITHSCORES")
    commands: list[Sequence[str | int]] = []
    for name in names:
        index = f"{keys.prefix}{queued_index(name)}"
        commands += [
            ("ZRANGE", index, low, low, "BYSCORE", "WITHSCORES"),
            ("ZRANGE", index, *following_range),
        ]
    replies = redis.call_all(*commands)
    return [
        _Entry(redis, keys, name, of_graph(name, "").encode() + key, int(float(since)))
        for name, same, following in zip(names, replies[::2], replies[1::2], strict=True)
        for key, since in mapping_of(same + following).items()
    ]


def _read(entries: Sequence[_Entry]) -> dict[_Entry, QueuedKey]:
    """Read the keys of one partition, skipping keys whose last waiting run has begun meanwhile."""
    if not entries:
        return {}
    redis = entries[0].redis
    prefix = entries[0].keys.prefix
    commands: list[Sequence[str | bytes | int]] = []
    for entry in entries:
        names = [f"{prefix}{kind}".encode() + entry.queue for kind in (QUEUED, OPEN)]
        commands += [
            ("ZCARD", names[0]),
            *(("ZRANGE", name, 0, MOST_RUNS - 1, "WITHSCORES") for name in names),
        ]
    replies = redis.call_all(*commands)
    lists = [reply for number, reply in enumerate(replies) if number % 3]
    runs = list(dict.fromkeys(run for members in lists for run in members[::2]))
    records = redis.call_all(
        *(("HGET", entries[0].keys.run("").encode() + run, "run") for run in runs)
    )
    status_by_word = {str(status): status for status in STATUSES}
    statuses = {
        run: status_by_word.get((record or b"").partition(b" ")[0].decode(errors="replace"))
        for run, record in zip(runs, records, strict=True)
    }

    def runs_in(members: Sequence[bytes]) -> list[RunOfKey]:
        return [
            RunOfKey(run.decode(errors="backslashreplace"), int(float(since)), statuses[run])
            for run, since in pairs(members)
        ]

    return {
        entry: QueuedKey(
            entry.graph,
            entry.position[1].partition(":")[2],
            count,
            int(float(waiting[1])),
            runs_in(waiting),
            runs_in(open_runs),
        )
        for entry, count, waiting, open_runs in zip(
            entries, replies[::3], replies[1::3], replies[2::3], strict=True
        )
        if waiting
    }
