"""Reading runs, questions, events and sessions from Redis, and listing them page by page.

A listing reads the shortest index that has all it wants, and a page looks at a bounded number of
entries: where few of many fit it ends early, and its cursor continues after what was looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from runner.records.codec import JSON
from runner.records.interrupts import Interrupt, address_of
from runner.records.listings import (
    InterruptQuery,
    Page,
    RunQuery,
    RunSummary,
    asked_place,
    cursor_of,
    cut,
    place_of,
)
from runner.records.outcomes import Session
from runner.records.run import NodeRecord, RunRecord
from runner.store import encoding
from runner.store.interface import Event, RunSnapshot
from runner.store.redis import script_values
from runner.store.redis.connection import TIMEOUT, RedisConnection
from runner.store.redis.keys import Keys
from runner.store.redis.large_values import LargeValues

RECORD = (
    b"v",
    b"run",
    b"of",
    b"reason",
    b"lock",
    b"parent_node",
    b"root",
    b"path",
    b"on_end",
    b"ends",
    b"untold",
    b"trace",
)

LONGEST_BLOCK = TIMEOUT / 2
"""Seconds of one blocking read: it must end before the connection counts as dead."""

LOOKED_AT = 1_000
"""Entries that one page looks at, or twice its length if that is more."""

AT_ONCE, AT_LEAST = 250, 50
"""Entries that are read in one go: one more than the page's length, within these."""

Item = TypeVar("Item")

Place = tuple[int, str]
"""Where an entry is in an index: milliseconds and id."""


class Span:
    """The part of an index that a listing goes through, and in which direction."""

    def __init__(self, low: int | None, high: int | None, *, newest: bool) -> None:
        """Take times in ms; `high` is the first too late."""
        self.low: str = "-inf" if low is None else str(low)
        self.high: str = "+inf" if high is None else f"({high}"
        self.newest = newest


