"""The threads that a worker runs beside its nodes, from the start of its pool to the worker's end.

Each is a thread of the worker's own process, so that it goes on while every slot is busy, on every
pool. No error ends one: it is logged once, and the thread tries again.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery import bootsteps

from runner.celery.config import settings_of
from runner.celery.engines import connection_of, engine_of
from runner.errors import RunnerError
from runner.execution.engine import Engine
from runner.settings import Settings

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two tries while the store is away."""

ENDS_WITHIN = 5.0
"""Seconds that a stopping worker waits for a thread; it holds nothing that others can't take over."""


class Background(bootsteps.StartStopStep):
    """A thread of the worker. A subclass defines one turn of it."""

    requires = ("celery.worker.components:Pool",)
    engine: Engine
    settings: Settings

    def __init__(self, worker: Any, **options: Any) -> None:
        """Nothing runs before `start`."""
        super().__init__(worker, **options)
        self.stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, worker: Any) -> None:
        self.engine, self.settings = engine_of(worker.app), settings_of(worker.app)
        self.prepare(worker)
        self._thread = threading.Thread(target=self._run, name=f"runner-{self.label}", daemon=True)
        self._thread.start()

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
        """End the thread; harmless before it was started, or twice."""
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(ENDS_WITHIN)

    terminate = stop

    def prepare(self, worker: Any) -> None:
        """Make what the turns need; called in the worker's main thread."""

    def turn(self) -> None:
        """Do the work once. Called until the worker stops; it may call `finish` when all is done."""
        raise NotImplementedError

    def leave(self) -> None:
        """Release what the thread holds."""

    def finish(self) -> None:
        """End the thread after this turn."""
        self.stopping.set()

    def _run(self) -> None:
        waiting = False
        while not self.stopping.is_set():
            try:
                self.turn()
            except RunnerError as error:
                if not waiting:
                    log.warning("%s.waits: %s Trying again every %g s.", self.label, error, PAUSE)
                waiting = True
                self.stopping.wait(PAUSE)
            except Exception:
                log.exception(
                    "%s.failed: the worker goes on and tries again; please report this.", self.label
                )
                self.stopping.wait(PAUSE)
            else:
                if waiting:
                    log.warning("%s.resumed: the store is back.", self.label)
                waiting = False
        try:
            self.leave()
        except RunnerError as error:
            log.info("%s.left: %s", self.label, error)
        connection_of(self.engine).release()
