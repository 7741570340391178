"""Sealing the audit, by one worker at a time: see `operations/sealing.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from runner.audit.sealing import Sealing, terms
from runner.celery.engines import connection_of
from runner.execution.engine import Engine
from runner.settings import Settings
from runner.store.archive import open_archive
from runner.store.redis.partitions import SharedStore
from runner.store.redis.singleton_locks import SingletonLocks

TURN = 10.0
"""Seconds for which a turn is one worker's at most."""


def check_audit(settings: Settings) -> None:
    """Check that the audit can be signed and anchored as the settings say; nothing is connected.

    Raises:
        UsageError: it can't.
    """
    if settings.audit != "off":
        terms(settings)


class Sealer:
    """Seals the audit of each partition when that is due, unless another worker just did."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Open what it needs; nothing is connected yet.

        Raises:
            UsageError: the audit can't be signed or anchored as the settings say.
        """
        self._every, self._due = settings.audit_seal, 0.0
        self._locks = SingletonLocks(connection_of(engine), settings.namespace)
        self._sealing: list[Sealing] = []
        if settings.audit != "off":
            archive = open_archive(settings.archive) if settings.archive else None
            conditions = terms(settings, archive)
            logs = cast("SharedStore", engine.store).audit_logs
            self._sealing = [Sealing(audit, conditions) for audit in logs]

    def seal(self, is_stopping: Callable[[], bool]) -> None:
        """Seal if it is time."""
        if not self._sealing or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        if all(sealing.is_idle() for sealing in self._sealing):
            return
        if self._locks.acquire("seal", min(TURN, self._every * 0.9)):
            for sealing in self._sealing:
                while sealing.turn() and not is_stopping():
                    continue
