"""Looking on while a run goes: a live tree on a terminal, a line for each event without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from runner.cli.output import Output, compact, span
from runner.cli.view import RunView, read_run

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from runner.ports import Event, Store

LOOK = 0.5
"""Seconds of one blocking look at the events; then the store is asked again whether the run goes on."""

PAUSE = 0.1
"""Seconds between two drawings, so that a quick run doesn't spend its time on pictures."""

SHARE = 3
"""A run that takes long to read is read less often: it rests so many times as long in between."""

Tell = Callable[["Sequence[Event]"], None]


def watch(store: Store, run_id: str, output: Output, *, timeout: float | None = None) -> None:
    """Show on stderr how a run goes until it has ended or only people can go on; `timeout` in seconds.

    Raises:
        TimeoutError: it was still executing then; the run goes on.
        CommandError: there is no such run.
    """
    _look(store, run_id, teller(store, run_id, output), timeout=timeout)


def teller(store: Store, run_id: str, output: Output) -> AbstractContextManager[Tell]:
    """Choose how events are told on stderr: as a live picture, or line by line."""
    if output.shows_progress and not output.as_json:
        return _live(store, run_id, output.errors)
    return _lines(store, run_id, output.note)


def look_on(store: Store, run_id: str, output: Output, *, follow: bool, timeout: float | None = None) -> None:
    """Show on stdout how a run goes; with `follow` until it has ended, also while it waits for people.

    Raises:
        TimeoutError, CommandError: as with `watch`.
    """
    if output.as_json:
        shown = _documents(output)
    elif output.is_terminal and not output.console.is_dumb_terminal:
        shown = _live(store, run_id, output.console, stays=True)
    else:
        shown = _lines(store, run_id, output.line)
    _look(store, run_id, shown, timeout=timeout, follow=follow)


def _look(
    store: Store,
    run_id: str,
    shown: AbstractContextManager[Tell],
    *,
    timeout: float | None,
    follow: bool = False,
) -> None:
    ends = None if timeout is None else time.monotonic() + timeout
    with shown as tell:
        for events in until_idle(store, run_id, ends, follow=follow):
            tell(events)
    if _goes_on(store, run_id, follow=follow):
        raise TimeoutError(f"run {run_id} still executes after {timeout:g} s; it goes on.")


def until_idle(
    store: Store, run_id: str, ends: float | None = None, after: str = "", *, follow: bool = False
) -> Iterator[Sequence[Event]]:
    """Give a run's events as they come, none now and then, until it rests or the time is over.

    With `follow` it rests only when it has ended.
    """
    while True:
        goes_on = _goes_on(store, run_id, follow=follow)
        left = LOOK if ends is None else min(LOOK, ends - time.monotonic())
        found = store.events(run_id, after, wait=max(0.0, left) if goes_on else 0)
        if found:
            after = found[-1].position
        elif not goes_on or left <= 0:
            return
        yield found


def _goes_on(store: Store, run_id: str, *, follow: bool) -> bool:
    record = store.peek(run_id)
    if record is None:
        return False
    return not record.is_final if follow else str(record.status) == "executing"


@contextmanager
def _lines(store: Store, run_id: str, write: Callable[..., None]) -> Iterator[Tell]:
    began = read_run(store, run_id).created_at

    def tell(events: Sequence[Event]) -> None:
        for event in events:
            write(*event_line(event, began))

    yield tell


@contextmanager
def _documents(output: Output) -> Iterator[Tell]:
    from runner.cli.documents import event_document

    def tell(events: Sequence[Event]) -> None:
        for event in events:
            output.record(event_document(event))

    yield tell


def event_line(event: Event, began: int) -> tuple[str, ...]:
    """Write an event in the cells of one line: time since the start, kind, node, detail."""
    data = compact(event.data) if event.data is not None else ""
    return span(event.at - began), str(event.kind), event.node, f"{event.detail} {data}".strip()


@contextmanager
def _live(store: Store, run_id: str, console: Console, *, stays: bool = False) -> Iterator[Tell]:
    from rich.live import Live

    picture = Picture(read_run(store, run_id), console)

    def tell(events: Sequence[Event]) -> None:
        if not events:
            return  # nothing has happened, in the graphs inside neither; the times go on by themselves
        began = time.monotonic()
        picture.run = read_run(store, run_id)
        time.sleep(max(PAUSE, SHARE * (time.monotonic() - began)))

    with Live(get_renderable=picture.draw, console=console, refresh_per_second=4, transient=not stays):
        yield tell
        picture.run = read_run(store, run_id)
        picture.whole = stays


class Picture:
    """What the live display shows now."""

    def __init__(self, run: RunView, console: Console) -> None:
        self.run = run
        self.whole = False
        self._console = console

    def draw(self) -> RenderableType:
        """Draw the run as last read; the times go on."""
        from runner.cli.tree import draw

        return draw(self.run, wall_clock(), lines=0 if self.whole else self._console.height - 3)


def wall_clock() -> int:
    """This machine's clock in milliseconds, which is the store's as far as a person can see."""
    return time.time_ns() // 1_000_000
