"""Which node runs here, for logs and traces: a context variable, and observers around each execution.

An observer that raises is logged and left out: watching never breaks a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from runner.outcomes import Outcome
from runner.visits import ClaimedVisit

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The node that runs: names and numbers only, never data."""

    run_id: str
    graph: str
    node: str
    visit: int
    attempt: int


Observer = Callable[[Place, ClaimedVisit], AbstractContextManager[Callable[[Outcome], object]]]
"""Enters before a node runs; what it gives is told the outcome; leaves afterwards, also after an error."""

_place: ContextVar[Place | None] = ContextVar("runner_place", default=None)
_observers: list[Observer] = []


def here() -> Place | None:
    """Return the node whose code runs here, or None outside of nodes."""
    return _place.get()


def attach(observer: Observer) -> None:
    """Let an observer see every execution of a node in this process; twice is once."""
    if observer not in _observers:
        _observers.append(observer)


def detach(observer: Observer) -> None:
    """Take an observer off."""
    if observer in _observers:
        _observers.remove(observer)


class RunFilter(logging.Filter):
    """Gives every log record `run_id`, `graph`, `node`, `visit` and `attempt`: empty outside of nodes.

    Add it to a handler, so that it sees the records of all loggers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; no record is left out."""
        place = here()
        record.run_id, record.graph = (place.run_id, place.graph) if place else ("", "")
        record.node, record.visit, record.attempt = (
            (place.node, place.visit, place.attempt) if place else ("", "", "")
        )
        return True


def observed(visit: ClaimedVisit, execute: Callable[[], Outcome]) -> Outcome:
    """Run a node's code with its place set and every observer around it."""
    at = visit.address
    place = Place(at.run_id, visit.graph_id, at.node_id, at.visit, visit.attempt)
    token = _place.set(place)
    try:
        with ExitStack() as stack:
            told = [_enter(stack, each, place, visit) for each in _observers]
            outcome = execute()
            for tell in told:
                _quietly(partial(tell, outcome))
            return outcome
    finally:
        _place.reset(token)


def _enter(
    stack: ExitStack, observer: Observer, place: Place, visit: ClaimedVisit
) -> Callable[[Outcome], object]:
    try:
        around = observer(place, visit)
        tell = around.__enter__()
    except Exception:
        log.exception("observer.failed: the node runs without it.")
        return lambda _: None
    stack.push(lambda *error: _quietly(lambda: around.__exit__(*error)))
    return tell


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        log.exception("observer.failed: the node's outcome is not changed by it.")
