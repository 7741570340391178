"""The schedules of a namespace: documents with a timer for the next time of each that is not paused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.schedules.schedule import Schedule
from runner.store.redis.documents import Documents

SOON = 1_000
"""Ms after which a schedule is looked at again whose run waits for another one to end."""


class Schedules(Documents[Schedule]):
    """Reads and changes schedules."""

    kind = "schedule"
    limit = 1_000  # a list reads all

    @property
    def _key(self) -> str:
        return self._keys.schedules

    def _read(self, values: dict[str, Any]) -> Schedule:
        return replace(Schedule(values["id"], values["graph"]), **values)

    def _due(self, document: Schedule, now: int) -> int | None:
        if document.paused:
            return None
        return min(document.next_at, now + SOON) if document.waiting_at else document.next_at
