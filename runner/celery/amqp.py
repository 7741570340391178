"""RabbitMQ: durable queues that take answers and starts as plain JSON, and an exchange for notices.

A message is acknowledged only after it was applied; an unusable one goes to the dead-letter
exchange with the reason. Each direction has a thread and a connection, so messages are applied and
published at once, even while every slot is busy, and on every pool.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pydantic_core
from amqp.exceptions import MessageNacked
from celery import Celery
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue

from runner.celery.config import BROKEN, CONNECT, broker_errors, is_amqp, settings_of
from runner.celery.engines import bounds_of, connection_of
from runner.celery.messages import MessageHandler
from runner.celery.reader_slots import ReaderSlots
from runner.celery.threads import WorkerThread
from runner.errors import BrokerError, StoreError
from runner.execution.engine import Engine
from runner.operations.message_handlers import Disposition, HandlerResult, IncomingMessage
from runner.records.codec import JSON
from runner.records.messages import traceparent_of
from runner.records.notices import Notice, completed
from runner.records.validation import one_line
from runner.settings import Settings
from runner.store.redis.partitions import SharedStore, connections
from runner.store.redis.streams import NoticeReader, Outbox

log = logging.getLogger(__name__)

WAIT = 1.0
"""Seconds of one blocking read, and so the longest that a stopping worker waits for this thread."""

RETRY_AFTER = 1.0
"""Seconds before retrying a message that the store refused."""

TAKE_OVER_AFTER = 10.0
"""Seconds before this worker takes over notices that another worker has read but not published."""

EARLY = "rabbitmq"
"""The door under which the store hands back early answers that came over RabbitMQ."""

PREFETCH = 200
"""Messages received ahead, so that a few that the store refuses don't block the others."""

COMPRESSION = "x-compression"
"""The header under which a received message keeps the name of its compression."""

QUORUM = {"x-queue-type": "quorum"}


class Doors:
    """The queues that take messages, `runner.responses` and `runner.starts`, and the dead-letter queue."""

    def __init__(self, namespace: str) -> None:
        """Describe the queues; nothing is declared yet."""
        self.starts = f"{namespace}.starts"
        self.dead_name = f"{namespace}.dead"
        exchange = Exchange(self.dead_name, type="topic", durable=True)
        self.dead = Queue(
            self.dead_name, exchange, routing_key="#", durable=True, queue_arguments=QUORUM
        )
        arguments = {**QUORUM, "x-dead-letter-exchange": self.dead_name}
        self.queues = [
            Queue(name, durable=True, queue_arguments=arguments)
            for name in (f"{namespace}.responses", self.starts)
        ]


@dataclass(slots=True)
class ReceivedMessage:
    """One message and the queue it came from."""

    message: Message
    queue: str

    @property
    def body(self) -> bytes:
        """The message's bytes, whatever content type it claims."""
        raw = self.message.body
        return raw.encode() if isinstance(raw, str) else bytes(raw)

    @property
    def id(self) -> str:
        """The sender's message id, or a hash of the bytes: the same at every delivery."""
        message_id = self.message.properties.get("message_id")
        if message_id:
            return str(message_id)
        return hashlib.blake2s(self.body, digest_size=10).hexdigest()

    def early_message(self) -> JSON:
        """Return the form in which the store keeps an early answer."""
        properties = {
            name: self.message.properties.get(name) for name in ("reply_to", "correlation_id")
        }
        return {
            "queue": self.queue,
            "body": self.body.decode(),
            "message_id": self.id,
            **properties,
        }


Publish = Callable[..., object]
"""Publishes a body, given exchange, key, body and the options of kombu's producers."""


