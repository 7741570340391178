"""A program that answers one question, and dies where it is told: before or behind the store's transition.

Arguments: the question's id, the response, the idempotency key, and "before", "after" or "never".
"""

from __future__ import annotations

import functools
import os
import signal
import sys

from runner import Client
from runner.store.redis.store import RedisStore

question, response, key, moment = sys.argv[1:]
answer = RedisStore.answer


@functools.wraps(answer)
def dying(*args):
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    receipt = answer(*args)
    if moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


RedisStore.answer = dying
receipt = Client().respond(question, response, idempotency_key=key)
print(f"{receipt.status} {receipt.run_id} {receipt.detail}")  # noqa: T201 - that is its answer
