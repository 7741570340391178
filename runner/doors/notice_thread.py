"""Follows the notices of questions for a door, in a thread of one server process at a time."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from runner.errors import CorruptDocument, RunnerError, StoreError, needs_extra
from runner.records.notices import Notice

with needs_extra("server", "a door of the server"):
    from fastapi import FastAPI
    from fastapi.concurrency import run_in_threadpool

    from runner.server.services import Services

log = logging.getLogger(__name__)

LOOK, PAUSE, RETRY = 1.0, 5.0, 30.0
"""Seconds to wait for new notices, before continuing after a failure, and before handling an
unfinished notice again."""

LOCK_MS = 90_000
"""Ms for which a process holds the lock without renewal: longer than one notice may take."""

BATCH = 100

LEAVES_WITHIN = 3.0
"""Seconds for which a stopping server waits for the thread."""


class Unavailable(Exception):
    """An outage of the door's service: the notice is handled again after `pause` s or later."""

    def __init__(self, detail: str, pause: float = 0) -> None:
        super().__init__(detail)
        self.pause = pause


class NoticeThread:
    """Handles the notices of questions for a door.

    `handle` gets a question's id, a function that keeps the lock or returns False if another process
    has it, and the number of the reminder that is due, or 0. It returns whether the notice is done;
    if not, it gets the notice again. `between` is called between notices, with the function that keeps
    the lock. The group and the lock are `door:` and the door's name: no webhook's id has a colon.
    """

    def __init__(
        self,
        services: Services,
        door: str,
        handle: Callable[[str, Callable[[], bool], int], bool],
        between: Callable[[Callable[[], bool]], object] = lambda _: None,
        *,
        retry: float | None = None,
        lock_ms: int = LOCK_MS,
    ) -> None:
        """Keep the settings, without connecting."""
        self._services, self._door = services, door
        self._handle, self._between = handle, between
        self.group = f"door:{door}"
        self._holder = secrets.token_hex(8)
        self._lock_ms = lock_ms
        self._retry = RETRY if retry is None else retry

    def listen(self) -> None:
        """Keep new notices until they are handled; raise StoreError if Redis is unavailable."""
        try:
            self._services.notice_groups.listen(self.group)
        finally:
            self._services.notice_groups.release()

    def hold(self) -> bool:
        """Take or keep the lock; return False if another process has it."""
        return self._services.deliveries.hold(self.group, self._holder, self._lock_ms)

    def follow(self, stopping: threading.Event) -> None:
        """Handle notices until the process stops, or wait while another process handles them."""
        try:
            while not stopping.is_set():
                pause = PAUSE
                try:
                    if self.hold():
                        self._consume(stopping)
                except (RunnerError, Unavailable) as error:
                    if isinstance(error, Unavailable):
                        pause = max(pause, error.pause)
                    log.warning(
                        "%s.failed: %s It is retried in %g s.", self._door, error, pause
                    )
                except Exception:
                    log.exception("%s.failed: a notice is handled again later.", self._door)
                stopping.wait(pause)
            self._services.deliveries.release(self.group, self._holder)
        except StoreError as error:
            log.info(
                "%s.left: %s Another process takes over in a few seconds.", self._door, error
            )
        finally:
            self._services.release(runs=True)

    def _consume(self, stopping: threading.Event) -> None:
        self.listen()
        readers = self._services.notice_groups.readers(self.group)
        try:
            while not stopping.is_set() and self.hold():
                for reader in readers:
                    # Unfinished notices and notices of a dead process come first.
                    notices = reader.take_over(self._retry, BATCH) or reader.read(
                        LOOK / len(readers), BATCH, stopping.is_set
                    )
                    for notice in notices:
                        if stopping.is_set() or not self.hold():
                            return
                        if not notice.kind.startswith("interrupt.") or self._is_done(notice):
                            reader.done([notice])
                self._between(self.hold)
        finally:
            for reader in readers:
                reader.close()

    def _is_done(self, notice: Notice) -> bool:
        """Handle a question; log one that can't be handled, so that it doesn't block others."""
        try:
            return self._handle(notice.detail, self.hold, notice.reminded)
        except Exception as error:
            is_passing = isinstance(error, (RunnerError, Unavailable, OSError))
            if is_passing and not isinstance(error, CorruptDocument):
                raise
            log.exception(
                "%s.refused: The question %s can be decided only on its page; please report this.",
                self._door,
                notice.detail,
            )
            return True

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run the thread while an application runs."""
        stopping = threading.Event()
        name = f"runner-{self._door}"
        thread = threading.Thread(target=self.follow, args=[stopping], name=name, daemon=True)
        with suppress(StoreError):  # the thread tries again
            await run_in_threadpool(self.listen)
        thread.start()
        yield
        stopping.set()
        await run_in_threadpool(thread.join, LEAVES_WITHIN)
