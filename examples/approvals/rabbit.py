"""The inbox again, for an installation whose broker is RabbitMQ: it never talks to Redis.

Notices and receipts come to durable queues, and answers are published with confirms. What is open is
kept in a file of SQLite's, so the service may be stopped and started at any time.
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

NOTICES = Queue(
    "approvals.notices", Exchange("runner.notices", type="topic", durable=True), routing_key="interrupt.*"
)
RECEIPTS = Queue("approvals.receipts")
RESPONSES = "runner.responses"
CLOSED = {"interrupt.answered", "interrupt.expired", "interrupt.withdrawn"}
WAIT = 1.0  # seconds

TABLES = """
create table if not exists asked (id text primary key, question text not null);
create table if not exists closed (id text primary key);
create table if not exists told (id text primary key, receipt text not null);
"""


class RabbitInbox:
    """Questions that wait for people. One process has one; other processes have queues of their own."""

    broken = (AMQPError, OperationalError, OSError)
    """What may be raised while RabbitMQ is away."""

    def __init__(self, url: str, path: str = "approvals.db") -> None:
        """Take the broker's URL, and the file for what is open."""
        self._connection = Connection(url, transport_options={"confirm_publish": True})
        self._reading: Connection | None = None
        self._applied = 0
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False)
        self._db.executescript(TABLES)

    def follow(self) -> int:
        """Apply what is new, waiting a second for it, and return how much it was."""
        before = self._applied
        if self._reading is None:
            self._reading = self._connection.clone()
            consumer = Consumer(
                self._reading.channel(), [NOTICES, RECEIPTS], accept=["json"], prefetch_count=100
            )
            consumer.register_callback(self._take)
            consumer.consume()
        with suppress(TimeoutError):
            self._reading.drain_events(timeout=WAIT)
        return self._applied - before

    def recover(self) -> None:
        """Begin anew; RabbitMQ gives again what was taken and not acknowledged."""
        if self._reading is not None:
            self._reading.release()
            self._reading = None

    def _take(self, body: dict[str, Any], message: Message) -> None:
        """Apply a message, then acknowledge it. Applying one twice changes nothing."""
        with self._lock, self._db:
            if "kind" not in body:
                key = body["interrupt_id"] or body["message_id"]
                self._db.execute("insert or replace into told values (?, ?)", (key, json.dumps(body)))
            elif body["kind"] == "interrupt.asked":
                asked = (body["detail"], json.dumps(body["question"]))
                self._db.execute("insert or ignore into asked values (?, ?)", asked)
            elif body["kind"] in CLOSED:
                closed = json.dumps({"status": body["kind"]})
                self._db.execute("insert or ignore into closed values (?)", (body["detail"],))
                self._db.execute("insert or ignore into told values (?, ?)", (body["detail"], closed))
        message.ack()
        self._applied += 1

    def questions(self) -> Iterator[dict[str, Any]]:
        """Give the open questions."""
        for (question,) in self._rows(
            "select question from asked where id not in (select id from closed) order by id"
        ):
            yield json.loads(question)

    def answer(self, interrupt_id: str, response: Any, responder: str) -> str:
        """Send an answer and return its message id; the receipt comes later.

        The digest says that the answer holds for the question as it was shown, and for no other.
        """
        found = self._rows("select question from asked where id = ?", interrupt_id)
        question = json.loads(found[0][0]) if found else {}
        body = {
            "v": 1,
            "interrupt_id": interrupt_id,
            "response": response,
            "responder": responder,
            "digest": question.get("digest"),
        }
        sent = uuid.uuid4().hex
        with producers[self._connection].acquire(block=True) as producer:
            producer.publish(
                body,
                routing_key=RESPONSES,
                message_id=sent,
                correlation_id=interrupt_id,
                reply_to=RECEIPTS.name,
                declare=[RECEIPTS],
                retry=True,
                retry_policy={"max_retries": 3},
            )
        return sent

    def receipts(self) -> dict[str, Any]:
        """Give what became of the questions that were answered here or closed elsewhere."""
        return {key: json.loads(told) for key, told in self._rows("select id, receipt from told")}

    def _rows(self, query: str, *given: str) -> list[Any]:
        with self._lock, closing(self._db.execute(query, given)) as found:
            return found.fetchall()
