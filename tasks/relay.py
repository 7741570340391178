"""The relay: carries every notice to RabbitMQ, where approval services are used to listen.

Notices are written to the store by the transition that makes them true. One thread of each worker
takes its share and publishes it, with confirms, to the topic exchange `runner.notices` under its
kind; only then it counts as told. So each comes at least once, with a unique message id.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import pydantic_core
from kombu import Connection, Exchange, Producer

from runner import ids
from runner.errors import BrokerError
from runner.store.notices import Notice, NoticeReader
from tasks.amqp import BROKEN
from tasks.background import Background
from tasks.config import is_amqp

EXCHANGE = "runner.notices"
GROUP = "relay"

WAIT = 1.0
"""Seconds of one blocking read, and so the longest that a worker which stops waits for this thread."""

TAKEN_OVER = 10.0
"""Seconds after which a notice that another worker took and did not confirm is told by this one."""

notices = Exchange(EXCHANGE, type="topic", durable=True)


class Relay(Background):
    """Publishes notices; idle where the broker is no RabbitMQ."""

    label = "relay"
    app: Any

    def prepare(self, worker: Any) -> None:
        """Join the readers under a name that no other has."""
        self.app = worker.app
        self._connection: Connection | None = None
        self._due = 0.0
        reader = f"{socket.gethostname()}-{os.getpid()}-{ids.nonce()}"
        self._reader = NoticeReader(self.settings.redis_url, GROUP, reader)
        if not is_amqp(self.settings.broker):
            self.finish()

    def turn(self) -> None:
        """Publish what is new, and now and then what others have left."""
        found = self._reader.read(WAIT)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + TAKEN_OVER
            found += self._reader.take_over(TAKEN_OVER)
        if not found:
            return
        try:
            self._publish(found)
        except BROKEN as error:
            self._close()
            raise BrokerError(f"the broker could not be reached ({error}).") from error
        self._reader.done(found)

    def leave(self) -> None:
        """Close both connections."""
        self._close()
        self._reader.leave()

    def _publish(self, found: list[Notice]) -> None:
        if self._connection is None:
            self._connection = self.app.connection_for_write()
            self._connection.ensure_connection(max_retries=1, interval_start=0.1)
        producer = Producer(self._connection.default_channel, exchange=notices)
        for notice in found:
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
