"""The consumers of Redis streams: worker threads that apply answers and starts.

A separate thread applies an answer at once, even while every slot is busy. The tasks
`runner.respond` and `runner.start` put their messages on the same streams, so there is only one way
in.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any, cast

from celery import Celery

from runner.celery.amqp import EARLY as EARLY_ON_AMQP
from runner.celery.amqp import AmqpMessages, publisher_of
from runner.celery.config import is_amqp, settings_of
from runner.celery.engines import bounds_of, connection_of
from runner.celery.messages import MessageHandler
from runner.celery.reader_slots import ReaderSlots
from runner.celery.threads import WorkerThread
from runner.errors import StoreError
from runner.execution.engine import Engine
from runner.operations.message_handlers import Disposition, HandlerResult, IncomingMessage
from runner.records.codec import JSON
from runner.records.validation import one_line
from runner.settings import Settings
from runner.store.redis.keys import Keys
from runner.store.redis.partitions import SharedStore, connections
from runner.store.redis.streams import EARLY, Entry, Outbox, StreamReader

log = logging.getLogger(__name__)

RETRY_AFTER = 1.0
"""Seconds before retrying an entry whose reader is gone or that the store refused."""


class StreamMessages:
    """Applies the entries of a server's streams, and acknowledges them."""

    def __init__(
        self, engine: Engine, settings: Settings, app: Celery | None = None, *, server: str = ""
    ) -> None:
        """Read the streams of one server.

        With the `app` of a worker on RabbitMQ, this includes answers that came over RabbitMQ before
        their question was asked. `server` is the URL of another server than the first; it has only
        early answers.
        """
        first_server = connection_of(engine)
        keys = Keys(settings.namespace)
        bounds = bounds_of(settings)
        self._handler = MessageHandler(engine, settings, EARLY)
        self._outbox = Outbox(first_server, settings.namespace, bounds)
        partitions = [
            address
            for address in settings.partition_addresses
            if address.url == (server or settings.first_url)
        ]
        early = [Keys(settings.namespace, address.partition) for address in partitions]
        streams = [] if server else [keys.responses, keys.starts]
        streams += [names.handed_early(EARLY) for names in early]
        self._amqp_early = frozenset(names.handed_early(EARLY_ON_AMQP) for names in early)
        if app is not None and is_amqp(settings.broker):
            streams += sorted(self._amqp_early)
            self._amqp = AmqpMessages(engine, settings, publisher_of(app))
        connection = connections(cast("SharedStore", engine.store))[partitions[0].number]
        self.stream_reader = StreamReader(connection, settings.namespace, streams, bounds)
        self._doors = (
            StreamReader(first_server, settings.namespace, bounds=bounds)
            if server
            else self.stream_reader
        )

    def apply(self, entry: Entry) -> bool:
        """Apply an entry; return False if the store refuses it for now, so it must be taken over."""
        message = IncomingMessage(entry.id, entry.key, entry.body)
        if entry.stream == self.stream_reader.keys.starts:
            return self._finish(entry, self._handler.start(message))
        if entry.stream == self.stream_reader.keys.responses:
            early = partial(_early_message, entry)
            return self._finish(entry, self._handler.answer(message, early))
        if entry.stream in self._amqp_early:
            is_done = all(self._amqp.apply_early(message) for message in entry.early)
        else:
            is_done = all(self._apply_early(_early_entry(message)) for message in entry.early)
        if is_done:
            self.stream_reader.done(entry)
        return is_done

    def _apply_early(self, entry: Entry) -> bool:
        """Apply an answer that the store has handed back, without storing it again."""
        result = self._handler.answer(IncomingMessage(entry.id, entry.key, entry.body), None)
        is_left = result is not None and result.disposition is Disposition.LEFT
        return not is_left and self._finish(entry, result)

    def _finish(self, entry: Entry, result: HandlerResult | None) -> bool:
        """Send the receipt or dead letter, then acknowledge; return False for a message to be retried."""
        if result is None:
            return False
        if result.disposition is Disposition.LEFT:
            return True  # taking it over again would only keep it from a process that can
        # The receipt goes first: an acknowledged message is not read again.
        if result.receipt is not None and result.reply_to is not None:
            self._outbox.reply(result.reply_to, result.receipt.dump())
        if result.disposition is Disposition.DEAD:
            log.warning(
                "message.dead: %s %s: %s", entry.stream, entry.id, one_line(result.reason)
            )
            self._doors.write_dead_letter(entry, result.reason)
        else:
            self._doors.done(entry)
        return True


