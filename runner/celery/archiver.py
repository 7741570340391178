"""The archiver: every worker with RUNNER_ARCHIVE writes ended runs to the archive before they expire."""

from __future__ import annotations

import logging
import random
from typing import Any, cast

from runner.celery.background import Background
from runner.celery.config import settings_of
from runner.celery.engines import connection_of
from runner.operations.archiving import ArchivableStore, Archiving
from runner.settings import Settings
from runner.store.archive import open_archive
from runner.store.redis.singleton_locks import SingletonLocks

log = logging.getLogger(__name__)

SWEEPS = 10
"""Intervals of the sweep between two looks for ended runs, and for which few runs wait for others."""

APART = 0.25
"""The part of that time within which a second worker of a fleet does not look."""


def check_archive(settings: Settings) -> None:
    """Check that the archive can be opened; nothing is connected.

    Raises:
        UsageError: a package for it is not installed.
    """
    if settings.archive:
        open_archive(settings.archive)


class Archiver(Background):
    """Looks for ended runs, unless another worker just did, and goes on while there is more than a batch."""

    label = "archiver"

    def include_if(self, worker: Any) -> bool:
        """Return whether there is an archive."""
        return bool(settings_of(worker.app).archive)

    def prepare(self, worker: Any) -> None:  # noqa: ARG002 - as declared
        """Open the archive; that connects to nothing."""
        settings = self.settings
        self._pause = SWEEPS * settings.sweep_interval
        self._locks = SingletonLocks(connection_of(self.engine), settings.namespace)
        self._archiving = Archiving(
            cast("ArchivableStore", self.engine.store),
            open_archive(settings.archive),
            pause=self._pause,
            hold=settings.archive_hold,
        )

    def turn(self) -> None:
        """Archive what waits, then rest; the rest is random, so that workers don't look all at once."""
        before = self._archiving.problem
        if self._locks.acquire("archive", APART * self._pause):
            while self._archiving.turn() and not self.stopping.is_set():
                continue
        problem = self._archiving.problem
        if problem and not before:
            log.error(
                "archive.fails: %s Ended runs stay in the store, for RUNNER_ARCHIVE_HOLD at most. See "
                "`runner doctor`.",
                problem,
            )
        elif before and not problem:
            log.warning("archive.resumed: ended runs are archived again.")
        self.stopping.wait(self._pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter is no secret
