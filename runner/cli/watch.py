"""Looking on while a run goes: a live tree on a terminal, a line for each event without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from runner.cli.output import Output, compact, span
from runner.cli.view import RunView, read_run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runner.ports import Event, Store

LOOK = 0.5
"""Seconds of one blocking look at the events; then the store is asked again whether the run goes on."""

OFTEN = 0.2
"""Seconds between two drawings at most, so that a quick run doesn't spend its time on pictures."""

Tell = Callable[["Event | None"], None]


def watch(store: Store, run_id: str, output: Output, *, timeout: float | None = None) -> None:
    """Show a run until it has ended or only people can go on; `timeout` in seconds.

    Raises:
        TimeoutError: it was still executing then; the run goes on.
        CommandError: there is no such run.
    """
    read_run(store, run_id)
    ends = None if timeout is None else time.monotonic() + timeout
    with _teller(store, run_id, output) as tell:
        for event in until_idle(store, run_id, ends):
            tell(event)
    if _executes(store, run_id):
        raise TimeoutError(f"run {run_id} still executes after {timeout:g} s; it goes on.")


def until_idle(
    store: Store, run_id: str, ends: float | None = None, after: str = ""
) -> Iterator[Event | None]:
    """Give a run's events as they come, and None now and then, until it rests or the time is over."""
    while True:
        executes = _executes(store, run_id)
        left = LOOK if ends is None else min(LOOK, ends - time.monotonic())
        found = store.events(run_id, after, wait=max(0.0, left) if executes else 0)
        for event in found:
            after = event.position
            yield event
        if not found and (not executes or left <= 0):
            return
        if not found:
            yield None


def _executes(store: Store, run_id: str) -> bool:
    record = store.peek(run_id)
    return record is not None and str(record.status) == "executing"


def _teller(store: Store, run_id: str, output: Output) -> AbstractContextManager[Tell]:
    if output.shows_progress and not output.as_json:
        return _live(store, run_id, output)
    return _lines(store, run_id, output)


@contextmanager
def _lines(store: Store, run_id: str, output: Output) -> Iterator[Tell]:
    began = read_run(store, run_id).created_at

    def tell(event: Event | None) -> None:
        if event is not None:
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
    drawn = 0.0

    def tell(_: Event | None) -> None:
        nonlocal drawn
        if time.monotonic() - drawn > OFTEN:
            picture.run = read_run(store, run_id)
            drawn = time.monotonic()

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
