"""A run's events in memory: all are numbered, the last ones are kept."""

from __future__ import annotations

from dataclasses import replace

from runner.ports import Event

KEPT = 10_000
"""Events that a run keeps at least; at most it keeps a tenth more."""

LONG = 1_000
"""Bytes of an event's data that don't count: so many events may be kept as there are."""

LEFT = 1_000
"""Events that are left when others had to go because they tell much."""


class History:
    """Events in order; the length counts those that are gone, too."""

    def __init__(self) -> None:
        self._gone = 0
        self._chatter = 0
        self._kept: list[Event] = []

    def __len__(self) -> int:
        """Count all events so far."""
        return self._gone + len(self._kept)

    def add(self, event: Event) -> Event:
        """Number an event and keep it; the oldest may go."""
        numbered = replace(event, position=str(len(self) + 1))
        self._kept.append(numbered)
        if len(self._kept) > KEPT + KEPT // 10:
            self._cut(KEPT)
        return numbered

    def thin(self, size: int, most: int) -> None:
        """Count the data of an event, in bytes; much of it pushes the older ones out."""
        if size <= LONG:
            return
        self._chatter += size
        if self._chatter * 2 > most:
            self._cut(LEFT)
            self._chatter = 0

    def _cut(self, left: int) -> None:
        gone = max(0, len(self._kept) - left)
        self._gone += gone
        del self._kept[:gone]

    def after(self, position: int, limit: int) -> list[Event]:
        """Give the events after a position, as far as they are kept."""
        first = max(0, position - self._gone)
        return self._kept[first : first + limit]
