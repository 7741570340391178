"""Server-sent events: two readers in the process follow the store for all clients, the `Hub` the watched
runs, the `Ticker` the notices of all runs.

A stream begins with a `snapshot`; then each event has its position as the id, from which a returning client
continues (`Last-Event-ID`). If the store no longer has the events in between, the client gets a `reset` and a
new snapshot. A client that reads too slowly is cut off, and returns by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from runner.errors import StoreError
from runner.operations.installation import NoticeTail
from runner.records.notices import Notice
from runner.records.run import existing
from runner.server.access import Person, asked, caller
from runner.server.answers import seen_document
from runner.server.problems import Problem
from runner.store.interface import Event, Store

log = logging.getLogger(__name__)

Result = TypeVar("Result")

INTERVAL = 0.25
"""Seconds between two reads of the watched runs."""

PAUSE = 2.0
"""Seconds to wait if the store can't be reached; a stream's first line tells clients to return after them."""

RETRY = f"retry: {round(PAUSE * 1000)}\n\n"

COMMENT = 15.0
"""Seconds of silence before a keep-alive comment: proxies close silent streams."""

STREAMS_EACH = 6
"""Maximum streams of one person at the same time; a stream of many runs counts as several."""

MOST_RUNS, RUNS_A_SEAT = 50, 10
"""Maximum runs of a stream, and how many of them count as one stream."""

BEHIND = 1_000
"""Events by which a client may be behind before it is cut off."""

READERS = 2
"""Threads of a process that read for streams."""

HEADERS = {"x-accel-buffering": "no", "cache-control": "no-store"}


Heard = tuple[str, Event]
"""An event, and its run."""


@dataclass(eq=False)
class Subscriber:
    """One client: its queue, and the loop that serves it. None in the queue ends the stream."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[Heard | None] = field(default_factory=asyncio.Queue)

    def put(self, events: Iterable[Heard]) -> None:
        """Pass events on, from the reader's thread."""
        self.loop.call_soon_threadsafe(self._put, list(events))

    def _put(self, events: list[Heard]) -> None:
        if self.queue.qsize() + len(events) > BEHIND:
            self.queue.put_nowait(None)
            return
        for event in events:
            self.queue.put_nowait(event)


class Hub:
    """The reader of the runs that clients watch; its one thread runs while clients watch any."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[int, set[Subscriber]]] = {}
        self._people: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()

    def take_seats(self, person: Person, seats: int) -> Callable[[], None]:
        """Count a person's stream as `seats`, until the returned function is called.

        Raises:
            Problem: the person has too many.
        """
        name = person.principal.key
        with self._lock:
            if self._people[name] + seats > STREAMS_EACH:
                raise Problem(
                    429,
                    f"You may have {STREAMS_EACH} streams open, and one counts for each {RUNS_A_SEAT} runs "
                    "of a stream; close one first.",
                )
            self._people[name] += seats

        def leave() -> None:
            with self._lock:
                self._people[name] -= seats
                if not self._people[name]:
                    del self._people[name]

        return leave

    @contextmanager
    def subscribed(self, positions: Mapping[str, int]) -> Iterator[Subscriber]:
        """Follow runs, each from a position, and pass their events to the subscriber."""
        subscriber = Subscriber(asyncio.get_running_loop())
        with self._lock:
            for run_id, after in positions.items():
                position, subscribers = self._watched.get(run_id, (after, set()))
                subscribers.add(subscriber)
                # An earlier position only repeats events, which clients recognise by their ids.
                self._watched[run_id] = min(position, after), subscribers
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._follow, name="runner-streams", daemon=True
                )
                self._thread.start()
        self._changed.set()
        try:
            yield subscriber
        finally:
            with self._lock:
                for run_id in positions:
                    subscribers = self._watched[run_id][1]
                    subscribers.discard(subscriber)
                    if not subscribers:
                        del self._watched[run_id]

    def _follow(self) -> None:
        while True:
            with self._lock:
                positions = {
                    run_id: position for run_id, (position, _) in self._watched.items()
                }
                if not positions:
                    self._thread = None
                    return
            try:
                for run_id, position in positions.items():
                    self._pass_on(run_id, position)
                pause = INTERVAL
            except StoreError as error:
                log.warning("stream.failed: %s The streams go on when it is back.", error)
                pause = PAUSE
            self._changed.wait(pause)
            self._changed.clear()

    def _pass_on(self, run_id: str, position: int) -> None:
        events = self._store().events(run_id, str(position))
        if not events:
            return
        with self._lock:
            if run_id not in self._watched:
                return
            present, subscribers = self._watched[run_id]
            if present == position:
                self._watched[run_id] = int(events[-1].position), subscribers
            for subscriber in subscribers:
                subscriber.put((run_id, event) for event in events)


def frame(person: Person, kind: str, record: Any, position: str = "") -> str:
    """Write one event of a person's stream; JSON has no line ends, so it is one line."""
    name = f"id: {position}\n" if position else ""
    data = json.dumps(seen_document(person, record), ensure_ascii=False)
    return f"{name}event: {kind}\ndata: {data}\n\n"


