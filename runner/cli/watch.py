"""Watching a run: a live tree on a terminal, a line for each event without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from runner.cli.output import NARROW, Output, compact, span
from runner.cli.views import RunView, event_of, read_run

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from runner.store.interface import Event, Store

POLL = 0.5
"""Seconds of one blocking read of events, after which the run's status is read again."""

PAUSE = 0.1
"""Seconds between two drawings, so that a quick run doesn't spend its time on drawing."""

REST = 3
"""A run that takes long to read is read less often: after each read, a pause of this many times as long."""

ShowEvents = Callable[["Sequence[Event]"], None]


def watch_until_idle(store: Store, run_id: str, output: Output, *, timeout: float | None = None) -> None:
    """Show a run on stderr until it has ended or waits only for people; `timeout` in seconds.

    Raises:
        TimeoutError: it was still executing then; it continues.
        CommandError: there is no such run.
    """
    _watch(store, run_id, progress(store, run_id, output), timeout=timeout)


def watch_on_stdout(
    store: Store, run_id: str, output: Output, *, follow: bool, timeout: float | None = None
) -> None:
    """Show a run on stdout; with `follow` until it has ended, also while it waits for people.

    Raises:
        TimeoutError, CommandError: as `watch_until_idle`.
    """
    if output.as_json:
        display = _documents(output)
    elif output.is_terminal and not output.console.is_dumb_terminal:
        display = _live(store, run_id, output.console, stays=True)
    else:
        display = _lines(store, run_id, output.line)
    _watch(store, run_id, display, timeout=timeout, follow=follow)


def progress(store: Store, run_id: str, output: Output) -> AbstractContextManager[ShowEvents]:
    """Choose how events are shown on stderr: as a live tree, or as lines."""
    if output.shows_progress and not output.as_json:
        return _live(store, run_id, output.errors)
    return _lines(store, run_id, output.note)


def until_idle(
    store: Store, run_id: str, deadline: float | None = None, after: str = "", *, follow: bool = False
) -> Iterator[Sequence[Event]]:
    """Return a run's events as they come, sometimes none, until it waits for people or has ended.

    `deadline` is in seconds of the monotonic clock. With `follow`, only the end of the run counts.
    """
    while True:
        is_active = _is_active(store, run_id, follow=follow)
        left = POLL if deadline is None else min(POLL, deadline - time.monotonic())
        events = store.events(run_id, after, wait=max(0.0, left) if is_active else 0)
        if events:
            after = events[-1].position
        elif not is_active or left <= 0:
            return
        yield events


def event_line(event: Event, began: int) -> tuple[str, ...]:
    """Return an event as the cells of one line: time since the start, kind, node, details."""
    data = compact(event.data) if event.data is not None else ""
    return span(event.at - began), str(event.kind), event.node, f"{event.detail} {data}".strip()


def wall_clock() -> int:
    """Return this machine's time in ms, which people can't tell from the store's."""
    return time.time_ns() // 1_000_000


def _watch(
    store: Store,
    run_id: str,
    display: AbstractContextManager[ShowEvents],
    *,
    timeout: float | None,
    follow: bool = False,
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    with display as show_events:
        for events in until_idle(store, run_id, deadline, follow=follow):
            show_events(events)
    if _is_active(store, run_id, follow=follow):
        raise TimeoutError(f"run {run_id} is still running after {timeout:g} s; it continues.")


def _is_active(store: Store, run_id: str, *, follow: bool) -> bool:
    record = store.peek(run_id)
    if record is None:
        return False
    return not record.is_final if follow else str(record.status) == "executing"


@contextmanager
def _lines(store: Store, run_id: str, write: Callable[..., None]) -> Iterator[ShowEvents]:
    began = read_run(store, run_id).created_at

    def show_events(events: Sequence[Event]) -> None:
        for event in events:
            write(*event_line(event, began))

    yield show_events


@contextmanager
def _documents(output: Output) -> Iterator[ShowEvents]:
    def show_events(events: Sequence[Event]) -> None:
        for event in events:
            output.event(event_of(event))

    yield show_events


@contextmanager
def _live(store: Store, run_id: str, console: Console, *, stays: bool = False) -> Iterator[ShowEvents]:
    from rich.live import Live

    drawing = LiveTree(read_run(store, run_id), console)

    def show_events(events: Sequence[Event]) -> None:
        if not events:
            return  # nothing has changed, in child runs either; the times continue by themselves
        began = time.monotonic()
        drawing.run = read_run(store, run_id)
        time.sleep(max(PAUSE, REST * (time.monotonic() - began)))

    with Live(get_renderable=drawing.draw, console=console, refresh_per_second=4, transient=not stays):
        yield show_events
        drawing.run = read_run(store, run_id)
        drawing.whole = stays


class LiveTree:
    """The drawing that the live display updates."""

    def __init__(self, run: RunView, console: Console) -> None:
        self.run = run
        self.whole = False
        self._console = console

    def draw(self) -> RenderableType:
        """Draw the run as last read, with the times of now."""
        from runner.cli.tree import draw

        lines = 0 if self.whole else self._console.height - 3
        # The last drawing stays on the screen, so nothing of it is cut off.
        wrap = self.whole and self._console.width < NARROW
        return draw(self.run, wall_clock(), lines=lines, wrap=wrap)
