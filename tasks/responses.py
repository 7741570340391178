"""Answers and starts as messages: from the streams, and as Celery tasks by name.

The streams are read by a thread of the worker, so that an answer is applied at once, also while
every slot is busy. The tasks put their message on the same streams: one way in for all.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from functools import cache
from typing import Any

from celery import shared_task

from runner import ids
from runner.errors import ConflictError, StoreError, UsageError
from runner.intake import Fate, Sent, Verdict, judge_answer, judge_start
from runner.store.keys import RESPONSES, STARTS
from runner.store.streams import Entry, Intake, Outbox
from tasks.background import Background
from tasks.engines import settings_of
from tasks.plain_bodies import message_of, raw

log = logging.getLogger(__name__)

WAIT = 1.0
"""Seconds of one blocking read, and so the longest that a worker which stops waits for this thread."""

RETRIED = 1.0
"""Seconds after which an entry is tried again: its reader is gone, or it came before its question."""

GONE = 60.0
"""Seconds without a sign of life after which a reader's name is removed."""

OPTIONS: dict[str, Any] = {
    "ignore_result": True,
    "acks_late": True,
    "autoretry_for": (StoreError,),
    "default_retry_delay": 5,
    "max_retries": None,
}
"""Until the store has the message the task keeps it, and tries again every five seconds."""


class Responses(Background):
    """Reads the streams and applies what comes."""

    label = "responses"

    def prepare(self, worker: Any) -> None:  # noqa: ARG002 - as declared in Background
        """Join the group under a name that no other reader has."""
        reader = f"{socket.gethostname()}-{os.getpid()}-{ids.nonce()}"
        self._intake = Intake(self.settings.redis_url, reader)
        self._outbox = outbox_of(self.settings.redis_url)
        self._due = 0.0

    def turn(self) -> None:
        """Apply what is new, and every second what was left over."""
        for entry in self._intake.read(WAIT):
            self._apply(entry)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + RETRIED
            for entry in self._intake.take_over(RETRIED):
                self._apply(entry)
            self._intake.forget(GONE)

    def leave(self) -> None:
        """Take this reader's name off the group."""
        self._intake.leave()

    def _apply(self, entry: Entry) -> None:
        try:
            verdict = self._judge(entry)
        except (StoreError, ConflictError) as error:
            if is_away(error):
                raise
            log.info("message.later: %s %s: %s", entry.stream, entry.id, error)
            return
        except Exception as error:
            # Whatever it is, it must not keep the messages behind it waiting.
            log.exception("message.failed: %s %s is put among the dead letters.", entry.stream, entry.id)
            verdict = Verdict(Fate.DEAD, reason=f"it could not be applied: {error!r}")
        if verdict.fate is not Fate.EARLY:
            self._finish(entry, verdict)

    def _judge(self, entry: Entry) -> Verdict:
        sent = Sent(entry.id, entry.key, entry.body, lambda: self._intake.age(entry))
        if entry.stream == STARTS:
            return judge_start(self.engine, sent)
        verdict = judge_answer(self.engine, sent, self.settings.early_answer)
        if verdict.fate is Fate.EARLY and self._intake.is_full(entry.stream):
            return judge_answer(self.engine, sent, 0)
        return verdict

    def _finish(self, entry: Entry, verdict: Verdict) -> None:
        """Send the receipt, and only then let go of the message."""
        if verdict.receipt is not None and verdict.reply_to is not None:
            self._outbox.reply(verdict.reply_to, verdict.receipt.model_dump_json().encode())
        if verdict.fate is Fate.DEAD:
            log.warning("message.dead: %s %s: %s", entry.stream, entry.id, verdict.reason)
            self._intake.bury(entry, verdict.reason)
        else:
            self._intake.done(entry)


def is_away(error: Exception) -> bool:
    """Tell whether nothing can be applied now. Else it is this message that the store does not take.

    Such a one is tried again, for people may mend what it meets; those behind it don't wait for that.
    """
    return isinstance(error, StoreError) and error.passing


@cache
def outbox_of(redis_url: str) -> Outbox:
    """Return this process's way out to a store."""
    return Outbox(redis_url)


DOOR: dict[str, Any] = {
    **OPTIONS,
    "Strategy": "tasks.plain_bodies:strategy",
    "Request": "tasks.refusals:Perishable",
}


@shared_task(bind=True, name="tasks.respond", **DOOR)
def respond(self: Any, *args: object, **message: object) -> None:
    """Answer a question: `app.send_task("tasks.respond", kwargs={"interrupt_id": ..., "response": ...})`."""
    _hand_over(self, RESPONSES, args, message)


@shared_task(bind=True, name="tasks.start", **DOOR)
def start(self: Any, *args: object, **message: object) -> None:
    """Begin a run: `app.send_task("tasks.start", kwargs={"graph": ..., "task": ...})`."""
    _hand_over(self, STARTS, args, message)


def _hand_over(task: Any, stream: str, args: tuple[object, ...], message: dict[str, object]) -> None:
    outbox = outbox_of(settings_of(task.app).redis_url)
    try:
        body = message_of(task.request.id, args, message)
    except UsageError as error:
        outbox.bury(task.name, raw(message), str(error))
        return
    outbox.send(stream, body)
