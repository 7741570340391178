"""Sabotage: a worker that lets runs expire before they are in the archive."""

from __future__ import annotations

from runner.operations.archiving import Archiving
from tests.chaos.kill_points import app

__all__ = ["app"]

write = Archiving._write


def mark_first(self, batch) -> None:
    self._store.archived({run.run_id: run.ended_at for run in batch})
    write(self, batch)


Archiving._write = mark_first
