"""How any program answers a question: one JSON message on a Redis stream, without the library."""

from __future__ import annotations

import json
import uuid
from typing import Any

import redis


def answer(
    redis_url: str, interrupt_id: str, response: Any, responder: str, seconds: float = 10
) -> dict[str, Any]:
    """Send an answer and return the receipt.

    Raises:
        TimeoutError: no worker read the message in time; it stays in the stream for the next one.
    """
    reply_to = f"runner:replies:{uuid.uuid4()}"
    message = {
        "v": 1,
        "interrupt_id": interrupt_id,
        "response": response,
        "responder": responder,
        "reply_to": reply_to,
    }
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("runner:responses", {"body": json.dumps(message)})
        replies = client.xread({reply_to: "0"}, count=1, block=round(seconds * 1000))
        client.delete(reply_to)
    if not replies:
        raise TimeoutError(f"no worker took the answer to {interrupt_id} within {seconds:g} s.")
    receipt: dict[str, Any] = json.loads(replies[0][1][0][1][b"body"])
    return receipt
