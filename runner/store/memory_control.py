"""What people do to runs that have ended or wait, in the memory store."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from runner import schedule
from runner.graph import Topology
from runner.ports import Doorbell, Reply, Rewrite
from runner.store.shelf import Shelf


class MemoryControl:
    """The part of the memory store that lets runs go on with other records."""

    _shelf: Shelf
    _changed: threading.Condition

    def topology(self, graph_id: str, fingerprint: str) -> Topology | None:  # noqa: ARG002 - a shape knows its name
        with self._changed:
            return self._shelf.shapes.get(fingerprint)

    def rewrite(self, runs: Sequence[Rewrite]) -> Reply:
        with self._changed:
            found = [self._shelf.runs.get(each.run_id) for each in runs]
            kept = [(run, each) for run, each in zip(found, runs, strict=True) if run is not None]
            if len(kept) < len(runs):
                return Reply("unknown")
            if any(not run.record.is_final or len(run.events) != each.events for run, each in kept):
                return Reply("moved")
            bells: list[Doorbell] = []
            for run, each in kept:
                run.erase(each)
                bells += self._shelf.apply(each.run_id, schedule.reopen, each.records)[1]
            self._changed.notify_all()
            return Reply("reopened", bells)