_readers: RunVar[CapacityLimiter] = RunVar("readers")


async def _read(function: Callable[..., Result], *arguments: Any) -> Result:
    """Read in one of a few threads: if all clients return at once, the other threads are for votes."""
    try:
        limiter = _readers.get()
    except LookupError:
        limiter = CapacityLimiter(READERS)
        _readers.set(limiter)
    return await run_sync(function, *arguments, limiter=limiter)


def known_position(run_ids: Iterable[str], numbers: Mapping[str, int]) -> str:
    """Write a client's position in its runs, as the id of an event: the number of each run's last event.

    For several runs it begins with a checksum of their ids, so that a position in other runs is refused.
    """
    ordered = sorted(run_ids)
    words = [str(numbers[run_id]) for run_id in ordered]
    if len(words) > 1:
        words.insert(0, str(zlib.crc32(" ".join(ordered).encode())))
    return JOIN.join(words)


def _numbers(run_ids: Sequence[str], position: str) -> dict[str, int] | None:
    """Read a position that `known_position` wrote; None if it was of other runs."""
    if "-" in position:  # of all runs
        return None
    words = position.split(JOIN)
    numbers = dict(zip(sorted(run_ids), map(int, words[-len(run_ids) :]), strict=False))
    same = numbers.keys() == {*run_ids} and known_position(run_ids, numbers) == position
    return numbers if same else None


Snapshot = Callable[[], tuple[Any, dict[str, int]]]
"""A function that reads the snapshot of a stream, and each run's position to continue from."""


async def runs_stream(
    request: Request,
    person: Person,
    hub: Hub,
    store: Store,
    run_ids: Sequence[str],
    after: str,
    read_snapshot: Snapshot,
    show: Callable[[str, Event], Any],
) -> AsyncGenerator[str]:
    """Write the stream of some runs until the client has gone, without events that `show` makes None."""
    yield RETRY
    reached = _numbers(run_ids, after) if after else None
    if after and (reached is None or await _read(_has_gap, store, reached)):
        reason = "events between have expired, or are of other runs"
        yield frame(person, "reset", {"reason": reason})
        reached = None
    if reached is None:
        snapshot, begun = await _read(read_snapshot)
        reached = begun
        yield await _read(frame, person, "snapshot", snapshot, known_position(run_ids, reached))
    with hub.subscribed(reached) as subscriber:
        while not await request.is_disconnected():
            try:
                heard = await asyncio.wait_for(subscriber.queue.get(), COMMENT)
            except TimeoutError:
                yield ": nothing new\n\n"
                continue
            if heard is None:
                return
            run_id, event = heard
            if int(event.position) <= reached[run_id]:
                continue
            reached[run_id] = int(event.position)
            record = show(run_id, event)
            if record is not None:
                yield frame(person, event.kind, record, known_position(run_ids, reached))


def _has_gap(store: Store, positions: Mapping[str, int]) -> bool:
    """Return whether events after a position are gone: expired, or lost with the server that had them."""
    for run_id, after in positions.items():
        following = store.events(run_id, str(after), 1)
        if following and int(following[0].position) > after + 1:
            return True
        if not following and after > existing(store.read(run_id), run_id).events:
            return True
    return False