class AmqpMessages:
    """Applies messages that came over RabbitMQ, and sends their receipts and dead letters there."""

    def __init__(self, engine: Engine, settings: Settings, publish: Publish) -> None:
        """Use `publish` for receipts and dead letters."""
        self._publish = publish
        self._doors = Doors(settings.namespace)
        self._handler = MessageHandler(engine, settings, EARLY)
        self._outbox = Outbox(connection_of(engine), settings.namespace, bounds_of(settings))

    def apply_early(self, message: Any) -> bool:
        """Apply an early answer that the store hands back; return False if the store refuses it for now."""
        properties = {
            name: message[name] for name in ("message_id", "reply_to", "correlation_id")
        }
        delivery = ReceivedMessage(
            Message(message["body"], properties=properties), message["queue"]
        )
        return self.apply(delivery, keep=False)

    def apply(self, delivery: ReceivedMessage, *, keep: bool) -> bool:
        """Apply a message; return False if the store refuses it for now or another process must take it."""
        result = self._handle(delivery, keep=keep)
        if result is None or result.disposition is Disposition.LEFT:
            return False
        self._reply(delivery, result)
        return True

    def _handle(self, delivery: ReceivedMessage, *, keep: bool) -> HandlerResult | None:
        if compression := delivery.message.headers.get(COMPRESSION):
            return HandlerResult(
                Disposition.DEAD,
                reason=f"it is compressed ({compression!r}); send it uncompressed.",
            )
        traceparent = traceparent_of(delivery.message.headers.get("traceparent"))
        message = IncomingMessage(
            delivery.id, f"{delivery.queue}/{delivery.id}", delivery.body, traceparent
        )
        if delivery.queue == self._doors.starts:
            return self._handler.start(message)
        return self._handler.answer(message, delivery.early_message if keep else None)

    def _reply(self, delivery: ReceivedMessage, result: HandlerResult) -> None:
        """Send the receipt and the dead letter; the message is acknowledged only afterwards."""
        properties = delivery.message.properties
        correlation = (
            {"correlation_id": properties["correlation_id"]}
            if properties.get("correlation_id")
            else {}
        )
        if result.receipt is not None:
            receipt = result.receipt.dump()
            if result.reply_to is not None:
                self._outbox.reply(result.reply_to, receipt)
            if properties.get("reply_to"):
                with suppress(MessageNacked):  # the reply queue is full
                    self._publish("", str(properties["reply_to"]), receipt, **correlation)
        if result.disposition is Disposition.DEAD:
            reason = one_line(result.reason)
            log.warning(
                "message.dead: %s %s: %s", delivery.queue, one_line(delivery.id), reason
            )
            headers = {"x-reason": result.reason[:1000], "x-door": delivery.queue}
            self._publish(
                self._doors.dead_name,
                delivery.queue,
                delivery.body,
                headers=headers,
                **correlation,
            )


def _publish(producer: Producer, exchange: str, key: str, body: bytes, **options: Any) -> None:
    producer.publish(
        body,
        exchange=exchange,
        routing_key=key,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        **options,
    )


def publisher_of(app: Celery) -> Publish:
    """Return a function that publishes over an app's own connections; it raises BrokerError on failure."""

    def publish(*message: Any, **options: Any) -> None:
        with broker_errors(), app.producer_or_acquire() as producer:
            producer.connection.ensure_connection(**CONNECT)
            _publish(producer, *message, **options)

    return publish


