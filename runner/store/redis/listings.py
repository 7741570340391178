"""Listings of runs and of questions, page by page.

A listing reads the shortest index that has all its matches. A page examines a bounded number of entries: if
few of many match, it ends early, and its cursor continues after them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from runner.errors import CorruptDocument
from runner.immutable import immutable
from runner.records.interrupts import Interrupt
from runner.records.listings import (
    EVER,
    InterruptQuery,
    Page,
    RunQuery,
    RunSummary,
    cursor_of,
    cut,
    position_in,
)
from runner.store import encoding
from runner.store.redis.connection import RedisConnection, pairs
from runner.store.redis.keys import Keys

log = logging.getLogger(__name__)

LOOKED_AT = 1_000
"""The most entries that are examined for one page, or twice its length if that is more."""

AT_ONCE, AT_LEAST = 250, 50
"""Bounds on the entries read at once, which are otherwise one more than the page's length."""

Item = TypeVar("Item")

Position = tuple[int, str]
"""The position of an entry in an index: milliseconds and id."""


class Span:
    """The part of an index that a listing goes through, and its direction."""

    def __init__(self, low: int | None, high: int | None, *, newest: bool) -> None:
        """Take times in ms; `high` is the first time that is too late."""
        self.low: str = "-inf" if low is None else str(low)
        self.high: str = "+inf" if high is None else f"({high}"
        self.newest = newest
        self._until = high

    def covers(self, moment: int) -> bool:
        """Return whether a time is early enough."""
        return self._until is None or moment < self._until


@immutable
class Part:
    """A part of a listing: indexes that are read as one, within a span.

    `offset` is added to the times of the index, so that its entries come after the earlier parts; `read`
    reads entries, with None for each that doesn't match. `more` are entries that no index has.
    """

    indexes: Sequence[str]
    span: Span
    read: Callable[[Sequence[str]], list[Any]]
    offset: int = 0
    more: Sequence[Position] = ()

    def behind(self, after: Position | None) -> Position | None:
        """Return the index entry that a position of the listing follows; None for its beginning."""
        if not after or (self.offset and after[0] < self.offset):
            return None
        return after[0] - self.offset, after[1]


