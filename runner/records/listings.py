"""Listings of runs and questions: the filters, and one page of results.

A cursor names the last examined item, by its time and its id. So paging is stable: no item is shown
twice or left out, even if runs start or end, or questions are answered, meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Generic, TypeVar

from runner.errors import UsageError
from runner.immutable import immutable
from runner.records import codec
from runner.records.interrupts import Interrupt, selectors_of, tool_of
from runner.records.run import Status, outermost
from runner.records.run_ids import LETTERS

Item = TypeVar("Item")
Key = TypeVar("Key")

LONGEST = 10_000
"""The most items of one page."""

MAX_TAGS, MAX_TAG = 50, 500

SEPARATOR, ENDED = ".", "~"
"""In a cursor of several listings: the separator of positions, and the mark of an ended listing."""

SKEW = 3_600_000
"""Ms by which the clock that made an id may differ from the store's, which sets the run's start."""


@immutable
class Page(Generic[Item]):
    """Some items of a listing; `next` is the cursor of the next page, None at the end.

    It behaves like a list of its items. A page may have fewer items than the limit although more
    follow.
    """

    items: Sequence[Item]
    next: str | None = None

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]


@immutable
class RunSummary:
    """One line of a listing of runs; `fingerprint` is its graph shape's.

    `parent` is the run that a child run belongs to, otherwise empty. `archived` means that it comes
    from the archive. If unknown, `ended_at` is 0, and `requester` (the principal who asked for it)
    is empty; a child has the requester of its outermost run.
    """

    run_id: str
    graph_id: str
    status: Status
    created_at: int
    tags: Mapping[str, str]
    fingerprint: str = ""
    parent: str = ""
    archived: bool = False
    ended_at: int = 0
    requester: str = ""

    @property
    def position(self) -> tuple[int, str]:
        return self.created_at, self.run_id


@immutable
class SessionSummary:
    """One line of a listing of sessions: its id, how many messages it has, and its graph ("": shared)."""

    id: str
    messages: int
    graph: str = ""


@immutable
class RunQuery:
    """A filter of runs, which must match all of its fields. Times are ms; `until` is exclusive.

    `text` is searched in the values of tags, ignoring case.
    """

    status: Status | None = None
    graph: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    text: str = ""

    def fits(self, run: RunSummary) -> bool:
        return (
            self.status in (None, run.status)
            and self.graph in (None, run.graph_id)
            and all(run.tags.get(name) == value for name, value in self.tags.items())
            and (self.since is None or run.created_at >= self.since)
            and (self.until is None or run.created_at < self.until)
            and (
                not self.text
                or any(self.text.lower() in value.lower() for value in run.tags.values())
            )
        )


EVER = 10**15
"""A time in ms that is later than any other."""


@immutable
class InterruptQuery:
    """A filter of questions, open or with `closed` closed, which must match all of its fields.

    `graph` and `run` include questions of graphs inside them. `until` (for the time it was asked)
    and `due` (for its expiry) are exclusive, in ms. A question matches `selectors` if its rule
    names one of these groups and roles or `anyone`, or `user:` and its assignee is among them. `tool` is the
    tool of its call. `tag` is a tag of its outermost run; `text` occurs in its content. With
    `urgent`, questions that expire come first, by expiry, then the others by the time they were
    asked. Closed questions come newest first, by the time they were closed: from the first of the
    times `decided` on, before the second.
    """

    graph: str | None = None
    run: str | None = None
    name: str | None = None
    assignee: str | None = None
    until: int | None = None
    selectors: Sequence[str] | None = None
    tool: str | None = None
    risk: str | None = None
    due: int | None = None
    tag: tuple[str, str] | None = None
    text: str | None = None
    urgent: bool = False
    closed: bool = False
    decided: tuple[int, int] = (0, EVER)

    @property
    def position(self) -> Callable[[Interrupt], tuple[int, str]]:
        """Return the function that computes a question's position in the listing."""
        if self.closed:
            return lambda question: (-question.answered_at, question.id)
        if self.urgent:
            return lambda question: (question.ends_at or EVER + question.asked_at, question.id)
        return lambda question: (question.asked_at, question.id)

    @property
    def searches(self) -> bool:
        """Return whether no index covers the filter: many questions may be read to find a few."""
        return bool(self.tag or self.text or self.name)

    def fits(self, question: Interrupt, graph: str, root: str, tags: Mapping[str, str]) -> bool:
        """Return whether a question matches, given its run's graph and root and the root's tags."""
        return (
            question.is_open is not self.closed
            and self.decided[0] <= question.answered_at < self.decided[1]
            and self.graph in (None, graph, outermost(graph))
            and self.run in (None, question.run_id, root)
            and self.name in (None, question.name)
            and (self.assignee is None or self.assignee in question.assignees)
            and (self.until is None or question.asked_at < self.until)
            and (
                self.selectors is None
                or not set(self.selectors).isdisjoint(
                    [
                        *selectors_of(question.rule),
                        *(f"user:{name}" for name in question.assignees),
                    ]
                )
            )
            and self.tool in (None, tool_of(question.action))
            and self.risk in (None, question.risk)
            and (self.due is None or 0 < question.ends_at < self.due)
            and (self.tag is None or tags.get(self.tag[0]) == self.tag[1])
            and (self.text is None or self.text.casefold() in _words(question))
        )


