"""RabbitMQ: durable queues that take answers and starts as plain JSON, and an exchange for notices.

A message is acknowledged only after it was applied; one that can't be used goes to the dead-letter
exchange with the reason. Each direction has a thread with a connection of its own, so that messages are
applied and published at once also while every slot is busy, and on every pool.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pydantic_core
from amqp.exceptions import AMQPError
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.exceptions import OperationalError

from runner.celery.background import Background
from runner.celery.config import is_amqp
from runner.celery.engines import outbox_of
from runner.celery.intake import is_away, keeper_of, reader_name
from runner.errors import BrokerError, ConflictError, StoreError
from runner.operations.inbox import Disposition, InboxMessage, Verdict, judge_answer, judge_start
from runner.records.codec import JSON
from runner.records.messages import traceparent_of
from runner.records.validation import one_line
from runner.store.redis.keys import Keys
from runner.store.redis.streams import Intake, Notice, NoticeReader

log = logging.getLogger(__name__)

WAIT = 1.0
"""Seconds of one blocking read, and so the longest that a stopping worker waits for a thread."""

RETRY_AFTER = 1.0
"""Seconds after which a message is tried again that the store refused, and early answers are looked for."""

TAKE_OVER_AFTER = 10.0
"""Seconds after which what another worker has taken from the store is done by this one."""

EARLY = "rabbitmq"
"""The door to which the store hands early answers back that came over RabbitMQ."""

PREFETCH = 200
"""Messages received ahead, so that a few which the store refuses don't keep the others out."""

COMPRESSION = "x-compression"
"""The header of a dead letter that names how it is compressed."""

BROKEN = (AMQPError, OperationalError, OSError)

QUORUM = {"x-queue-type": "quorum"}


class Doors:
    """The queues that take messages, and that of dead letters: `runner.responses` and so on."""

    def __init__(self, namespace: str) -> None:
        """Nothing is declared yet."""
        self.starts, self.dead_name = f"{namespace}.starts", f"{namespace}.dead"
        exchange = Exchange(self.dead_name, type="topic", durable=True)
        self.dead = Queue(self.dead_name, exchange, routing_key="#", durable=True, queue_arguments=QUORUM)
        arguments = {**QUORUM, "x-dead-letter-exchange": self.dead_name}
        self.queues = [
            Queue(name, durable=True, queue_arguments=arguments)
            for name in (f"{namespace}.responses", self.starts)
        ]


@dataclass(slots=True)
class ReceivedMessage:
    """One message, and the queue that it came to."""

    message: Message
    queue: str

    @property
    def body(self) -> bytes:
        """The message's bytes, whatever content type it claims."""
        raw = self.message.body
        return raw.encode() if isinstance(raw, str) else bytes(raw)

    @property
    def id(self) -> str:
        """The sender's message id, or one made from the bytes: the same at every delivery."""
        message_id = self.message.properties.get("message_id")
        return str(message_id) if message_id else hashlib.blake2s(self.body, digest_size=10).hexdigest()

    def kept(self) -> JSON:
        """Return what the store keeps of an early answer."""
        properties = {name: self.message.properties.get(name) for name in ("reply_to", "correlation_id")}
        return {"queue": self.queue, "body": self.body.decode(), "message_id": self.id, **properties}


