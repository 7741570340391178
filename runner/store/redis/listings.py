"""Listings of runs and of open questions, page by page.

A listing reads the shortest index that has all it wants. A page looks at a bounded number of entries: where
few of many fit it ends early, and its cursor continues after those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from runner.records.interrupts import Interrupt
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
from runner.store import encoding
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys

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
        self._until = high

    def covers(self, moment: int) -> bool:
        """Whether a time is early enough."""
        return self._until is None or moment < self._until


class Listings:
    """The listings of one store. Thread-safe."""

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        call: Callable[..., list[Any]],
        read_questions: Callable[[Sequence[str]], list[Interrupt | None]],
    ) -> None:
        """`call` runs a script."""
        self._redis, self._keys, self._call, self._read_questions = connection, keys, call, read_questions

    def runs(self, query: RunQuery, graphs: Sequence[str], limit: int, cursor: str) -> Page[RunSummary]:
        """List runs of these graphs, the newest first."""
        span = Span(query.since, query.until, newest=True)
        with self._redis.translated():
            indexes = self._shortest(self._keys.runs(query, graphs), span)

            def read(ids: Sequence[str]) -> list[RunSummary | None]:
                runs = self._summaries(ids)
                return [run if run is not None and query.fits(run) else None for run in runs]

            return self._page(indexes, span, cursor, limit, read=read, place=lambda run: run.place)

    def questions(
        self, query: InterruptQuery, graphs: Sequence[str], limit: int, cursor: str
    ) -> Page[Interrupt]:
        """List open questions of these graphs, the oldest first."""
        span = Span(None, query.until, newest=False)
        own: list[Place] = []
        with self._redis.translated():
            root = self._families([query.run])[0][1] if query.run else ""
            if query.run and not root:
                return Page(())
            if root and root == query.run:
                _, *asked = self._call("asked", root)
                own = [(int(at), name.decode()) for name, at in zip(asked[::2], asked[1::2], strict=True)]
            indexes = self._shortest(self._keys.questions(query, root, graphs), span)

            def read(ids: Sequence[str]) -> list[Interrupt | None]:
                interrupts = self._read_questions(ids)
                families = self._families([interrupt.run_id if interrupt else "" for interrupt in interrupts])
                return [
                    interrupt
                    if interrupt is not None and interrupt.is_open and query.fits(interrupt, *family)
                    else None
                    for interrupt, family in zip(interrupts, families, strict=True)
                ]

            return self._page(indexes, span, cursor, limit, read=read, place=asked_place, more=own)

    def _shortest(self, sets: Sequence[Sequence[str]], span: Span) -> Sequence[str]:
        """Choose the set of indexes with the fewest entries in the span."""
        if len(sets) == 1:
            return sets[0]
        with self._redis.client.pipeline(transaction=False) as pipe:
            for indexes in sets:
                for index in indexes:
                    pipe.zcount(index, span.low, span.high)
            counts = iter(pipe.execute())
        sums = [sum(next(counts) for _ in indexes) for indexes in sets]
        return sets[sums.index(min(sums))]

    def _page(
        self,
        indexes: Sequence[str],
        span: Span,
        cursor: str,
        limit: int,
        *,
        read: Callable[[Sequence[str]], list[Item | None]],
        place: Callable[[Item], Place],
        more: Sequence[Place] = (),
    ) -> Page[Item]:
        """Look at entries until there are enough, or no more, or it has looked at many.

        `more` are entries that are in no index.
        """
        after = place_of(cursor) if cursor else None
        items: list[Item] = []
        looked_at = 0
        while looked_at < max(LOOKED_AT, 2 * limit):
            entries = self._entries(indexes, span, after, min(AT_ONCE, max(AT_LEAST, limit + 1)), more)
            if not entries:
                return cut(items, place, limit)
            items += [item for item in read([name for _, name in entries]) if item is not None]
            if len(items) > limit:
                return cut(items, place, limit)
            looked_at, after = looked_at + len(entries), entries[-1]
        return cut(items, place, limit, rest=cursor_of(after) if after else None)

    def _entries(
        self, indexes: Sequence[str], span: Span, after: Place | None, count: int, more: Sequence[Place]
    ) -> list[Place]:
        """Read the entries after a place: the rest of its millisecond, and about `count` more."""
        order = ("1" if span.newest else "0", span.low, span.high, after[0] if after else "", count)
        names = [index.removeprefix(self._keys.prefix) for index in indexes]
        _, *words = self._call("listing", *order, *names)
        same: list[Place] = []
        rest: list[Place] = []
        entries, pairs = same, iter(words)
        for name in pairs:
            if not name:
                entries = rest
            else:
                entries.append((int(next(pairs)), name.decode()))
        same += [entry for entry in more if after and entry[0] == after[0]]
        rest += [entry for entry in more if span.covers(entry[0]) and (after is None or entry[0] > after[0])]
        first = sorted(rest, reverse=span.newest)[:count]
        if after is None:
            return first
        near = [entry for entry in same if (entry < after if span.newest else entry > after)]
        return [*sorted(near, reverse=span.newest), *first]

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
        return [
            (of.decode().split(" ", 2)[2], root.decode() if root else run_id) if of else ("", "")
            for run_id, (of, root) in zip(ids, rows, strict=True)
        ]
