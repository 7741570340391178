"""A worker's threads beside its nodes: the sweeper, which also seals the audit and serves webhooks, and the
archiver.

Each is a thread of the worker's own process, so it goes on while every slot is busy, on every pool.
No error ends a thread: the error is logged once, and the thread tries again. Every worker sweeps,
so nothing needs a leader; `SingletonLocks` lets one worker at a time do work that a fleet needs
only once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from celery import bootsteps

from runner.audit.sealing import Sealing, sealing_policy
from runner.celery.config import settings_of
from runner.celery.engines import connection_of, engine_of, pushes
from runner.errors import RunnerError
from runner.execution.engine import Engine
from runner.operations.archiving import ArchivableStore, Archiving
from runner.settings import Settings
from runner.store.archive import open_archive
from runner.store.redis.partitions import SharedStore, wake_keys
from runner.store.redis.singleton_locks import SingletonLocks
from runner.store.redis.streams import SweepRequests
from runner.store.shared import Shared
from runner.webhooks.delivery import WebhookSender

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two tries while the store is away."""

ENDS_WITHIN = 5.0
"""Seconds that a stopping worker waits for a thread; others can take over everything it holds."""


class WorkerThread(bootsteps.StartStopStep):
    """A thread that lives from the start of the worker's pool to its end. A subclass defines `run_once`."""

    requires = ("celery.worker.components:Pool",)
    engine: Engine
    settings: Settings

    def __init__(self, worker: Any, **options: Any) -> None:
        """Prepare the thread; nothing runs before `start`."""
        super().__init__(worker, **options)
        self.stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, worker: Any) -> None:
        self.engine = engine_of(worker.app)
        self.settings = settings_of(worker.app)
        self.prepare(worker)
        self._thread = threading.Thread(
            target=self._run, name=f"runner-{self.label}", daemon=True
        )
        self._thread.start()

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery's signature
        """End the thread; harmless before the start, or when called twice."""
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(ENDS_WITHIN)

    terminate = stop

    def prepare(self, worker: Any) -> None:
        """Prepare for `run_once`; called in the worker's main thread."""

    def run_once(self) -> None:
        """Do the work once. Called until the worker stops; it may call `finish` when all work is done."""
        raise NotImplementedError

    def release(self) -> None:
        """Release the thread's resources."""

    def finish(self) -> None:
        """End the thread after this call of `run_once`."""
        self.stopping.set()

    def _run(self) -> None:
        waiting = False
        while not self.stopping.is_set():
            try:
                self.run_once()
            except RunnerError as error:
                if not waiting:
                    log.warning(
                        "%s.waits: %s Trying again every %g s.", self.label, error, PAUSE
                    )
                waiting = True
                self.stopping.wait(PAUSE)
            except Exception:
                log.exception(
                    "%s.failed: the worker goes on and tries again; please report this.",
                    self.label,
                )
                self.stopping.wait(PAUSE)
            else:
                if waiting:
                    log.warning("%s.resumed: the store is back.", self.label)
                waiting = False
        try:
            self.release()
        except RunnerError as error:
            log.info("%s.left: %s", self.label, error)
        connection_of(self.engine).release()


def jittered(seconds: float) -> float:
    """Return about so many seconds, so that the workers of a fleet don't all ask at once."""
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - jitter is no secret


BATCH = 50
"""Timers handled in one sweep, which blocks the store for a few milliseconds."""

SWEEP_APART = 0.25
"""Seconds between two sweeps of a fleet, however many workers it has."""

AT_ONCE = 20
"""The most sweeps in a row that find less than a batch due; a run that stops cancels 500 nodes in each."""


SAMPLE_EVERY = 60.0
"""Seconds between two samples of the metrics, for charts."""


class Sweeper(WorkerThread):
    """Sweeps every RUNNER_SWEEP_INTERVAL seconds, and again at once while timers are due.

    It also seals the audit, samples the metrics, and starts the threads of webhooks that a sweep finds.
    A worker that asks right after another's sweep doesn't sweep. Programs that can't ring the
    queue (because the broker is not the store) request a sweep.
    """

    label = "sweeper"
    _sample_at = 0.0

    def prepare(self, worker: Any) -> None:
        """Prepare the sweeps, and listen for requests from programs that can't ring."""
        redis = connection_of(self.engine)
        self._locks = SingletonLocks(redis, self.settings.namespace)
        self._requests = (
            None
            if pushes(worker.app, self.settings)
            else SweepRequests(redis, wake_keys(self.settings))
        )
        self._is_requested = False
        self._sealer = Sealer(self.engine, self.settings)
        self._shared = Shared(self.settings)
        self._webhooks = WebhookThreads(self.engine, self.settings, self.stopping.is_set)
        self.engine.fire = {**self.engine.fire, "webhook": self._webhooks.begin}

    def release(self) -> None:
        """Wait for the threads of webhooks."""
        self._webhooks.join()

    def run_once(self) -> None:
        """Apply due timers, seal the audit, take a sample of the metrics if it is due, then pause."""
        if self._is_requested or self._locks.acquire("sweep", SWEEP_APART):
            small_sweeps = 0
            while small_sweeps < AT_ONCE and (count := self.engine.sweep(BATCH)):
                small_sweeps += count < BATCH
                if self.stopping.is_set():
                    break
        self._sealer.seal(self.stopping.is_set)
        if time.monotonic() >= self._sample_at:
            self._sample_at = time.monotonic() + SAMPLE_EVERY
            if self._locks.acquire("sample", SAMPLE_EVERY * 0.9):
                self._shared.take_sample()
                self._shared.release(runs=True)
        pause = jittered(self.settings.sweep_interval)
        if self._requests is None:
            self.stopping.wait(pause)
        else:
            self._is_requested = self._requests.wait(pause, self.stopping.is_set)


