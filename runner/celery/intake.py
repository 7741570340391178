"""Answers and starts that come on streams of Redis, applied by a thread of the worker.

A thread of its own applies an answer at once, also while every slot is busy. The tasks `runner.respond`
and `runner.start` put their messages on the same streams, so that there is one way in.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any, cast

from celery import Celery

from runner.celery.amqp import EARLY as EARLY_ON_AMQP
from runner.celery.amqp import AmqpMessages, publisher_of
from runner.celery.background import Background
from runner.celery.config import is_amqp, settings_of
from runner.celery.engines import bounds_of, connection_of
from runner.celery.messages import is_away, keeper_of
from runner.celery.seats import Seats
from runner.errors import ConflictError, StoreError
from runner.execution.engine import Engine
from runner.operations.inbox import Disposition, InboxMessage, Verdict, judge_answer, judge_start
from runner.records.codec import JSON
from runner.records.validation import one_line
from runner.settings import Settings
from runner.store.redis.keys import Keys
from runner.store.redis.partitions import SharedStore, connections
from runner.store.redis.streams import EARLY, Entry, Intake, Outbox

log = logging.getLogger(__name__)

RETRY_AFTER = 1.0
"""Seconds after which an entry is tried again: its reader is gone, or the store refused it."""


class StreamMessages:
    """Applies what comes on the streams of a server, and lets it go."""

    def __init__(
        self, engine: Engine, settings: Settings, app: Celery | None = None, *, server: str = ""
    ) -> None:
        """With the app of a worker on RabbitMQ also what came there before its question was asked.

        `server` is the URL of another one than the first: there are early answers only.
        """
        self._engine, self._settings = engine, settings
        first, keys = connection_of(engine), Keys(settings.namespace)
        bounds = bounds_of(settings)
        self._outbox = Outbox(first, settings.namespace, bounds)
        own = [place for place in settings.places if place.url == (server or settings.first_url)]
        early = [Keys(settings.namespace, place.partition) for place in own]
        streams = [] if server else [keys.responses, keys.starts]
        streams += [names.handed_early(EARLY) for names in early]
        self._amqp_early = frozenset(names.handed_early(EARLY_ON_AMQP) for names in early)
        if app is not None and is_amqp(settings.broker):
            streams += sorted(self._amqp_early)
            self._amqp = AmqpMessages(engine, settings, publisher_of(app))
        connection = connections(cast("SharedStore", engine.store))[own[0].number]
        self.intake = Intake(connection, settings.namespace, streams, bounds)
        self._doors = Intake(first, settings.namespace, bounds=bounds) if server else self.intake

    def apply(self, entry: Entry) -> bool:
        """Apply an entry; False where the store refuses it for now, and it has to be taken over."""
        keys = self.intake.keys
        if entry.stream in self._amqp_early:
            applied = all(self._amqp.apply_early(message) for message in entry.early)
        elif entry.stream not in {keys.responses, keys.starts}:
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
            if is_away(error, self._settings):
                raise
            log.info("message.later: %s %s: %s", entry.stream, entry.id, one_line(error))
            return False
        except Exception as error:
            # Whatever it is, it must not keep the messages behind it waiting.
            log.exception("message.failed: %s %s goes to the dead letters.", entry.stream, entry.id)
            verdict = Verdict(Disposition.DEAD, reason=f"it could not be applied: {error!r}")
        # The receipt first: a message that is acknowledged is not read again.
        if verdict.receipt is not None and verdict.reply_to is not None:
            self._outbox.reply(verdict.reply_to, verdict.receipt.dump())
        if verdict.disposition is Disposition.DEAD:
            log.warning("message.dead: %s %s: %s", entry.stream, entry.id, one_line(verdict.reason))
            self._doors.write_dead_letter(entry, verdict.reason)
        else:
            self._doors.done(entry)
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
    fields = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in entry.fields.items()
    }
    return {"stream": entry.stream, "id": entry.id, "fields": fields}


def _entry_of(message: Any) -> Entry:
    fields = {
        name.encode("latin-1"): value.encode("latin-1") for name, value in message["fields"].items()
    }
    return Entry(message["stream"], message["id"], fields)


class StreamIntake(Background):
    """Reads the streams while it has a seat, and applies each message."""

    label = "responses"

    def prepare(self, worker: Any) -> None:
        """Open the streams; nothing is connected yet."""
        settings = self.settings
        self.messages = StreamMessages(self.engine, settings, worker and worker.app)
        self._seats = Seats(
            connection_of(self.engine),
            settings.namespace,
            "read",
            settings.sweep_interval,
            self.stopping,
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


class EarlyAnswers(Background):
    """Reads the early answers that other servers than the first hand back; one at a time has a seat."""

    label = "early"

    def include_if(self, worker: Any) -> bool:
        """Return whether there are such servers."""
        return len({place.url for place in settings_of(worker.app).places}) > 1

    def prepare(self, worker: Any) -> None:
        """Open the streams; nothing is connected yet."""
        settings = self.settings
        others = dict.fromkeys(
            place.url for place in settings.places if place.url != settings.first_url
        )
        self._servers = [
            StreamMessages(self.engine, settings, worker.app, server=url) for url in others
        ]
        self._seats = Seats(
            connection_of(self.engine),
            settings.namespace,
            self.label,
            settings.sweep_interval,
            self.stopping,
        )

    def turn(self) -> None:
        """Apply what other readers have left, then what comes until the seat is over."""
        ends = self._seats.take()
        if not ends:
            return
        self._apply_new(None)
        while (left := ends - time.monotonic()) > 0 and not self.stopping.is_set():
            if not self._apply_new(min(left, RETRY_AFTER / len(self._servers))):
                return

    def _apply_new(self, wait: float | None) -> bool:
        """Apply what comes within so many seconds; None: what is left over. False where something is refused.

        Raises:
            StoreError: a server is away; of the others everything was applied.
        """
        applied, failed = True, None
        for messages in self._servers:
            try:
                if wait is None:
                    entries = messages.intake.take_over(RETRY_AFTER)
                else:
                    entries = messages.intake.read(wait, is_stopping=self.stopping.is_set)
                for entry in entries:
                    applied &= messages.apply(entry)
            except StoreError as error:
                failed = error
        if failed is not None:
            raise failed
        return applied