class Queries:
    """Reads one partition without changing anything."""

    def __init__(self, connection: RedisConnection, keys: Keys, large: LargeValues) -> None:
        self._redis, self._keys, self._large = connection, keys, large

    def graphs(self) -> dict[str, str]:
        """Return the fingerprint of every known graph, by name."""
        with self._redis.translated():
            graphs: dict[bytes, bytes] = self._redis.client.hgetall(self._keys.graphs)
        return {name.decode(): fingerprint.decode() for name, fingerprint in graphs.items()}

    def shape(self, fingerprint: str) -> dict[bytes, bytes]:
        """Read the fields of a graph's shape; none when it is gone."""
        with self._redis.translated():
            fields: dict[bytes, bytes] = self._redis.client.hgetall(self._keys.shape(fingerprint))
        return fields if b"meta" in fields else {}

    # Runs

    def peek(self, run_id: str) -> RunRecord | None:
        """Read a run's own fields."""
        with self._redis.translated():
            values: list[bytes | None] = self._redis.client.hmget(self._keys.run(run_id), RECORD)
        fields = {name: value for name, value in zip(RECORD, values, strict=True) if value is not None}
        return encoding.run_record(run_id, fields) if fields else None

    def read(self, run_id: str) -> RunSnapshot | None:
        """Read a whole run as it is at one moment."""
        with self._redis.translated(), self._redis.client.pipeline(transaction=True) as pipe:
            for part in ("", ":m", ":i", ":d"):
                pipe.hgetall(self._keys.run(run_id, part))
            fields, messages, questions, decisions = pipe.execute()
        if not fields:
            return None
        fields = self._large.resolve(fields)
        outputs, entries, order = encoding.results(fields)
        return RunSnapshot(
            record=encoding.run_record(run_id, fields),
            nodes=_nodes(fields),
            task=encoding.load(fields[b"task"]),
            given=encoding.load(fields[b"given"]),
            tags=encoding.load(fields[b"tags"]),
            created_at=int(fields[b"created"]),
            ended_at=int(fields.get(b"ended", 0)),
            order=order,
            outputs=outputs,
            entries=entries,
            interrupts=tuple(
                script_values.question(questions[name], decisions.get(name))
                for name in sorted(questions, key=lambda name: script_values.question_number(questions[name]))
            ),
            messages=_messages(messages),
            maps={
                name[2:].decode(): encoding.map_record(value)
                for name, value in fields.items()
                if name.startswith(b"m:")
            },
            events=int(fields[b"run"].split(b" ")[6]),
            size=int(fields.get(b"size", 0)),
        )

    def documents(self, run_id: str) -> dict[str, JSON]:
        """Read the checkpoints of a run's nodes."""
        with self._redis.translated():
            documents: dict[bytes, bytes] = self._redis.client.hgetall(self._keys.run(run_id, ":s"))
        return {name.decode(): encoding.load(value) for name, value in documents.items()}

    def children(self, run_id: str) -> list[str]:
        """Return the ids of a run's child runs, oldest first."""
        with self._redis.translated():
            children: list[bytes] = self._redis.client.lrange(self._keys.run(run_id, ":c"), 0, -1)
        return [child.decode() for child in children]

    def runs(self, query: RunQuery, limit: int, cursor: str) -> Page[RunSummary]:
        """List the runs that match, newest first."""
        span = Span(query.since, query.until, newest=True)
        with self._redis.translated():
            index = self._shortest(self._keys.runs(query), span)

            def read(ids: Sequence[str]) -> list[RunSummary | None]:
                runs = self._summaries(ids)
                return [run if run is not None and query.fits(run) else None for run in runs]

            return self._page(index, span, cursor, limit, read=read, place=lambda run: run.place)

    # Questions

    def questions(
        self, ids: Sequence[str], also: Sequence[tuple[str, Sequence[str]]] = ()
    ) -> tuple[list[Interrupt | None], dict[str, str], int, list[Any]]:
        """Read questions, the nonces of the requests that answered them, and the server's time in ms.

        `also` are fields of runs that are read with them.
        """
        addresses = [address_of(interrupt_id) for interrupt_id in ids]
        with self._redis.translated(), self._redis.client.pipeline(transaction=False) as pipe:
            pipe.time()
            for interrupt_id, address in zip(ids, addresses, strict=True):
                run_id = address.run_id if address else ""
                pipe.hget(self._keys.run(run_id, ":i"), interrupt_id)
                pipe.hget(self._keys.run(run_id, ":d"), interrupt_id)
            for run_id, fields in also:
                pipe.hmget(self._keys.run(run_id), fields)
            (seconds, micros), *values = pipe.execute()
        values, more = values[: 2 * len(ids)], values[2 * len(ids) :]
        pairs = list(zip(values[::2], values[1::2], strict=True))
        interrupts = [script_values.question(asked, decided) if asked else None for asked, decided in pairs]
        winners = {
            interrupt_id: script_values.winner(decided)
            for interrupt_id, (_, decided) in zip(ids, pairs, strict=True)
        }
        return interrupts, winners, seconds * 1000 + micros // 1000, more

    def open_interrupts(self, query: InterruptQuery, limit: int, cursor: str) -> Page[Interrupt]:
        """List the open questions that match, oldest first."""
        span = Span(None, query.until, newest=False)
        with self._redis.translated():
            root = self._families([query.run])[0][1] if query.run else ""
            if query.run and not root:
                return Page(())
            index = self._shortest(self._keys.questions(query, root), span)

            def read(ids: Sequence[str]) -> list[Interrupt | None]:
                interrupts = self.questions(ids)[0]
                families = self._families([interrupt.run_id if interrupt else "" for interrupt in interrupts])
                return [
                    interrupt
                    if interrupt is not None and interrupt.is_open and query.fits(interrupt, *family)
                    else None
                    for interrupt, family in zip(interrupts, families, strict=True)
                ]

            return self._page(index, span, cursor, limit, read=read, place=asked_place)

    # Events and sessions

    def events(self, run_id: str, after: str, limit: int, wait: float) -> list[Event]:
        """Read events after a position. A wait is cut into short blocking reads."""
        key, start = self._keys.run(run_id, ":e"), f"{after or 0}-0"
        deadline = time.monotonic() + wait
        with self._redis.translated():
            client = self._redis.client
            streams = client.xread({key: start}, count=limit)
            while (
                not streams
                and (wait and client.exists(self._keys.run(run_id)))
                and (left := deadline - time.monotonic()) > 0
            ):
                block = max(1, round(min(left, LONGEST_BLOCK) * 1000))
                streams = client.xread({key: start}, count=limit, block=block)
        return [encoding.event(position, fields) for _, stream in streams for position, fields in stream]

    def session(self, session_id: str) -> Session:
        """Read a session as it is at one moment."""
        messages_key, state_key = self._keys.session(session_id)
        with self._redis.translated(), self._redis.client.pipeline(transaction=True) as pipe:
            messages, values = pipe.lrange(messages_key, 0, -1).hgetall(state_key).execute()
        return Session(
            [encoding.load(message) for message in messages],
            {name.decode(): encoding.load(value) for name, value in values.items()},
        )

    # Pages

    def _shortest(self, indexes: Sequence[str], span: Span) -> str:
        """Choose the index with the fewest entries in the span."""
        if len(indexes) == 1:
            return indexes[0]
        with self._redis.client.pipeline(transaction=False) as pipe:
            for index in indexes:
                pipe.zcount(index, span.low, span.high)
            counts = pipe.execute()
        return min(zip(counts, indexes, strict=True))[1]

    def _page(
        self,
        index: str,
        span: Span,
        cursor: str,
        limit: int,
        *,
        read: Callable[[Sequence[str]], list[Item | None]],
        place: Callable[[Item], Place],
    ) -> Page[Item]:
        """Look at entries until there are enough, or no more, or it has looked at many."""
        after = place_of(cursor) if cursor else None
        items: list[Item] = []
        looked_at = 0
        while looked_at < max(LOOKED_AT, 2 * limit):
            entries = self._entries(index, span, after, min(AT_ONCE, max(AT_LEAST, limit + 1)))
            if not entries:
                return cut(items, place, limit)
            items += [item for item in read([name for _, name in entries]) if item is not None]
            if len(items) > limit:
                return cut(items, place, limit)
            looked_at, after = looked_at + len(entries), entries[-1]
        return cut(items, place, limit, rest=cursor_of(after) if after else None)

    def _entries(self, index: str, span: Span, after: Place | None, count: int) -> list[Place]:
        """Read the entries after a place: the rest of its millisecond, and about `count` more."""
        low, high = span.low, span.high
        with self._redis.client.pipeline(transaction=True) as pipe:
            if after is not None:
                moment = after[0]
                if span.newest:
                    high = f"({moment}"
                else:
                    low = f"({moment}"
                pipe.zrange(index, moment, moment, byscore=True, withscores=True)
            ends = (high, low) if span.newest else (low, high)
            pipe.zrange(index, *ends, desc=span.newest, byscore=True, offset=0, num=count, withscores=True)
            *same, rest = [
                [(int(moment), name.decode()) for name, moment in entries] for entries in pipe.execute()
            ]
        if after is None:
            return rest
        if span.newest:
            return [*reversed([entry for entry in same[0] if entry < after]), *rest]
        return [*(entry for entry in same[0] if entry > after), *rest]

    def _summaries(self, ids: Sequence[str]) -> list[RunSummary | None]:
        with self._redis.client.pipeline(transaction=False) as pipe:
            for run_id in ids:
                pipe.hmget(self._keys.run(run_id), "of", "run", "created", "tags")
            rows: list[list[Any]] = pipe.execute()
        return [
            encoding.summary(run_id, *row) if row[0] is not None else None
            for run_id, row in zip(ids, rows, strict=True)
        ]

    def _families(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Read the graph and the root of each run."""
        with self._redis.client.pipeline(transaction=False) as pipe:
            for run_id in ids:
                pipe.hmget(self._keys.run(run_id), "of", "root")
            rows: list[list[bytes | None]] = pipe.execute()
        return [((of or b"- - ").decode().split(" ", 2)[2], (root or b"").decode()) for of, root in rows]


def _nodes(fields: Mapping[bytes, bytes]) -> dict[str, NodeRecord]:
    rounds = {
        int(name[2:]): encoding.load(value).get("round", 0)
        for name, value in fields.items()
        if name.startswith(b"l:")
    }
    nodes = {}
    for name, value in fields.items():
        if name.startswith(b"n:"):
            record, scope = encoding.node_record(value)
            nodes[name[2:].decode()] = encoding.in_round(record, rounds.get(scope, 0))
    return nodes


def _messages(fields: Mapping[bytes, bytes]) -> dict[str, list[JSON]]:
    counts = {name[1:]: int(count) for name, count in fields.items() if name.startswith(b"#")}
    return {
        node.decode(): [encoding.load(fields[b"%d.%s" % (number, node)]) for number in range(1, count + 1)]
        for node, count in counts.items()
    }
