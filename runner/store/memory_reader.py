"""Reading from the memory store, without changing anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from runner import ports
from runner.interrupts import Interrupt
from runner.listings import InterruptQuery, Page, RunQuery, RunSummary
from runner.missing import known
from runner.outcomes import Session
from runner.ports import Event, RunSnapshot
from runner.run import RunRecord
from runner.store.sessions import Sessions
from runner.store.shelf import Shelf

JSON = Any


class MemoryReader:
    """The reading half of a memory store; what it gives out are copies in stored form."""

    def __init__(self, clock: Callable[[], int], lease_ms: int, sessions: Sessions | None) -> None:
        """`clock` gives milliseconds, as `lease_ms` is."""
        self._shelf = Shelf(clock, lease_ms)
        self._changed = threading.Condition(threading.RLock())
        self._sessions = sessions or Sessions()

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        with self._changed:
            runs = [self._shelf.asking(each) for each in ids]
            return [run.questions.get(each) if run else None for run, each in zip(runs, ids, strict=True)]

    def open_interrupts(
        self, query: InterruptQuery = ports.EVERY_QUESTION, limit: int = 100, cursor: str = ""
    ) -> Page[Interrupt]:
        with self._changed:
            return self._shelf.open_interrupts(query, limit, cursor)

    def read(self, run_id: str) -> RunSnapshot | None:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            return run.snapshot(self._shelf.draft(run)) if run else None

    def peek(self, run_id: str) -> RunRecord | None:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            return run.record if run else None

    def fetch(self, run_id: str, nodes: Sequence[str]) -> list[ports.Fetched]:
        with self._changed:
            run = known(self._shelf.runs.get(run_id), run_id)
            draft = self._shelf.draft(run)
            return [run.fetch(draft, name) for name in nodes]

    def runs(self, query: RunQuery = ports.EVERY_RUN, limit: int = 100, cursor: str = "") -> Page[RunSummary]:
        with self._changed:
            return self._shelf.newest(query, limit, cursor)

    def session(self, session_id: str) -> Session:
        return self._sessions.read(session_id)

    def forget_session(self, session_id: str) -> bool:
        return self._sessions.forget(session_id)

    def children(self, run_id: str) -> list[str]:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            return list(run.children) if run else []

    def events(self, run_id: str, after: str = "", limit: int = 1000, wait: float = 0) -> list[Event]:
        with self._changed:
            run = self._shelf.runs.get(run_id)
            if run is None:
                return []
            start = int(after or 0)
            self._changed.wait_for(lambda: len(run.events) > start, timeout=wait or 0)
            return run.events.after(start, limit)
