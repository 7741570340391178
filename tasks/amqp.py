"""The doors of a RabbitMQ broker: durable queues that take answers and starts as plain JSON.

A message is acknowledged only after it was applied; one that can't be used goes to the dead-letter
exchange with the reason. A thread with a connection of its own reads them, so that they are applied
at once also while every slot is busy, and on every pool.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from amqp.exceptions import AMQPError
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.exceptions import OperationalError

from runner.errors import BrokerError, ConflictError, StoreError
from runner.intake import Fate, Sent, Verdict, judge_answer, judge_start
from tasks.background import Background
from tasks.config import is_amqp
from tasks.responses import is_away, outbox_of

log = logging.getLogger(__name__)

RESPONSES = "runner.responses"
STARTS = "runner.starts"
DEAD = "runner.dead"

WAIT = 1.0
"""Seconds of one blocking read, and so the longest that a worker which stops waits for this thread."""

RETRIED = 1.0
"""Seconds after which an answer that came before its question is tried again."""

EARLY_LIMIT = 100
"""Answers held for questions not asked yet; one more is told at once that its question is unknown."""

PREFETCH = 200
"""More than EARLY_LIMIT, so that answers which wait don't keep the others out."""

PACKED = "x-compression"
"""The header under which a dead letter says how it is compressed."""

BROKEN = (AMQPError, OperationalError, OSError)

QUORUM = {"x-queue-type": "quorum"}
dead_exchange = Exchange(DEAD, type="topic", durable=True)
dead_queue = Queue(DEAD, dead_exchange, routing_key="#", durable=True, queue_arguments=QUORUM)
doors = [
    Queue(name, durable=True, queue_arguments={**QUORUM, "x-dead-letter-exchange": DEAD})
    for name in (RESPONSES, STARTS)
]


@dataclass(slots=True)
class Delivered:
    """One message as it came; `since` is when this process first had it (monotonic seconds)."""

    message: Message
    door: str
    since: float = field(default_factory=time.monotonic)

    @property
    def body(self) -> bytes:
        """The message's bytes, whatever content type it claims."""
        raw = self.message.body
        return raw.encode() if isinstance(raw, str) else bytes(raw)

    @property
    def id(self) -> str:
        """The name that its sender gave it, else one made from its bytes: the same at every delivery."""
        given = self.message.properties.get("message_id")
        return str(given) if given else hashlib.blake2s(self.body, digest_size=10).hexdigest()

    def age(self) -> float:
        """Seconds since this process first had it."""
        return time.monotonic() - self.since


class AmqpDoors(Background):
    """Reads the queues and applies what comes; idle where the broker is none of this kind."""

    label = "amqp"
    app: Any

    def prepare(self, worker: Any) -> None:
        """Remember whose broker it is."""
        self.app = worker.app
        self._connection: Connection | None = None
        self._waiting: deque[Delivered] = deque()
        self._early: list[Delivered] = []
        self._due = 0.0
        if not is_amqp(self.settings.broker):
            self.finish()

    def turn(self) -> None:
        """Apply what was taken, then what was early, then take more."""
        try:
            connection = self._connected()
            while self._waiting:
                self._apply(self._waiting[0])
                self._waiting.popleft()
            self._apply_early()
            connection.heartbeat_check()
            connection.drain_events(timeout=WAIT)
        except TimeoutError:
            return
        except BROKEN as error:
            self._forget()
            raise BrokerError(f"the broker could not be reached ({error}).") from error

    def leave(self) -> None:
        """Close the connection; the broker gives what was not acknowledged to another worker."""
        self._forget()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connection = self.app.connection_for_read()
            connection.ensure_connection(max_retries=1, interval_start=0.1)
            channel = connection.default_channel
            dead_queue(channel).declare()
            channel.message_to_python = partial(_as_sent, channel.message_to_python)
            for door in doors:
                take = partial(self._take, door.name)
                consumer = Consumer(channel, [door], on_message=take, auto_declare=True)
                consumer.qos(prefetch_count=PREFETCH, apply_global=False)
                consumer.consume()
        return self._connection

    def _forget(self) -> None:
        connection, self._connection = self._connection, None
        self._waiting.clear()
        self._early.clear()
        if connection is not None:
            try:
                connection.release()
            except BROKEN as error:
                log.debug("amqp.closed: %s", error)

    def _take(self, door: str, message: Message) -> None:
        # Not its routing key: the queue may be bound to any exchange.
        self._waiting.append(Delivered(message, door))

    def _apply_early(self) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + RETRIED
        early, self._early = self._early, []
        for place, delivered in enumerate(early):
            try:
                self._apply(delivered)
            except StoreError:
                self._early += early[place:]
                raise

    def _apply(self, delivered: Delivered) -> None:
        """Apply one message. What can't be applied now stays in hand, and so with the broker."""
        try:
            verdict = self._judge(delivered)
        except (StoreError, ConflictError) as error:
            if is_away(error):
                raise
            log.info("message.later: %s %s: %s", delivered.door, delivered.id, error)
            verdict = Verdict(Fate.EARLY)
        except Exception as error:
            log.exception("message.failed: %s %s is dead-lettered.", delivered.door, delivered.id)
            verdict = Verdict(Fate.DEAD, reason=f"it could not be applied: {error!r}")
        if verdict.fate is Fate.EARLY:
            self._early.append(delivered)
        else:
            self._finish(delivered, verdict)

    def _judge(self, delivered: Delivered) -> Verdict:
        if packed := delivered.message.headers.get(PACKED):
            return Verdict(Fate.DEAD, reason=f"it is compressed ({packed!r}); send it as it is.")
        sent = Sent(delivered.id, f"{delivered.door}/{delivered.id}", delivered.body, delivered.age)
        if delivered.door == STARTS:
            return judge_start(self.engine, sent)
        patience = self.settings.early_answer if len(self._early) < EARLY_LIMIT else 0
        return judge_answer(self.engine, sent, patience)

    def _finish(self, delivered: Delivered, verdict: Verdict) -> None:
        """Send the receipt and the dead letter, and only then let go of the message."""
        message, properties = delivered.message, delivered.message.properties
        if verdict.receipt is not None:
            receipt = verdict.receipt.model_dump_json().encode()
            if verdict.reply_to is not None:
                outbox_of(self.settings.redis_url).reply(verdict.reply_to, receipt)
            if properties.get("reply_to"):
                self._publish("", str(properties["reply_to"]), receipt, properties.get("correlation_id"))
        if verdict.fate is Fate.DEAD:
            log.warning("message.dead: %s %s: %s", delivered.door, delivered.id, verdict.reason)
            headers = {"x-reason": verdict.reason[:1000], "x-door": delivered.door}
            self._publish(DEAD, delivered.door, delivered.body, properties.get("correlation_id"), headers)
        message.ack()

    def _publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        correlation_id: Any,
        headers: dict[str, str] | None = None,
    ) -> None:
        assert self._connection is not None  # noqa: S101 - messages come over a connection only
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


def _as_sent(read: Callable[[Any], Message], delivered: Any) -> Message:
    """Let kombu read a message, but not unpack it: a small one may be huge inside."""
    headers = delivered.properties.get("application_headers") or {}
    if "compression" in headers:
        headers[PACKED] = headers.pop("compression")
    return read(delivered)