class BrokerThread(WorkerThread):
    """A thread with its own connection to RabbitMQ; it doesn't run with another broker."""

    app: Any
    _connection: Connection | None = None

    def include_if(self, worker: Any) -> bool:
        """Return whether the broker is RabbitMQ."""
        return is_amqp(settings_of(worker.app).broker)

    def prepare(self, worker: Any) -> None:
        """Keep the app that names the broker; nothing is connected yet."""
        self.app = worker.app

    def release(self) -> None:
        """Close the connection."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            try:
                connection.release()
            except BROKEN as error:
                log.debug("amqp.closed: %s", error)


class AmqpConsumer(BrokerThread):
    """Reads the queues and applies each message."""

    label = "amqp"

    def prepare(self, worker: Any) -> None:
        """Prepare the handler of messages; nothing is connected yet."""
        super().prepare(worker)
        self._waiting: deque[ReceivedMessage] = deque()
        self._later: list[ReceivedMessage] = []
        self._retry_at = 0.0
        self._doors = Doors(self.settings.namespace)
        self._messages = AmqpMessages(self.engine, self.settings, self._publish)

    def run_once(self) -> None:
        """Apply received messages, retry refused ones every second, then receive more."""
        with broker_errors(self.release), suppress(TimeoutError):
            connection = self._connected()
            while self._waiting:
                self._apply_received(self._waiting[0])
                self._waiting.popleft()
            if time.monotonic() >= self._retry_at:
                self._retry_at = time.monotonic() + RETRY_AFTER
                self._apply_later()
            connection.heartbeat_check()
            connection.drain_events(timeout=WAIT)

    def release(self) -> None:
        """Close the connection; unacknowledged messages are delivered again."""
        self._waiting.clear()
        self._later.clear()
        super().release()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connection = self.app.connection_for_read()
            connection.ensure_connection(**CONNECT)
            channel = connection.default_channel
            self._doors.dead(channel).declare()
            channel.message_to_python = partial(
                _without_decompression, channel.message_to_python
            )
            for queue in self._doors.queues:
                # The routing key doesn't name the queue, which may be bound to any exchange.
                receive = partial(self._receive, queue.name)
                consumer = Consumer(channel, [queue], on_message=receive, auto_declare=True)
                consumer.qos(prefetch_count=PREFETCH, apply_global=False)
                consumer.consume()
        return self._connection

    def _receive(self, queue: str, message: Message) -> None:
        self._waiting.append(ReceivedMessage(message, queue))

    def _apply_later(self) -> None:
        later = self._later
        self._later = []
        for index, delivery in enumerate(later):
            try:
                if self._messages.apply(delivery, keep=True):
                    delivery.message.ack()
                else:  # another process may be able to
                    self._return(delivery)
            except MessageNacked:  # the queue is full
                self._later.append(delivery)
            except StoreError:
                self._later += later[index:]
                raise

    def _return(self, delivery: ReceivedMessage) -> None:
        """Publish a message again to the end of its queue, then acknowledge it.

        RabbitMQ limits how often a message may be requeued. If the connection is lost in between,
        the message comes twice, with the same id.
        """
        message = delivery.message
        names = "reply_to", "correlation_id", "priority"
        properties = {name: message.properties.get(name) for name in names}
        expiration = message.properties.get("expiration")
        self._publish(
            "",
            delivery.queue,
            delivery.body,
            headers={"traceparent": message.headers.get("traceparent")},
            expiration=int(expiration) / 1000 if expiration else None,
            message_id=delivery.id,
            **properties,
        )
        message.ack()

    def _apply_received(self, delivery: ReceivedMessage) -> None:
        if self._messages.apply(delivery, keep=True):
            delivery.message.ack()
        else:
            self._later.append(delivery)

    def _publish(self, *message: Any, **options: Any) -> None:
        assert self._connection is not None  # noqa: S101 - a message came over it
        _publish(Producer(self._connection.default_channel), *message, **options)


def _without_decompression(decode: Callable[[Any], Message], raw: Any) -> Message:
    """Decode a message as kombu does, but never decompress it: a small one may be huge inside."""
    headers = raw.properties.get("application_headers") or {}
    if "compression" in headers:
        headers[COMPRESSION] = headers.pop("compression")
    return decode(raw)


# The relay publishes every notice to RabbitMQ, for services that listen there.
#
# The transition that a notice reports also writes the notice to the store. The workers share the
# notices: each publishes its own, with confirms, to the topic exchange `runner.notices` under the
# notice's kind, and then acknowledges it in the store. So each notice comes at least once, with a
# unique message id.

GROUP = "relay"


class Relay(BrokerThread):
    """Publishes notices."""

    label = "relay"

    def prepare(self, worker: Any) -> None:
        """Open the streams; the broker isn't connected yet."""
        super().prepare(worker)
        settings = self.settings
        store = cast("SharedStore", self.engine.store)
        self._readers = [
            NoticeReader(connection, GROUP, settings.namespace, address.partition)
            for connection, address in zip(
                connections(store), settings.partition_addresses, strict=True
            )
        ]
        self._slots = ReaderSlots(self.engine, settings, GROUP, self.stopping)
        self._exchange = Exchange(f"{settings.namespace}.notices", type="topic", durable=True)

    def run_once(self) -> None:
        """Publish notices that other workers left unpublished, then new ones until the slot lapses."""
        lapses = self._slots.acquire()
        if not lapses:
            return
        self._publish_new(None)
        while (remaining := lapses - time.monotonic()) > 0 and not self.stopping.is_set():
            # Partitions read one after another each get only a short wait.
            alone = len(self._readers) == 1
            self._publish_new(remaining if alone else min(remaining, WAIT / len(self._readers)))

    def _publish_new(self, wait: float | None) -> None:
        """Publish the notices that each partition yields within `wait` seconds; None takes leftovers.

        Raises:
            StoreError: a partition is away; the notices of the others were published.
        """
        away = None
        for reader in self._readers:
            try:
                if wait is None:
                    notices = reader.take_over(TAKE_OVER_AFTER)
                else:
                    notices = reader.read(wait, is_stopping=self.stopping.is_set)
                if notices:
                    self._publish(notices)
                    reader.done(notices)
            except BrokerError:
                raise
            except StoreError as error:
                away = error
        if away is not None:
            raise away

    def _publish(self, notices: list[Notice]) -> None:
        with broker_errors(self.release):
            if self._connection is None:
                self._connection = self.app.connection_for_write()
                self._connection.ensure_connection(**CONNECT)
            producer = Producer(self._connection.default_channel, exchange=self._exchange)
            for notice in notices:
                message = completed(
                    notice.message(), self.engine.store.tags, self.settings.page
                )
                body = pydantic_core.to_json(message)
                _publish(producer, self._exchange.name, notice.kind, body, message_id=notice.id)
