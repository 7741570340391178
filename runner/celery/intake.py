"""Answers and starts that come on streams of Redis, applied by a thread of the worker.

A thread of its own applies an answer at once, also while every slot is busy. The tasks `runner.respond`
and `runner.start` put their messages on the same streams, so that there is one way in.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from runner.celery.background import Background
from runner.celery.engines import outbox_of
from runner.errors import ConflictError, StoreError
from runner.execution import ids
from runner.execution.engine import Engine
from runner.operations.inbox import Disposition, InboxMessage, Keep, Verdict, judge_answer, judge_start
from runner.records.codec import JSON
from runner.records.validation import one_line
from runner.settings import Settings
from runner.store.redis.store import RedisStore
from runner.store.redis.streams import EARLY, Entry, Intake

log = logging.getLogger(__name__)

WAIT = 1.0
"""Seconds of one blocking read, and so the longest that a stopping worker waits for this thread."""

RETRY_AFTER = 1.0
"""Seconds after which an entry is tried again: its reader is gone, or the store refused it."""

FORGET_EVERY = 60.0
"""Seconds between two looks for readers that are gone, by all workers together."""

FORGET_AFTER = 60.0
"""Seconds without a sign of life after which a reader's name is removed."""


class StreamIntake(Background):
    """Reads the streams and applies each message."""

    label = "responses"

    def prepare(self, worker: Any) -> None:  # noqa: ARG002 - as declared in Background
        """Join the consumer group under a name that no other reader has."""
        self._intake = Intake(self.settings.redis_url, reader_name(), self.settings.namespace)
        self._outbox = outbox_of(self.settings)
        self._retry_at = 0.0

    def turn(self) -> None:
        """Apply new messages, and every second those that were left over."""
        for entry in self._intake.read(WAIT):
            self._apply(entry)
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + RETRY_AFTER
            for entry in self._intake.take_over(RETRY_AFTER):
                self._apply(entry)
            self._intake.forget(FORGET_AFTER, every=FORGET_EVERY)

    def leave(self) -> None:
        """Take this reader's name off the group."""
        self._intake.leave()

    def _apply(self, entry: Entry) -> None:
        if entry.stream != self._intake.early:
            self._apply_one(entry, keep=True)
            return
        answers = [_entry_of(message) for message in entry.early]
        if all(self._apply_one(answer, keep=False) for answer in answers):
            self._intake.done(entry)

    def _apply_one(self, entry: Entry, *, keep: bool) -> bool:
        """Apply one message, and let it go; False where the store refuses it for now."""
        try:
            verdict = self._judge(entry, keep=keep)
        except (StoreError, ConflictError) as error:
            if is_away(error):
                raise
            log.info("message.later: %s %s: %s", entry.stream, entry.id, one_line(error))
            return False
        except Exception as error:
            # Whatever it is, it must not keep the messages behind it waiting.
            log.exception("message.failed: %s %s goes to the dead letters.", entry.stream, entry.id)
            verdict = Verdict(Disposition.DEAD, reason=f"it could not be applied: {error!r}")
        # The receipt first: a message that is acknowledged is not read again.
        if verdict.receipt is not None and verdict.reply_to is not None:
            self._outbox.reply(verdict.reply_to, verdict.receipt.model_dump_json().encode())
        if verdict.disposition is Disposition.DEAD:
            log.warning("message.dead: %s %s: %s", entry.stream, entry.id, one_line(verdict.reason))
            self._intake.write_dead_letter(entry, verdict.reason)
        else:
            self._intake.done(entry)
        return True

    def _judge(self, entry: Entry, *, keep: bool) -> Verdict:
        message = InboxMessage(entry.id, entry.key, entry.body)
        if entry.stream == self._intake.keys.starts:
            return judge_start(self.engine, message, self.settings.on_end)
        keeper = keeper_of(self.engine, self.settings, EARLY, partial(_message_of, entry)) if keep else None
        return judge_answer(self.engine, message, keeper)


def _message_of(entry: Entry) -> JSON:
    # Fields may have any bytes: each becomes one character.
    fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in entry.fields.items()}
    return {"stream": entry.stream, "id": entry.id, "fields": fields}


def _entry_of(message: Any) -> Entry:
    fields = {name.encode("latin-1"): value.encode("latin-1") for name, value in message["fields"].items()}
    return Entry(message["stream"], message["id"], fields)


def keeper_of(engine: Engine, settings: Settings, door: str, message: Callable[[], JSON]) -> Keep | None:
    """Return what keeps a message of a door for its question; None where none is kept."""
    store, seconds = engine.store, settings.early_answer
    if not isinstance(store, RedisStore) or not seconds:
        return None
    return lambda interrupt_id: store.keep_early(interrupt_id, door, message(), seconds)


def reader_name() -> str:
    """Return a new name for a reader of a consumer group; host and process are for people."""
    return f"{socket.gethostname()}-{os.getpid()}-{ids.nonce()}"


def is_away(error: Exception) -> bool:
    """Return whether nothing can be applied now; otherwise the store refuses this one message.

    Such a message is tried again, since people may remove the cause; those behind it don't wait.
    """
    return isinstance(error, StoreError) and error.passing
