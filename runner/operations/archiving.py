"""Moving ended runs to an archive: take some from the store, write them, then let the store expire them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.errors import ArchiveError, CorruptDocument, NotFoundError, RunnerError
from runner.immutable import immutable
from runner.operations.exports import read_export
from runner.records.json_form import document
from runner.records.run import FINAL
from runner.store.archive.interface import Archive, ArchivedRun, archived_run
from runner.store.interface import Store

log = logging.getLogger(__name__)

BATCH = 100
"""Runs that are taken from the store at once."""

LARGEST = 16 * 2**20
"""Characters of exports that are written at once; a larger run is written separately."""

MINE = 60.0
"""Seconds for which an archiver has its batch to itself; if it is slower, some runs are written twice."""

DOWN = 3
"""Consecutive runs that must fail, each written separately, before the archive counts as failing."""


class ArchivableStore(Store, Protocol):
    """A store that keeps ended runs until they are archived: see `RedisStore`."""

    def archivable(
        self,
        place: str,
        limit: int,
        *,
        pause: float,
        mine: float,
        hold: float,
        problem: str = "",
    ) -> list[str]: ...

    def archived(self, runs: Mapping[str, int]) -> None: ...


@immutable
class EndedRun(ArchivedRun):
    """A run to write, and the time when it ended (ms)."""

    ended_at: int


@dataclass
class Archiving:
    """Archives the runs of a store, a batch at each pass. Any number of processes may do so at once.

    Few runs wait `pause` seconds for more; a run is kept at most `hold` seconds after its end.
    `problem` is why the last write failed, or "".
    """

    _store: ArchivableStore
    _archive: Archive
    pause: float
    hold: float
    problem: str = ""

    def run_once(self) -> bool:
        """Archive a batch; return whether more may wait. Runs that can't be written stay in the store.

        Raises:
            StoreError: the store can't be reached.
        """
        runs = self._store.archivable(
            self._archive.place,
            BATCH,
            pause=self.pause,
            mine=MINE,
            hold=self.hold,
            problem=self.problem,
        )
        try:
            for batch in _batches(self._read(runs)):
                self._write(batch)
        except ArchiveError as error:
            self.problem = str(error)
            return False
        return len(runs) == BATCH

    def _read(self, runs: Iterable[str]) -> Iterator[EndedRun]:
        """Read the runs that have ended; forget the others."""
        for run_id in runs:
            try:
                export = read_export(self._store, run_id)
            except NotFoundError:
                self._store.archived({run_id: 0})  # it was removed
            except CorruptDocument as error:
                self._report(run_id, error)
            else:
                if export.status in FINAL:
                    run = archived_run(document(export))
                    yield EndedRun(run.text, run.summaries, export.ended_at)
                else:
                    self._store.archived(
                        {run_id: 0}
                    )  # it was retried: its next end puts it back

    def _write(self, batch: Sequence[EndedRun]) -> None:
        try:
            self._archive.write(batch)
        except ArchiveError as error:
            if len(batch) == 1:
                self._report(batch[0].run_id, error)
                raise
            self._write_each(batch)
        else:
            self._store.archived({run.run_id: run.ended_at for run in batch})
            self.problem = ""

    def _write_each(self, batch: Sequence[EndedRun]) -> None:
        """Write each run separately, so that one failing run doesn't hold back the others.

        Raises:
            ArchiveError: the first runs all failed, so the archive itself fails.
        """
        failures: dict[str, ArchiveError] = {}
        for number, run in enumerate(batch, 1):
            try:
                self._archive.write([run])
            except ArchiveError as error:
                failures[run.run_id] = error
                if len(failures) == number == min(DOWN, len(batch)):
                    raise
            else:
                self._store.archived({run.run_id: run.ended_at})
        for run_id, failure in failures.items():
            self._report(run_id, failure)

    def _report(self, run_id: str, error: RunnerError) -> None:
        self.problem = f"run {run_id}: {error}"
        log.error(
            "run.unarchived: run %s: %s It stays in the store and is tried again later.",
            run_id,
            error,
        )


def _batches(runs: Iterable[EndedRun]) -> Iterator[list[EndedRun]]:
    batch: list[EndedRun] = []
    for run in runs:
        if (
            batch
            and sum(len(run_document.text) for run_document in batch) + len(run.text) > LARGEST
        ):
            yield batch
            batch = []
        batch.append(run)
    if batch:
        yield batch