class Listings:
    """The listings of one store. Thread-safe."""

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        call: Callable[..., list[Any]],
        read_questions: Callable[[Sequence[str]], list[Interrupt | None]],
        graphs: Callable[[], Iterable[str]],
    ) -> None:
        """Take `call`, which runs a script, and `graphs`, which names the graphs."""
        self._redis = connection
        self._keys = keys
        self._call = call
        self._read_questions, self._graphs = read_questions, graphs
        self._damaged: set[str] = set()

    def _names(self, graph: str | None) -> Sequence[str]:
        """Return the graphs that a listing covers."""
        return [graph] if graph is not None else list(self._graphs())

    def runs(self, query: RunQuery, limit: int, cursor: str) -> Page[RunSummary]:
        """List runs, newest first."""
        graphs = self._names(query.graph)
        span = Span(query.since, query.until, newest=True)

        def read(ids: Sequence[str]) -> list[RunSummary | None]:
            runs = self._summaries(ids)
            return [run if run is not None and query.fits(run) else None for run in runs]

        with self._redis.translated():
            part = Part(self._shortest(self._keys.runs(query, graphs), span), span, read)
            return self._page([part], cursor, limit, lambda run: run.position)

    def questions(self, query: InterruptQuery, limit: int, cursor: str) -> Page[Interrupt]:
        """List open questions, oldest or most urgent first, or closed ones, newest first."""
        graphs = self._names(query.graph)
        span = Span(0, query.until, newest=False)
        own: list[Position] = []
        with self._redis.translated():
            if query.closed:
                # A graph's list has them by their negated times, so its first entries are the newest.
                newest = Span(1 - query.decided[1], 1 - query.decided[0], newest=False)
                indexes, *_ = self._keys.questions(query, "", graphs)
                part = Part(indexes, newest, partial(self._matching, query))
                return self._page([part], cursor, limit, query.position)
            root = self._families([query.run])[0][1] if query.run else ""
            if query.run and not root:
                return Page(())
            if root and root == query.run:
                _, *words = self._call("asked", root)
                own = [(int(at), name.decode()) for name, at in pairs(words)]
            sets = self._keys.questions(query, root, graphs)
            if not query.urgent:
                part = Part(
                    self._shortest(sets, span), span, partial(self._matching, query), more=own
                )
                return self._page([part], cursor, limit, query.position)
            until = Span(None, query.due, newest=False)
            expiring = [[self._keys.expiring(index) for index in indexes] for indexes in sets]
            asked = [
                each
                for each in self._readable([name for _, name in own])
                if each and each.ends_at
            ]
            ends = [(each.ends_at, each.id) for each in asked]
            parts = [
                Part(
                    self._shortest(expiring, until),
                    until,
                    partial(self._matching, query),
                    more=ends,
                )
            ]
            if query.due is None:
                read = partial(self._matching, query, expires=False)
                parts.append(Part(self._shortest(sets, span), span, read, EVER, own))
            return self._page(parts, cursor, limit, query.position)

    def _readable(self, ids: Sequence[str]) -> list[Interrupt | None]:
        """Read questions; a damaged one is None and logged once, so that it doesn't hide others."""
        try:
            return self._read_questions(ids)
        except CorruptDocument as error:
            if len(ids) > 1:
                return [question for name in ids for question in self._readable([name])]
            if ids[0] not in self._damaged:
                self._damaged.add(ids[0])
                log.warning("question.damaged: lists leave it out; cancel its run: %s", error)
            return [None]

    def _matching(
        self, query: InterruptQuery, ids: Sequence[str], *, expires: bool = True
    ) -> list[Interrupt | None]:
        """Read questions, None for each that doesn't match, or that expires if `expires` is False."""
        interrupts = self._readable(ids)
        families = [("", "")] * len(ids)
        if query.graph or query.run or query.tag:
            families = self._families([each.run_id if each else "" for each in interrupts])
        tags = self._tags([root for _, root in families]) if query.tag else [{}] * len(families)
        return [
            interrupt
            if interrupt is not None
            and (expires or not interrupt.ends_at)
            and query.fits(interrupt, *family, own)
            else None
            for interrupt, family, own in zip(interrupts, families, tags, strict=True)
        ]

    def counts(self, queries: Sequence[InterruptQuery]) -> list[int]:
        """Count open questions, at most: the length of the shortest list that has all matches."""
        graphs = list(self._graphs())
        sets = [
            self._keys.questions(
                query, "", [query.graph] if query.graph is not None else graphs
            )
            for query in queries
        ]
        with self._redis.translated():
            sums = iter(self._sums([indexes for each in sets for indexes in each], "0", "+inf"))
            return [min(next(sums) for _ in each) for each in sets]

    def _shortest(self, sets: Sequence[Sequence[str]], span: Span) -> Sequence[str]:
        """Choose the set of indexes with the fewest entries in the span."""
        if len(sets) == 1:
            return sets[0]
        sums = self._sums(sets, span.low, span.high)
        return sets[sums.index(min(sums))]

    def _sums(self, sets: Sequence[Sequence[str]], low: str, high: str) -> list[int]:
        """Count the entries of each set of indexes."""
        with self._redis.pipeline() as pipe:
            for indexes in sets:
                for index in indexes:
                    pipe.zcount(index, low, high)
            counts = iter(pipe.execute())
        return [sum(next(counts) for _ in indexes) for indexes in sets]

    def _page(
        self,
        parts: Sequence[Part],
        cursor: str,
        limit: int,
        position_of: Callable[[Item], Position],
    ) -> Page[Item]:
        """Examine entries until the page is full, none are left, or many were examined."""
        after = position_in(cursor) if cursor else None
        items: list[Item] = []
        looked_at = 0
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            if after and following and after[0] >= following.offset:
                continue
            while looked_at < max(LOOKED_AT, 2 * limit):
                entries = self._entries(
                    part, part.behind(after), min(AT_ONCE, max(AT_LEAST, limit + 1))
                )
                if not entries:
                    break
                items += [
                    item
                    for item in part.read([name for _, name in entries])
                    if item is not None
                ]
                if len(items) > limit:
                    return cut(items, position_of, limit)
                looked_at = looked_at + len(entries)
                after = (entries[-1][0] + part.offset, entries[-1][1])
            else:
                return cut(
                    items, position_of, limit, next_cursor=cursor_of(after) if after else None
                )
        return cut(items, position_of, limit)

    def _entries(self, part: Part, after: Position | None, count: int) -> list[Position]:
        """Read the entries after a position: the rest of its millisecond, and about `count` more."""
        span = part.span
        more = part.more
        order = (
            "1" if span.newest else "0",
            span.low,
            span.high,
            after[0] if after else "",
            count,
        )
        names = [index.removeprefix(self._keys.prefix) for index in part.indexes]
        _, *words = self._call("listing", *order, *names)
        same: list[Position] = []
        rest: list[Position] = []
        entries = same
        pairs = iter(words)
        for name in pairs:
            if not name:
                entries = rest
            else:
                entries.append((int(next(pairs)), name.decode()))
        same += [entry for entry in more if after and entry[0] == after[0]]
        rest += [
            entry
            for entry in more
            if span.covers(entry[0]) and (after is None or entry[0] > after[0])
        ]
        # An entry may be in several indexes.
        first = sorted(set(rest), reverse=span.newest)[:count]
        if after is None:
            return first
        near = [entry for entry in same if (entry < after if span.newest else entry > after)]
        return [*sorted(set(near), reverse=span.newest), *first]

    def _rows(self, ids: Sequence[str], *names: str) -> Iterator[tuple[str, list[Any]]]:
        """Read fields of each run, with one request."""
        with self._redis.pipeline() as pipe:
            for run_id in ids:
                pipe.hmget(self._keys.run(run_id), *names)
            return zip(ids, pipe.execute(), strict=True)

    def _summaries(self, ids: Sequence[str]) -> list[RunSummary | None]:
        return [
            encoding.summary(run_id, row) if row[0] is not None else None
            for run_id, row in self._rows(ids, *encoding.SUMMARY)
        ]

    def _tags(self, ids: Sequence[str]) -> list[dict[str, str]]:
        return [encoding.load(tags or b"{}") for _, (tags,) in self._rows(ids, "tags")]

    def _families(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Read the graph and the root of each run."""
        return [
            (encoding.read_of(of)[2], root.decode() if root else run_id) if of else ("", "")
            for run_id, (of, root) in self._rows(ids, "of", "root")
        ]