async def _while_known(request: Request, lines: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """Pass lines on while the person who began the stream is still known, with the same roles."""
    checked_at = time.monotonic()
    person = await caller(request)
    async with aclosing(lines):
        async for line in lines:
            if time.monotonic() - checked_at >= COMMENT:
                checked_at = time.monotonic()
                try:
                    present = await asked(request)
                except Problem:
                    return
                if present is None or person is None or present.roles != person.roles:
                    return
            yield line


class Stream(StreamingResponse):
    """A stream of one person, which proxies must not buffer; it ends when their login ends or changes."""

    def __init__(
        self,
        request: Request,
        lines: AsyncGenerator[str],
        hub: Hub,
        person: Person,
        *,
        runs: int = 1,
    ) -> None:
        """Take some of the person's seats, which are free again when the response ends, begun or not."""
        self._lines = _while_known(request, lines)
        self._leave = hub.take_seats(person, -(-runs // RUNS_A_SEAT))
        super().__init__(self._lines, media_type="text/event-stream", headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it until the client has gone."""
        try:
            async with aclosing(self._lines):
                await super().__call__(scope, receive, send)
        finally:
            self._leave()


# -- all runs ------------------------------------------------------------------------------------------------


class Ticker:
    """The reader of notices of questions and ends of all runs, in one thread, while a client listens."""

    def __init__(self, tail: Callable[[], NoticeTail]) -> None:
        self._tail = tail
        self._lock = threading.Lock()
        self._listeners: set[Subscriber] = set()
        self._thread: threading.Thread | None = None
        self._position: Position = ()

    def now(self) -> Position:
        """Return the position after the last notice; it waits for the store."""
        return self._tail().end()

    def begin(self, subscriber: Subscriber) -> Position:
        """Pass new events to a subscriber, and return the present position. It waits for the store."""
        with self._lock:
            self._position = self._position or self.now()
            self._listeners.add(subscriber)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._follow, name="runner-ticker", daemon=True
                )
                self._thread.start()
            return self._position

    def end(self, subscriber: Subscriber) -> None:
        """Stop passing events to a subscriber."""
        with self._lock:
            self._listeners.discard(subscriber)

    def since(self, position: str) -> list[Heard] | None:
        """List the events after a position; None if it is no longer known, or they are too many."""
        tail = self._tail()
        events = list[Heard]()
        position_parts = tuple(position.split(JOIN))
        if not tail.knows(position_parts):
            return None
        while len(events) <= BEHIND:
            batch = tail.read(position_parts)
            if not batch:
                return events
            events += map(_ticker_event, batch)
            position_parts = batch[-1][1]
        return None

    def _follow(self) -> None:
        pause = threading.Event()
        while True:
            with self._lock:
                if not self._listeners:
                    self._thread = None
                    self._position = ()
                    return
            try:
                notices = self._tail().read(self._position)
            except StoreError as error:
                log.warning("stream.failed: %s The streams go on when it is back.", error)
                pause.wait(PAUSE)
                continue
            if notices:
                events = list(map(_ticker_event, notices))
                with self._lock:
                    self._position = notices[-1][1]
                    for subscriber in self._listeners:
                        subscriber.put(events)
            else:
                pause.wait(2 * INTERVAL)


Position = tuple[str, ...]
"""A reader's position in the notices of each partition; `JOIN` joins the parts in the id of an event."""

JOIN = "_"


def _ticker_event(item: tuple[Notice, Position]) -> Heard:
    notice, position = item
    return notice.run_id, Event(
        JOIN.join(position), notice.kind, notice.at, notice.node, notice.visit, notice.detail
    )


def _places(position: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, pair.split("-"))) for pair in position.split(JOIN)]


async def ticker_stream(
    request: Request,
    person: Person,
    ticker: Ticker,
    after: str,
    read_snapshot: Callable[[], Any],
    is_wanted: Callable[[str, Event], bool],
) -> AsyncGenerator[str]:
    """Write the notices of runs until the client has gone; missed ones, or a snapshot, come first."""
    yield RETRY
    subscriber = Subscriber(asyncio.get_running_loop())
    try:
        begun = JOIN.join(await _read(ticker.begin, subscriber))
        missed_events = await _read(ticker.since, after) if after else None
        if missed_events is None:
            if after:
                yield frame(
                    person, "reset", {"reason": "events between are not known any more"}
                )
            # Read after the reader has begun, so that no event is lost between the two.
            yield await _read(frame, person, "snapshot", await _read(read_snapshot), begun)
        reached_positions = _places(begun if missed_events is None else after)
        waiting = deque(missed_events or ())
        while not await request.is_disconnected():
            try:
                heard = (
                    waiting.popleft()
                    if waiting
                    else await asyncio.wait_for(subscriber.queue.get(), COMMENT)
                )
            except TimeoutError:
                yield ": nothing new\n\n"
                continue
            if heard is None:
                return
            run_id, event = heard
            position = _places(event.position)
            if all(
                pair <= reached_pair
                for pair, reached_pair in zip(position, reached_positions, strict=True)
            ):
                continue  # the client got it with the events that it had missed
            reached_positions = [
                max(pair) for pair in zip(position, reached_positions, strict=True)
            ]
            if await _read(is_wanted, run_id, event):
                data = {
                    "run_id": run_id,
                    "node": event.node,
                    "at": event.at,
                    "detail": event.detail,
                }
                yield frame(person, event.kind, data, event.position)
    finally:
        ticker.end(subscriber)
