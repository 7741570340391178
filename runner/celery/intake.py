"""Answers and starts that come on streams of Redis, applied by a thread of the worker.

A thread of its own applies an answer at once, also while every slot is busy. The tasks `runner.respond`
and `runner.start` put their messages on the same streams, so that there is one way in.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from celery import Celery

from runner.celery.amqp import EARLY as EARLY_ON_AMQP
from runner.celery.amqp import AmqpMessages, publisher_of
from runner.celery.background import Background
from runner.celery.config import is_amqp
from runner.celery.engines import connection_of
from runner.celery.messages import is_away, keeper_of
from runner.celery.seats import Seats
from runner.errors import ConflictError, StoreError
from runner.execution.engine import Engine
from runner.operations.inbox import Disposition, InboxMessage, Verdict, judge_answer, judge_start
from runner.records.codec import JSON
from runner.records.validation import one_line
from runner.settings import Settings
from runner.store.redis.keys import Keys
from runner.store.redis.streams import EARLY, Entry, Intake, Outbox

log = logging.getLogger(__name__)

RETRY_AFTER = 1.0
"""Seconds after which an entry is tried again: its reader is gone, or the store refused it."""


class StreamMessages:
    """Applies what comes on the streams, and lets it go."""

    def __init__(self, engine: Engine, settings: Settings, app: Celery | None = None) -> None:
        """With the app of a worker on RabbitMQ also what came there before its question was asked."""
        self._engine, self._settings = engine, settings
        connection, keys = connection_of(engine), Keys(settings.namespace)
        self._outbox = Outbox(connection, settings.namespace)
        streams = [keys.responses, keys.starts, keys.handed_early(EARLY)]
        if app is not None and is_amqp(settings.broker):
            streams.append(keys.handed_early(EARLY_ON_AMQP))
            self._amqp = AmqpMessages(engine, settings, publisher_of(app))
        self.intake = Intake(connection, settings.namespace, streams)

    def apply(self, entry: Entry) -> bool:
        """Apply an entry; False where the store refuses it for now, and it has to be taken over."""
        keys = self.intake.keys
        if entry.stream == keys.handed_early(EARLY_ON_AMQP):
            applied = all(self._amqp.apply_early(message) for message in entry.early)
        elif entry.stream == keys.handed_early(EARLY):
            answers = [_entry_of(message) for message in entry.early]
            applied = all(self._apply_one(answer, keep=False) for answer in answers)
        else:
            return self._apply_one(entry, keep=True)
        if applied:
            self.intake.done(entry)
        return applied

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
            self.intake.write_dead_letter(entry, verdict.reason)
        else:
            self.intake.done(entry)
        return True

    def _judge(self, entry: Entry, *, keep: bool) -> Verdict:
        message = InboxMessage(entry.id, entry.key, entry.body)
        if entry.stream == self.intake.keys.starts:
            return judge_start(self._engine, message, self._settings.on_end)
        kept = partial(_message_of, entry)
        keeper = keeper_of(self._engine, self._settings, EARLY, kept) if keep else None
        return judge_answer(self._engine, message, keeper)


def _message_of(entry: Entry) -> JSON:
    # Fields may have any bytes: each becomes one character.
    fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in entry.fields.items()}
    return {"stream": entry.stream, "id": entry.id, "fields": fields}


def _entry_of(message: Any) -> Entry:
    fields = {name.encode("latin-1"): value.encode("latin-1") for name, value in message["fields"].items()}
    return Entry(message["stream"], message["id"], fields)


class StreamIntake(Background):
    """Reads the streams while it has a seat, and applies each message."""

    label = "responses"

    def prepare(self, worker: Any) -> None:
        """Open the streams; nothing is connected yet."""
        settings = self.settings
        self.messages = StreamMessages(self.engine, settings, worker and worker.app)
        self._seats = Seats(
            connection_of(self.engine), settings.namespace, "read", settings.sweep_interval, self.stopping
        )

    def turn(self) -> None:
        """Apply what other readers have left, then new messages until the seat is over."""
        ends, intake = self._seats.take(), self.messages.intake
        if not ends:
            return
        entries = intake.take_over(RETRY_AFTER)
        while True:
            refused = [entry for entry in entries if not self.messages.apply(entry)]
            if refused:
                ends = min(ends, time.monotonic() + RETRY_AFTER)
            left = ends - time.monotonic()
            if left <= 0 or self.stopping.is_set():
                return
            entries = intake.read(left, is_stopping=self.stopping.is_set)
