"""Following the notices of questions for a door: a thread of one server process at a time handles each."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from runner.errors import CorruptDocument, RunnerError, StoreError, needs_extra

with needs_extra("server", "a door of the server"):
    from fastapi import FastAPI
    from fastapi.concurrency import run_in_threadpool

    from runner.server.services import Services

log = logging.getLogger(__name__)

LOOK, PAUSE, RETRY = 1.0, 5.0, 30.0
"""Seconds for which new notices are waited for, after which the thread goes on after a failure, and after
which a notice that was not done is handled again."""

LOCK_MS = 90_000
"""Ms for which a process handles notices alone without saying so again: longer than one may take."""

BATCH = 100

LEAVES_WITHIN = 3.0
"""Seconds that a server which stops waits for the thread."""


class Unavailable(Exception):
    """The service that the door writes to is away: its notice is handled again, after `pause` s or later."""

    def __init__(self, detail: str, pause: float = 0) -> None:
        super().__init__(detail)
        self.pause = pause


class NoticeThread:
    """Handles the notices of questions for a door.

    `handle` gets a question's id, and what keeps the lock, False where another process has it. It returns
    whether the notice is done; if not, it gets it again. `door` names the group and the lock: no webhook has
    a colon in its id.
    """

    def __init__(
        self,
        services: Services,
        door: str,
        handle: Callable[[str, Callable[[], bool]], bool],
        *,
        retry: float | None = None,
        lock_ms: int = LOCK_MS,
    ) -> None:
        """Nothing is connected yet."""
        self._services, self._door, self._handle = services, door, handle
        self.group = f"door:{door}"
        self._holder, self._lock_ms = secrets.token_hex(8), lock_ms
        self._retry = RETRY if retry is None else retry

    def listen(self) -> None:
        """Keep the notices that come from now on until they are handled; StoreError where Redis is away."""
        try:
            self._services.notice_groups.listen(self.group)
        finally:
            self._services.notice_groups.release()

    def hold(self) -> bool:
        """Take or keep the lock; False where another process has it."""
        return self._services.deliveries.hold(self.group, self._holder, self._lock_ms)

    def follow(self, stopping: threading.Event) -> None:
        """Handle notices until the process stops, or else wait while another process does."""
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
                        "%s.failed: %s It is tried again in %g s.", self._door, error, pause
                    )
                except Exception:
                    log.exception("%s.failed: a notice is handled again later.", self._door)
                stopping.wait(pause)
            self._services.deliveries.release(self.group, self._holder)
        except StoreError as error:
            log.info(
                "%s.left: %s Another process takes over in some seconds.", self._door, error
            )
        finally:
            self._services.release(runs=True)

    def _consume(self, stopping: threading.Event) -> None:
        self.listen()
        readers = self._services.notice_groups.readers(self.group)
        try:
            while not stopping.is_set() and self.hold():
                for reader in readers:
                    # First what was not done, or left by a process that died with it in hand.
                    notices = reader.take_over(self._retry, BATCH) or reader.read(
                        LOOK / len(readers), BATCH, stopping.is_set
                    )
                    for notice in notices:
                        if stopping.is_set() or not self.hold():
                            return
                        is_ours = notice.kind.startswith("interrupt.")
                        if not is_ours or self._is_done(notice.detail):
                            reader.done([notice])
        finally:
            for reader in readers:
                reader.close()

    def _is_done(self, question_id: str) -> bool:
        """Handle a question; one that can't be handled is in the log, and holds no other back."""
        try:
            return self._handle(question_id, self.hold)
        except Exception as error:
            is_passing = isinstance(error, (RunnerError, Unavailable, OSError))
            if is_passing and not isinstance(error, CorruptDocument):
                raise
            log.exception(
                "%s.refused: The question %s is only on its page; please report this.",
                self._door,
                question_id,
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
