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
from runner.store.requests import AnswerQuestions

question, response, key, moment = sys.argv[1:]
do = RedisStore.do


@functools.wraps(do)
def dying(self, request):
    answers = isinstance(request, AnswerQuestions)
    if answers and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    reply = do(self, request)
    if answers and moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return reply


RedisStore.do = dying
receipt = Client().respond(question, response, idempotency_key=key)
print(f"{receipt.status} {receipt.run_id} {receipt.detail}")  # noqa: T201 - that is its answer