def _words(question: Interrupt) -> str:
    """Return a question's content as one text to search."""
    values = [question.reason, (question.action or {}).get("args")]
    texts = [
        json.dumps(codec.plain(codec.unpack(value)), ensure_ascii=False)
        for value in values
        if value is not None
    ]
    fields = [
        question.name,
        question.node_id,
        question.run_id,
        question.requester,
        tool_of(question.action),
    ]
    return "\n".join([*fields, *texts]).casefold()


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by the value that `key` returns, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def cursor_of(position: tuple[int, str]) -> str:
    """Encode the cursor of the items after a position."""
    time, name = position
    return base64.urlsafe_b64encode(f"{time} {name}".encode()).decode().rstrip("=")


def position_in(cursor: str) -> tuple[int, str]:
    """Decode a cursor.

    Raises:
        UsageError: it is not a cursor.
    """
    try:
        text = base64.b64decode(
            cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True
        ).decode()
        time, _, name = text.partition(" ")
        return int(time), name
    except (binascii.Error, ValueError) as error:
        raise unreadable_cursor(cursor) from error


def unreadable_cursor(cursor: str) -> UsageError:
    return UsageError(
        f"{cursor!r} is no cursor of a listing; give `next` of the page before, or none to begin."
    )


def cut(
    items: Iterable[Item],
    position_of: Callable[[Item], tuple[int, str]],
    limit: int,
    next_cursor: str | None = None,
) -> Page[Item]:
    """Make a page of the first items; `next_cursor` is the cursor if some weren't examined."""
    candidates = list(items)
    page = tuple(candidates[:limit])
    return Page(
        page, cursor_of(position_of(page[-1])) if len(candidates) > limit else next_cursor
    )


def merged(
    pages: Sequence[Page[Item]], position_of: Callable[[Item], tuple[int, str]], limit: int
) -> Page[Item]:
    """Merge pages of listings into one, newest first; at equal positions the first page wins."""
    items = {position_of(item): item for page in reversed(pages) for item in page}
    # After the end of a page that isn't the last, its listing may have items not yet shown.
    ends = [_end(page, page.next, position_of) for page in pages if page.next is not None]
    horizon = max(ends, default=None)
    positions = sorted(
        (key for key in items if horizon is None or key >= horizon), reverse=True
    )
    return cut(
        [items[key] for key in positions],
        position_of,
        limit,
        next_cursor=cursor_of(horizon) if horizon else None,
    )


def _end(
    page: Page[Item], cursor: str, position_of: Callable[[Item], tuple[int, str]]
) -> tuple[int, str]:
    """Return the position up to which a page has all items of its listing."""
    if page:
        return position_of(page[-1])
    return max(
        position_in(position) for position in cursor.split(SEPARATOR) if position != ENDED
    )


def id_span(prefix: str) -> tuple[int, int] | None:
    """Return the earliest and latest start (ms) of ids with this prefix; None if no id has it."""
    digits = prefix[2:]
    if len(digits) > LETTERS or not (prefix[:2].isdecimal() or not prefix[:2]):
        return None
    try:
        earliest, latest = (
            int.from_bytes(
                base64.b32hexdecode(digits.ljust(LETTERS, filler).upper() + "======")[:6]
            )
            for filler in "0v"
        )
    except ValueError:
        return None
    return max(0, earliest - SKEW), latest + SKEW


def checked_limit(limit: int) -> int:
    """Check the number of items of a page, and return it.

    Raises:
        UsageError: it is not between 1 and `LONGEST`.
    """
    if not 1 <= limit <= LONGEST:
        raise UsageError(f"a page has between 1 and {LONGEST} items, not {limit}.")
    return limit


def checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Check a run's tags, and return them.

    Raises:
        UsageError: a name or value is not a text, or there are too many.
    """
    if len(tags) > MAX_TAGS:
        raise UsageError(
            f"a run takes {MAX_TAGS} tags at most, not {len(tags)}; nothing was started."
        )
    for name, value in tags.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise UsageError(
                f"the tag {name!r} is {value!r}; names and values of tags must be texts."
            )
        if not name or "=" in name or len(name) + len(value) > MAX_TAG:
            raise UsageError(
                f"the tag {name[:80]!r} can't be used: a name is a text without '=', and with its value it "
                f"has {MAX_TAG} characters at most."
            )
    return dict(tags)
