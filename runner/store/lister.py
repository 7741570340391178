"""Listings in Redis: runs newest first, open questions oldest first, read from the shortest index.

A page looks at a bounded number of entries. Where few of many fit it ends early, and its cursor goes
on behind what was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from runner.interrupts import Interrupt
from runner.listings import InterruptQuery, Page, RunQuery, RunSummary, asked_place, cursor_of, cut, place_of
from runner.store import layout
from runner.store.keys import Keys
from runner.store.link import Link
from runner.store.reader import Reader

Item = TypeVar("Item")
Place = tuple[int, str]

LOOKED_AT = 1_000
"""Entries that one page looks at, or twice its length if that is more."""

AT_ONCE, AT_LEAST = 250, 50
"""Entries that are read in one go: one more than the page's length, within these."""


class Span:
    """The part of an index that a listing goes through, and in which direction."""

    def __init__(self, low: int | None, high: int | None, *, newest: bool) -> None:
        """Take times in ms; `high` is the first too late."""
        self.low: str = "-inf" if low is None else str(low)
        self.high: str = "+inf" if high is None else f"({high}"
        self.newest = newest


class Lister:
    """Lists what is in one partition."""

    def __init__(self, link: Link, keys: Keys, reader: Reader) -> None:
        self._link, self._keys, self._reader = link, keys, reader

    def runs(self, query: RunQuery, limit: int, cursor: str) -> Page[RunSummary]:
        """List the runs that are wanted, newest first."""
        span = Span(query.since, query.until, newest=True)
        with self._link.translated():
            index = self._shortest(self._keys.runs(query), span)

            def read(ids: Sequence[str]) -> list[RunSummary | None]:
                found = self._summaries(ids)
                return [run if run is not None and query.fits(run) else None for run in found]

            return self._page(index, span, cursor, limit, read=read, place=lambda run: run.place)

    def open_interrupts(self, query: InterruptQuery, limit: int, cursor: str) -> Page[Interrupt]:
        """List the open questions that are wanted, oldest first."""
        span = Span(None, query.until, newest=False)
        with self._link.translated():
            root = self._families([query.run])[0][1] if query.run else ""
            if query.run and not root:
                return Page(())
            index = self._shortest(self._keys.questions(query, root), span)

            def read(ids: Sequence[str]) -> list[Interrupt | None]:
                found = self._reader.standing(ids)[0]
                families = self._families([each.run_id if each else "" for each in found])
                return [
                    each if each is not None and each.is_open and query.fits(each, *family) else None
                    for each, family in zip(found, families, strict=True)
                ]

            return self._page(index, span, cursor, limit, read=read, place=asked_place)

    def _shortest(self, indexes: Sequence[str], span: Span) -> str:
        """Choose the index with the fewest entries in the span."""
        if len(indexes) == 1:
            return indexes[0]
        with self._link.client.pipeline(transaction=False) as pipe:
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
        found: list[Item] = []
        looked_at = 0
        while looked_at < max(LOOKED_AT, 2 * limit):
            entries = self._entries(index, span, after, min(AT_ONCE, max(AT_LEAST, limit + 1)))
            if not entries:
                return cut(found, place, limit)
            found += [item for item in read([name for _, name in entries]) if item is not None]
            if len(found) > limit:
                return cut(found, place, limit)
            looked_at, after = looked_at + len(entries), entries[-1]
        return cut(found, place, limit, rest=cursor_of(after) if after else None)

    def _entries(self, index: str, span: Span, after: Place | None, count: int) -> list[Place]:
        """Read the entries after a place: the rest of its millisecond, and about `count` more."""
        low, high = span.low, span.high
        with self._link.client.pipeline(transaction=True) as pipe:
            if after is not None:
                at = after[0]
                if span.newest:
                    high = f"({at}"
                else:
                    low = f"({at}"
                pipe.zrange(index, at, at, byscore=True, withscores=True)
            ends = (high, low) if span.newest else (low, high)
            pipe.zrange(index, *ends, desc=span.newest, byscore=True, offset=0, num=count, withscores=True)
            *same, rest = [[(int(at), name.decode()) for name, at in found] for found in pipe.execute()]
        if after is None:
            return rest
        if span.newest:
            return [*reversed([entry for entry in same[0] if entry < after]), *rest]
        return [*(entry for entry in same[0] if entry > after), *rest]

    def _summaries(self, ids: Sequence[str]) -> list[RunSummary | None]:
        with self._link.client.pipeline(transaction=False) as pipe:
            for each in ids:
                pipe.hmget(self._keys.run(each), "of", "run", "created", "tags")
            found: list[list[Any]] = pipe.execute()
        return [
            layout.summary(each, *fields) if fields[0] is not None else None
            for each, fields in zip(ids, found, strict=True)
        ]

    def _families(self, runs: Sequence[str]) -> list[tuple[str, str]]:
        """Read the graph and the root of each run."""
        with self._link.client.pipeline(transaction=False) as pipe:
            for run in runs:
                pipe.hmget(self._keys.run(run), "of", "root")
            found: list[list[bytes | None]] = pipe.execute()
        return [((of or b"- - ").decode().split(" ", 2)[2], (root or b"").decode()) for of, root in found]