def _early_message(entry: Entry) -> JSON:
    # Fields may hold any bytes: each byte becomes one character.
    fields = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in entry.fields.items()
    }
    return {"stream": entry.stream, "id": entry.id, "fields": fields}


def _early_entry(message: Any) -> Entry:
    fields = {
        name.encode("latin-1"): value.encode("latin-1")
        for name, value in message["fields"].items()
    }
    return Entry(message["stream"], message["id"], fields)


class StreamConsumer(WorkerThread):
    """Reads the streams while it has a reader slot, and applies each message."""

    label = "responses"

    def prepare(self, worker: Any) -> None:
        """Open the streams; nothing is connected yet."""
        settings = self.settings
        self.messages = StreamMessages(self.engine, settings, worker and worker.app)
        self._slots = ReaderSlots(self.engine, settings, "read", self.stopping)

    def run_once(self) -> None:
        """Apply entries that other readers left, then new messages until the slot lapses."""
        lapses = self._slots.acquire()
        stream_reader = self.messages.stream_reader
        if not lapses:
            return
        entries = stream_reader.take_over(RETRY_AFTER)
        while True:
            refusals = [entry for entry in entries if not self.messages.apply(entry)]
            if refusals:
                lapses = min(lapses, time.monotonic() + RETRY_AFTER)
            remaining = lapses - time.monotonic()
            if remaining <= 0 or self.stopping.is_set():
                return
            entries = stream_reader.read(remaining, is_stopping=self.stopping.is_set)


class EarlyAnswerConsumer(WorkerThread):
    """Applies early answers handed back by servers other than the first; one worker does this at a time."""

    label = "early"

    def include_if(self, worker: Any) -> bool:
        """Return whether there is a server besides the first."""
        return len({address.url for address in settings_of(worker.app).partition_addresses}) > 1

    def prepare(self, worker: Any) -> None:
        """Open the streams; nothing is connected yet."""
        settings = self.settings
        urls = dict.fromkeys(address.url for address in settings.partition_addresses)
        self._servers = [
            StreamMessages(self.engine, settings, worker.app, server=url)
            for url in urls
            if url != settings.first_url
        ]
        self._slots = ReaderSlots(self.engine, settings, self.label, self.stopping)

    def run_once(self) -> None:
        """Apply entries that other readers left, then new ones until the slot lapses."""
        lapses = self._slots.acquire()
        if not lapses:
            return
        self._apply_new(None)
        while (remaining := lapses - time.monotonic()) > 0 and not self.stopping.is_set():
            if not self._apply_new(min(remaining, RETRY_AFTER / len(self._servers))):
                return

    def _apply_new(self, wait: float | None) -> bool:
        """Apply each server's entries; return False if the store refuses one.

        It reads new entries for `wait` seconds, or with None takes over unacknowledged ones.

        Raises:
            StoreError: a server is away; every entry of the others was applied.
        """
        is_done, away = True, None
        for messages in self._servers:
            try:
                if wait is None:
                    entries = messages.stream_reader.take_over(RETRY_AFTER)
                else:
                    entries = messages.stream_reader.read(
                        wait, is_stopping=self.stopping.is_set
                    )
                for entry in entries:
                    is_done &= messages.apply(entry)
            except StoreError as error:
                away = error
        if away is not None:
            raise away
        return is_done
