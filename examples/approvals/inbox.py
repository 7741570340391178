"""The inbox: reads notices, stores the open questions, sends answers, reads receipts.

This is all that an approval service has to do, and it needs only a Redis client. Its own keys
begin with `approvals:`.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import redis

NOTICES = "runner:{p00}:notices"
RESPONSES = "runner:responses"
RECEIPTS = "runner:replies:approvals"
GROUP = "approvals"
OPEN = "approvals:open"
ANSWERED = "approvals:answered"
APPLIED = "approvals:applied"
CLOSED = {"interrupt.answered", "interrupt.expired", "interrupt.withdrawn"}
NEW = ">"
WAIT = 1000  # ms

APPLY = """
-- A notice of a question is applied once, and none after a later one. So a repeat opens nothing, and a
-- question is shown again when a migration gives its node an old name back, and the question its old id.
local applied, open, answered, question, number, asked, outcome = KEYS[1], KEYS[2], KEYS[3], unpack(ARGV)
if tonumber(redis.call('HGET', applied, question) or '0') >= tonumber(number) then return end
redis.call('HSET', applied, question, number)
if asked ~= '' then
  redis.call('HSET', open, question, asked)
  redis.call('HDEL', answered, question)
else
  redis.call('HSETNX', answered, question, outcome)
  redis.call('HDEL', open, question)
end
"""


def asked(notice: Mapping[str, Any], question: Mapping[str, Any]) -> str:
    """Return what the page shows of a question: what it asks, and where."""
    return json.dumps(
        {**question, "id": notice["detail"], "run_id": notice["run_id"], "node": notice["node"]}
    )


class Inbox:
    """Open questions. Use one inbox per process; other processes may have their own."""

    broken = (redis.RedisError,)
    """What may be raised while the store is unavailable."""

    def __init__(self, url: str) -> None:
        """Connect to the store; the consumer group starts at the oldest notice in the stream."""
        self.redis: Any = redis.Redis.from_url(url, decode_responses=True)
        self.reader = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        for stream in (NOTICES, RECEIPTS):
            try:
                self.redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def follow(self) -> int:
        """Apply new entries, waiting up to a second for them, and return their number.

        An entry is acknowledged only when it was applied. Applying one twice changes nothing.
        """
        streams = {NOTICES: NEW, RECEIPTS: NEW}
        entries = self.redis.xreadgroup(GROUP, self.reader, streams, count=100, block=WAIT)
        self._apply(entries)
        return sum(len(batch) for _, batch in entries)

    def recover(self) -> None:
        """Take over the entries that a dead reader has read and not acknowledged."""
        for stream in (NOTICES, RECEIPTS):
            _, entries, *_ = self.redis.xautoclaim(
                stream, GROUP, self.reader, 60_000, "0", count=1000
            )
            self._apply([(stream, entries)])

    def _apply(self, streams: list[Any]) -> None:
        for stream, entries in streams:
            for entry_id, fields in entries:
                self._notice(fields) if stream == NOTICES else self._receipt(
                    json.loads(fields["body"])
                )
                self.redis.xack(stream, GROUP, entry_id)

    def _notice(self, fields: dict[str, str]) -> None:
        kind, question = fields["kind"], fields["detail"]
        opened = (
            asked(fields, json.loads(fields["question"])) if kind == "interrupt.asked" else ""
        )
        if opened or kind in CLOSED:
            number = fields["id"].rpartition(":")[
                2
            ]  # of the event in its run: the id is RUN:NUMBER
            outcome = json.dumps({"status": kind})
            self.redis.eval(
                APPLY, 3, APPLIED, OPEN, ANSWERED, question, number, opened, outcome
            )

    def _receipt(self, receipt: dict[str, Any]) -> None:
        self.redis.hset(
            ANSWERED, receipt["interrupt_id"] or receipt["message_id"], json.dumps(receipt)
        )

    def questions(self) -> Iterator[dict[str, Any]]:
        """Yield the open questions."""
        for _, question in sorted(self.redis.hgetall(OPEN).items()):
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
            "reply_to": RECEIPTS,
        }
        message_id: str = self.redis.xadd(RESPONSES, {"body": json.dumps(body)})
        return message_id

    def receipts(self) -> dict[str, Any]:
        """Return the outcome of each question that was answered here or closed elsewhere."""
        return {key: json.loads(value) for key, value in self.redis.hgetall(ANSWERED).items()}
