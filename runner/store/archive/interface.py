"""The interface of archives, which keep ended runs as complete exports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Protocol

from runner.immutable import immutable
from runner.records.codec import JSONMapping
from runner.records.json_form import milliseconds
from runner.records.listings import Page, RunQuery, RunSummary
from runner.records.run import Status


@immutable
class ArchivedRun:
    """An outermost run to write: its export as JSON, and summaries of it and each run inside it."""

    text: str
    summaries: Sequence[RunSummary]

    @property
    def run_id(self) -> str:
        return self.summaries[0].run_id


class Archive(Protocol):
    """An archive of ended runs. Raises ArchiveError when it can't be reached or is damaged.

    `place` names it, without a password.
    """

    place: str

    def write(self, runs: Sequence[ArchivedRun]) -> None:
        """Write all of these runs so that they survive a crash of this machine, or raise."""

    def read(self, run_id: str) -> JSONMapping | None:
        """Return the export of a run, also of one inside another; None if it isn't archived."""

    def runs(self, query: RunQuery, limit: int, cursor: str = "") -> Page[RunSummary]:
        """List runs as the store does: newest first, with the same cursors."""

    def write_audit(self, origin: str, first_number: int, lines: Sequence[str]) -> None:
        """Write entries of an audit's tree, from `first_number` on, each with its hash, as safely as `write`.

        The same entries may come twice, also in other portions.
        """

    def read_audit(self, origin: str) -> Iterator[str]:
        """Read the entries of an audit's tree in the order of their numbers; some may occur twice."""


def archived_run(export: JSONMapping) -> ArchivedRun:
    """Prepare an export for writing."""
    return ArchivedRun(json.dumps(export, separators=(",", ":")), tuple(_summaries(export)))


def run_inside(export: JSONMapping, run_id: str) -> JSONMapping | None:
    """Find the export of a run in the export of the same run, or of a run around it."""
    if export["run_id"] == run_id:
        return export
    inside = (run_inside(child, run_id) for child in export["runs"])
    return next((child for child in inside if child is not None), None)


def _summaries(export: JSONMapping) -> Iterator[RunSummary]:
    yield RunSummary(
        run_id=export["run_id"],
        graph_id=export["graph"],
        status=Status(export["status"]),
        created_at=milliseconds(export["created_at"]),
        tags=export["tags"],
        fingerprint=export["fingerprint"],
        parent=export["parent"] or "",
        archived=True,
    )
    for child in export["runs"]:
        yield from _summaries(child)