class AmqpIntake(Background):
    """Reads the queues and applies each message; ends at once where the broker is no RabbitMQ."""

    label = "amqp"
    app: Any

    def prepare(self, worker: Any) -> None:
        """Keep the app, whose broker it is; nothing is connected yet."""
        self.app = worker.app
        self._connection: Connection | None = None
        self._waiting: deque[ReceivedMessage] = deque()
        self._later: list[ReceivedMessage] = []
        self._retry_at = 0.0
        self._doors, self._early = Doors(self.settings.namespace), self._open_early()
        if not is_amqp(self.settings.broker):
            self.finish()

    def turn(self) -> None:
        """Apply what was received, every second also what was early or refused, then receive more."""
        try:
            connection = self._connected()
            while self._waiting:
                self._apply_received(self._waiting[0])
                self._waiting.popleft()
            if time.monotonic() >= self._retry_at:
                self._retry_at = time.monotonic() + RETRY_AFTER
                self._apply_later()
                self._apply_early()
            connection.heartbeat_check()
            connection.drain_events(timeout=WAIT)
        except TimeoutError:
            return
        except BROKEN as error:
            self._close()
            raise BrokerError(f"the broker could not be reached ({error}).") from error

    def leave(self) -> None:
        self._close()
        self._early.leave()

    def _open_early(self) -> Intake:
        # One name for all workers: what one has taken, and not done, another takes over by its age alone.
        namespace = self.settings.namespace
        return Intake(self.settings.redis_url, EARLY, namespace, [Keys(namespace).handed_early(EARLY)])

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connection = self.app.connection_for_read()
            connection.ensure_connection(max_retries=1, interval_start=0.1)
            channel = connection.default_channel
            self._doors.dead(channel).declare()
            channel.message_to_python = partial(_without_decompression, channel.message_to_python)
            for queue in self._doors.queues:
                # Not the routing key names the queue: it may be bound to any exchange.
                receive = partial(self._receive, queue.name)
                consumer = Consumer(channel, [queue], on_message=receive, auto_declare=True)
                consumer.qos(prefetch_count=PREFETCH, apply_global=False)
                consumer.consume()
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._waiting.clear()
        self._later.clear()
        if connection is not None:
            try:
                connection.release()
            except BROKEN as error:
                log.debug("amqp.closed: %s", error)

    def _receive(self, queue: str, message: Message) -> None:
        self._waiting.append(ReceivedMessage(message, queue))

    def _apply_later(self) -> None:
        later, self._later = self._later, []
        for index, received in enumerate(later):
            try:
                self._apply_received(received)
            except StoreError:
                self._later += later[index:]
                raise

    def _apply_early(self) -> None:
        entries = self._early.take_over(TAKE_OVER_AFTER) + self._early.read(0)
        while entries:
            for entry in entries:
                answers = [_received_of(message) for message in entry.early]
                if all(self._apply(answer, keep=False) for answer in answers):
                    self._early.done(entry)
            entries = self._early.read(0)

    def _apply_received(self, received: ReceivedMessage) -> None:
        if self._apply(received, keep=True):
            received.message.ack()
        else:
            self._later.append(received)

    def _apply(self, received: ReceivedMessage, *, keep: bool) -> bool:
        """Apply one message; False where the store refuses it for now."""
        try:
            verdict = self._judge(received, keep=keep)
        except (StoreError, ConflictError) as error:
            if is_away(error):
                raise
            log.info("message.later: %s %s: %s", received.queue, one_line(received.id), one_line(error))
            return False
        except Exception as error:
            log.exception("message.failed: %s %s is dead-lettered.", received.queue, one_line(received.id))
            verdict = Verdict(Disposition.DEAD, reason=f"it could not be applied: {error!r}")
        self._tell(received, verdict)
        return True

    def _judge(self, received: ReceivedMessage, *, keep: bool) -> Verdict:
        if compression := received.message.headers.get(COMPRESSION):
            return Verdict(Disposition.DEAD, reason=f"it is compressed ({compression!r}); send it as it is.")
        traceparent = traceparent_of(received.message.headers.get("traceparent"))
        key = f"{received.queue}/{received.id}"
        sent = InboxMessage(received.id, key, received.body, traceparent)
        if received.queue == self._doors.starts:
            return judge_start(self.engine, sent, self.settings.on_end)
        keeper = keeper_of(self.engine, self.settings, EARLY, received.kept) if keep else None
        return judge_answer(self.engine, sent, keeper)

    def _tell(self, received: ReceivedMessage, verdict: Verdict) -> None:
        """Send the receipt and the dead letter, before the message is acknowledged."""
        properties = received.message.properties
        if verdict.receipt is not None:
            receipt = verdict.receipt.model_dump_json().encode()
            if verdict.reply_to is not None:
                outbox_of(self.settings).reply(verdict.reply_to, receipt)
            if properties.get("reply_to"):
                self._publish("", str(properties["reply_to"]), receipt, properties.get("correlation_id"))
        if verdict.disposition is Disposition.DEAD:
            reason = one_line(verdict.reason)
            log.warning("message.dead: %s %s: %s", received.queue, one_line(received.id), reason)
            headers = {"x-reason": verdict.reason[:1000], "x-door": received.queue}
            self._publish(
                self._doors.dead_name,
                received.queue,
                received.body,
                properties.get("correlation_id"),
                headers,
            )

    def _publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        correlation_id: Any,
        headers: dict[str, str] | None = None,
    ) -> None:
        assert self._connection is not None  # noqa: S101 - a message came over it
        Producer(self._connection.default_channel).publish(
            body,
            exchange=exchange,
            routing_key=key,
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
            headers=headers or {},
            **({"correlation_id": correlation_id} if correlation_id else {}),
        )


def _received_of(early: Any) -> ReceivedMessage:
    properties = {name: early[name] for name in ("message_id", "reply_to", "correlation_id")}
    return ReceivedMessage(Message(early["body"], properties=properties), early["queue"])


def _without_decompression(decode: Callable[[Any], Message], raw: Any) -> Message:
    """Decode a message as kombu does, but never decompress it: a small one may be huge inside."""
    headers = raw.properties.get("application_headers") or {}
    if "compression" in headers:
        headers[COMPRESSION] = headers.pop("compression")
    return decode(raw)


# The relay publishes every notice to RabbitMQ, for services that listen there.
#
# The transition that makes a notice true writes it to the store. The workers share the notices; each
# publishes its own, with confirms, to the topic exchange `runner.notices` under the notice's kind, and then
# acknowledges it in the store. So each comes at least once, with a unique message id.

GROUP = "relay"


class Relay(Background):
    """Publishes notices; ends at once where the broker is no RabbitMQ."""

    label = "relay"
    app: Any

    def prepare(self, worker: Any) -> None:
        """Join the consumer group under a name that no other reader has."""
        self.app = worker.app
        self._connection: Connection | None = None
        self._retry_at = 0.0
        self._reader = NoticeReader(self.settings.redis_url, GROUP, reader_name(), self.settings.namespace)
        self._exchange = Exchange(f"{self.settings.namespace}.notices", type="topic", durable=True)
        if not is_amqp(self.settings.broker):
            self.finish()

    def turn(self) -> None:
        """Publish new notices, and now and then those that other workers have left."""
        taken = self._reader.read(WAIT)
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + TAKE_OVER_AFTER
            taken += self._reader.take_over(TAKE_OVER_AFTER)
        if not taken:
            return
        try:
            self._publish(taken)
        except BROKEN as error:
            self._close()
            raise BrokerError(f"the broker could not be reached ({error}).") from error
        self._reader.done(taken)

    def leave(self) -> None:
        self._close()
        self._reader.leave()

    def _publish(self, taken: list[Notice]) -> None:
        if self._connection is None:
            self._connection = self.app.connection_for_write()
            self._connection.ensure_connection(max_retries=1, interval_start=0.1)
        producer = Producer(self._connection.default_channel, exchange=self._exchange)
        for notice in taken:
            producer.publish(
                pydantic_core.to_json(notice.message()),
                routing_key=notice.kind,
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                message_id=notice.id,
            )

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()
