"""The inbox: reads notices, keeps the open questions, sends answers, reads receipts.

This is all that an approval service has to do, and it needs nothing but a Redis client. Its own keys
begin with `approvals:`.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import redis

NOTICES = "runner:{p00}:notices"
RESPONSES = "runner:responses"
RECEIPTS = "runner:replies:approvals"
GROUP = "approvals"
OPEN = "approvals:open"
ANSWERED = "approvals:answered"
CLOSED = {"interrupt.answered", "interrupt.expired", "interrupt.withdrawn"}
READ = "0"
NEW = ">"
WAIT = 1000  # ms


class Inbox:
    """Questions that wait for people. Share one per process; another process may have its own."""

    broken = (redis.RedisError,)
    """What may be raised while the store is away."""

    def __init__(self, url: str) -> None:
        """Take the store's URL; the group of readers begins at the first notice that is kept."""
        self.redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self.reader = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        for stream in (NOTICES, RECEIPTS):
            try:
                self.redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def follow(self) -> int:
        """Apply what is new, waiting a second for it, and return how much it was.

        An entry is acknowledged only when it was applied. Applying one twice changes nothing.
        """
        streams = {NOTICES: NEW, RECEIPTS: NEW}
        found = self.redis.xreadgroup(GROUP, self.reader, streams, count=100, block=WAIT)
        self._apply(found)
        return sum(len(entries) for _, entries in found)

    def recover(self) -> None:
        """Take over what a reader that is gone has read and not applied."""
        for stream in (NOTICES, RECEIPTS):
            _, entries, *_ = self.redis.xautoclaim(stream, GROUP, self.reader, 60_000, "0", count=1000)
            self._apply([(stream, entries)])

    def _apply(self, found: list[Any]) -> None:
        for stream, entries in found:
            for entry_id, fields in entries:
                self._notice(fields) if stream == NOTICES else self._receipt(json.loads(fields["body"]))
                self.redis.xack(stream, GROUP, entry_id)

    def _notice(self, fields: dict[str, str]) -> None:
        question = fields["detail"]
        if fields["kind"] == "interrupt.asked":
            # Notices of one question keep their order, but a repeat must not open it again.
            if not self.redis.hexists(ANSWERED, question):
                self.redis.hset(OPEN, question, fields["question"])
        elif fields["kind"] in CLOSED:
            self.redis.hsetnx(ANSWERED, question, json.dumps({"status": fields["kind"]}))
            self.redis.hdel(OPEN, question)

    def _receipt(self, receipt: dict[str, Any]) -> None:
        self.redis.hset(ANSWERED, receipt["interrupt_id"] or receipt["message_id"], json.dumps(receipt))

    def questions(self) -> Iterator[dict[str, Any]]:
        """Give the open questions."""
        for _, question in sorted(self.redis.hgetall(OPEN).items()):
            yield json.loads(question)

    def answer(self, interrupt_id: str, response: Any, responder: str) -> str:
        """Send an answer and return its message id; the receipt comes later.

        The digest says that the answer holds for the question as it was shown, and for no other.
        """
        question = json.loads(self.redis.hget(OPEN, interrupt_id) or "{}")
        body = {
            "v": 1,
            "interrupt_id": interrupt_id,
            "response": response,
            "responder": responder,
            "digest": question.get("digest"),
            "reply_to": RECEIPTS,
        }
        sent: str = self.redis.xadd(RESPONSES, {"body": json.dumps(body)})
        return sent

    def receipts(self) -> dict[str, Any]:
        """Give what became of the questions that were answered here or closed elsewhere."""
        return {key: json.loads(value) for key, value in self.redis.hgetall(ANSWERED).items()}
