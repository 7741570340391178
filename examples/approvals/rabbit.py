"""The inbox for an installation with RabbitMQ as the broker: it never connects to Redis.

Notices and receipts arrive on durable queues, and answers are published with confirms. The open
questions are in an SQLite file, so the service may be stopped and started at any time.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from amqp.exceptions import AMQPError
from kombu import Connection, Consumer, Exchange, Message, Queue
from kombu.exceptions import OperationalError
from kombu.pools import producers

from examples.approvals.inbox import asked

NOTICES = Queue(
    "approvals.notices",
    Exchange("runner.notices", type="topic", durable=True),
    routing_key="interrupt.*",
)
RECEIPTS = Queue("approvals.receipts")
RESPONSES = "runner.responses"
CLOSED = {"interrupt.answered", "interrupt.expired", "interrupt.withdrawn"}
WAIT = 1.0  # seconds

APPLY = """
insert into questions values (:id, :number, :question)
on conflict (id) do update set number = :number, question = :question where number < :number
"""

# A closed question has no text. `number` is that of the last notice of the question: a repeat opens nothing,
# and a question that has its old id back, as a migration gave its node an old name, is shown again.
TABLES = """
create table if not exists questions (id text primary key, number integer not null, question text not null);
create table if not exists receipts (id text primary key, receipt text not null);
"""


class RabbitInbox:
    """Open questions. One process has one inbox; other services have queues of their own."""

    broken = (AMQPError, OperationalError, OSError)
    """What may be raised while RabbitMQ is unavailable."""

    def __init__(self, url: str, path: str = "approvals.db") -> None:
        """Prepare a connection to the broker, and open the file of the open questions."""
        self._connection = Connection(url, transport_options={"confirm_publish": True})
        self._reading: Connection | None = None
        self._applied = 0
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._db.executescript(TABLES)

    def follow(self) -> int:
        """Apply new messages, waiting up to a second for them, and return their number."""
        before = self._applied
        if self._reading is None:
            self._reading = self._connection.clone()
            consumer = Consumer(
                self._reading.channel(),
                [NOTICES, RECEIPTS],
                accept=["json"],
                prefetch_count=100,
            )
            consumer.register_callback(self._take)
            consumer.consume()
        with suppress(TimeoutError):
            self._reading.drain_events(timeout=WAIT)
        return self._applied - before

    def recover(self) -> None:
        """Reconnect; RabbitMQ redelivers the messages that were not acknowledged."""
        if self._reading is not None:
            self._reading.release()
            self._reading = None

    def _take(self, body: dict[str, Any], message: Message) -> None:
        """Apply a message, then acknowledge it. Applying one twice changes nothing."""
        with self._lock, self._db:
            if "kind" not in body:
                key = body["interrupt_id"] or body["message_id"]
                self._db.execute(
                    "insert or replace into receipts values (?, ?)", (key, json.dumps(body))
                )
            elif body["kind"] in {"interrupt.asked", *CLOSED}:
                opened = body["kind"] == "interrupt.asked"
                row = {
                    "id": body["detail"],
                    "number": int(
                        body["id"].rpartition(":")[2]
                    ),  # of the event: the id is RUN:NUMBER
                    "question": asked(body, body["question"]) if opened else "",
                }
                if not self._db.execute(APPLY, row).rowcount:
                    pass  # a repeat, or older than what was applied
                elif opened:
                    self._db.execute("delete from receipts where id = ?", (row["id"],))
                else:
                    closed = json.dumps({"status": body["kind"]})
                    self._db.execute(
                        "insert or ignore into receipts values (?, ?)", (row["id"], closed)
                    )
        message.ack()
        self._applied += 1

    def questions(self) -> Iterator[dict[str, Any]]:
        """Yield the open questions."""
        for (question,) in self._rows(
            "select question from questions where question != '' order by id"
        ):
            yield json.loads(question)

    def answer(self, interrupt_id: str, response: Any, responder: str, digest: str) -> str:
        """Send an answer and return its message id; the receipt comes later.

        The digest is that of the question as it was shown: the answer holds for exactly that.
        """
        body = {
            "v": 1,
            "interrupt_id": interrupt_id,
            "response": response,
            "responder": responder,
            "digest": digest,
        }
        message_id = uuid.uuid4().hex
        with producers[self._connection].acquire(block=True) as producer:
            producer.publish(
                body,
                routing_key=RESPONSES,
                message_id=message_id,
                correlation_id=interrupt_id,
                reply_to=RECEIPTS.name,
                declare=[RECEIPTS],
                retry=True,
                retry_policy={"max_retries": 3},
            )
        return message_id

    def receipts(self) -> dict[str, Any]:
        """Return the outcome of each question that was answered here or closed elsewhere."""
        return {
            key: json.loads(receipt)
            for key, receipt in self._rows("select id, receipt from receipts")
        }

    def _rows(self, query: str, *values: str) -> list[Any]:
        with self._lock, closing(self._db.execute(query, values)) as cursor:
            return cursor.fetchall()