SEALING = 10.0
"""Seconds for which only one worker may seal."""


def check_audit(settings: Settings) -> None:
    """Check that the audit can be signed and anchored as the settings say, without connecting.

    Raises:
        UsageError: the audit can't be signed or anchored so.
    """
    if settings.audit != "off":
        sealing_policy(settings)


class Sealer:
    """Seals the audit of each partition when due, unless another worker just did."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Open the audit logs and the archive; nothing is connected yet.

        Raises:
            UsageError: the audit can't be signed or anchored as the settings say.
        """
        self._every = settings.audit_seal
        self._due = 0.0
        self._locks = SingletonLocks(connection_of(engine), settings.namespace)
        self._sealing: list[Sealing] = []
        if settings.audit != "off":
            archive = open_archive(settings.archive) if settings.archive else None
            conditions = sealing_policy(settings, archive)
            self._sealing = [
                Sealing(audit, conditions)
                for audit in cast("SharedStore", engine.store).audit_logs
            ]

    def seal(self, is_stopping: Callable[[], bool]) -> None:
        """Seal if it is time."""
        if not self._sealing or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._every
        # Each round begins with another partition, since one that can't be reached ends the round.
        self._sealing.append(self._sealing.pop(0))
        if all(sealing.is_idle() for sealing in self._sealing):
            return
        if self._locks.acquire("seal", min(SEALING, self._every * 0.9)):
            for sealing in self._sealing:
                while sealing.run_once() and not is_stopping():
                    continue


WEBHOOKS_END_WITHIN = 2.0
"""Seconds that a stopping worker waits for the threads of webhooks; another process resends the rest."""


class WebhookThreads:
    """The threads in which a process serves webhooks, one for each webhook.

    The sweep finds a webhook's timer and begins a thread unless this process has one. A thread that
    finds that another process serves the webhook ends at once.
    """

    def __init__(
        self, engine: Engine, settings: Settings, is_stopping: Callable[[], bool]
    ) -> None:
        """Keep the sender; nothing is connected yet."""
        self._is_stopping = is_stopping
        self._shared = Shared(settings)
        self._sender = WebhookSender(engine.store, self._shared)
        self._threads: dict[str, threading.Thread] = {}

    def begin(self, webhook_id: str) -> None:
        """Serve a webhook, unless a thread already does."""
        running = {name: thread for name, thread in self._threads.items() if thread.is_alive()}
        if webhook_id not in running:
            name = f"runner-webhook-{webhook_id}"
            thread = threading.Thread(
                target=self._serve, args=[webhook_id], name=name, daemon=True
            )
            running[webhook_id] = thread
            thread.start()
        self._threads = running

    def join(self) -> None:
        """Wait briefly for the threads, which see that the worker stops."""
        ends = time.monotonic() + WEBHOOKS_END_WITHIN
        for thread in self._threads.values():
            thread.join(max(0, ends - time.monotonic()))

    def _serve(self, webhook_id: str) -> None:
        try:
            self._sender.serve(webhook_id, self._is_stopping)
        except RunnerError as error:
            log.warning("webhook.waits: %s It is tried again after a lease.", error)
        except Exception:
            log.exception(
                "webhook.failed: %r is tried again after a lease; please report this.",
                webhook_id,
            )
        finally:
            self._shared.release()


ARCHIVE_SWEEPS = 10
"""Sweep intervals between two searches for ended runs; a small batch waits as long for more runs."""

ARCHIVE_APART = 0.25
"""The fraction of that time during which a second worker of a fleet doesn't search."""


def check_archive(settings: Settings) -> None:
    """Check that the archive can be opened, without connecting.

    Raises:
        UsageError: a package for it is not installed.
    """
    if settings.archive:
        open_archive(settings.archive)


class Archiver(WorkerThread):
    """Writes ended runs to the archive of RUNNER_ARCHIVE, unless another worker just looked for them."""

    label = "archiver"

    def include_if(self, worker: Any) -> bool:
        """Return whether an archive is configured."""
        return bool(settings_of(worker.app).archive)

    def prepare(self, worker: Any) -> None:  # noqa: ARG002 - as declared
        """Open the archive, without connecting."""
        settings = self.settings
        self._pause = ARCHIVE_SWEEPS * settings.sweep_interval
        self._locks = SingletonLocks(connection_of(self.engine), settings.namespace)
        self._archiving = Archiving(
            cast("ArchivableStore", self.engine.store),
            open_archive(settings.archive),
            pause=self._pause,
            hold=settings.archive_hold,
        )

    def run_once(self) -> None:
        """Archive waiting runs batch by batch, then pause."""
        problem_before = self._archiving.problem
        if self._locks.acquire("archive", ARCHIVE_APART * self._pause):
            while self._archiving.run_once() and not self.stopping.is_set():
                continue
        problem = self._archiving.problem
        if problem and not problem_before:
            log.error(
                "archive.fails: %s Ended runs stay in the store, for RUNNER_ARCHIVE_HOLD at most. See "
                "`runner doctor`.",
                problem,
            )
        elif problem_before and not problem:
            log.warning("archive.resumed: ended runs are archived again.")
        self.stopping.wait(jittered(self._pause))
