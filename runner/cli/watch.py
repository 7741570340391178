"""Looking on while a run goes: a live tree on a terminal, a line for each event without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from runner.cli.output import Output, compact, span
from runner.cli.view import RunView, read_run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runner.ports import Event, Store

LOOK = 0.5
"""Seconds of one blocking look at the events; then the store is asked again whether the run goes on."""

PAUSE = 0.1
"""Seconds between two drawings, so that a quick run doesn't spend its time on pictures."""

Tell = Callable[["Sequence[Event]"], None]


def watch(store: Store, run_id: str, output: Output, *, timeout: float | None = None) -> None:
    """Show a run until it has ended or only people can go on; `timeout` in seconds.

    Raises:
        TimeoutError: it was still executing then; the run goes on.
        CommandError: there is no such run.
    """
    ends = None if timeout is None else time.monotonic() + timeout
    with teller(store, run_id, output) as tell:
        for events in until_idle(store, run_id, ends):
            tell(events)
    if _executes(store, run_id):
        raise TimeoutError(f"run {run_id} still executes after {timeout:g} s; it goes on.")


def until_idle(
    store: Store, run_id: str, ends: float | None = None, after: str = ""
) -> Iterator[Sequence[Event]]:
    """Give a run's events as they come, none now and then, until it rests or the time is over."""
    while True:
        executes = _executes(store, run_id)
        left = LOOK if ends is None else min(LOOK, ends - time.monotonic())
        found = store.events(run_id, after, wait=max(0.0, left) if executes else 0)
        if found:
            after = found[-1].position
        elif not executes or left <= 0:
            return
        yield found


def _executes(store: Store, run_id: str) -> bool:
    record = store.peek(run_id)
    return record is not None and str(record.status) == "executing"


def teller(store: Store, run_id: str, output: Output) -> AbstractContextManager[Tell]:
    """Choose how events are told: as a live picture, or line by line."""
    if output.shows_progress and not output.as_json:
        return _live(store, run_id, output)
    return _lines(store, run_id, output)


@contextmanager
def _lines(store: Store, run_id: str, output: Output) -> Iterator[Tell]:
    began = read_run(store, run_id).created_at

    def tell(events: Sequence[Event]) -> None:
        for event in events:
            output.note(*event_line(event, began))

    yield tell


def event_line(event: Event, began: int) -> tuple[str, ...]:
    """Write an event in the cells of one line: time since the start, kind, node, detail."""
    detail = event.detail or (compact(event.data) if event.data is not None else "")
    return span(event.at - began), str(event.kind), event.node, detail


@contextmanager
def _live(store: Store, run_id: str, output: Output) -> Iterator[Tell]:
    from rich.live import Live

    picture = Picture(read_run(store, run_id), output)

    def tell(_: Sequence[Event]) -> None:
        picture.run = read_run(store, run_id)
        time.sleep(PAUSE)

    with Live(get_renderable=picture.draw, console=output.errors, refresh_per_second=4, transient=True):
        yield tell


class Picture:
    """What the live display shows now."""

    def __init__(self, run: RunView, output: Output) -> None:
        self.run = run
        self._output = output

    def draw(self) -> RenderableType:
        """Draw the run as last read; the times go on."""
        from runner.cli.tree import draw

        return draw(self.run, wall_clock(), lines=self._output.errors.height - 3)


def wall_clock() -> int:
    """This machine's clock in milliseconds, which is the store's as far as a person can see."""
    return time.time_ns() // 1_000_000
