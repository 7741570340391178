"""What Celery refuses goes to the dead letters, with the reason; what it stumbles over ends no worker.

Celery only logs a message whose task nobody knows, whose content type is not accepted or which can't be
read. A header that is not what it should be even ends the worker. A RabbitMQ then gives the message to
the next worker, which ends, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import NoneType
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker import consumer, state
from celery.worker.request import Request

from runner.errors import StoreError, UsageError
from tasks.engines import settings_of
from tasks.plain_bodies import message_of, raw
from tasks.responses import outbox_of

log = logging.getLogger(__name__)

MOST = 1000
"""Characters of a reason."""
MARK = "_runner_buried"
NAME = f"{__name__}:Consumer"
"""As Celery's setting `worker_consumer` has it."""


class Consumer(consumer.Consumer):
    """Celery's consumer, but what it refuses is buried before it is let go of."""

    def __init__(self, on_task_request: Callable[[Any], Any], *args: Any, **options: Any) -> None:
        """Look at each request before the pool gets it."""

        def checked(request: Any) -> Any:
            try:
                check(request)
            except InvalidTaskError:
                state.task_ready(request)  # Celery has noted it as taken already
                raise
            return on_task_request(request)

        super().__init__(checked, *args, **options)

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Take each message as Celery does, and live on whatever it is."""
        handle = super().create_task_handler(*args, **options)
        lost = (*self.connection_errors, *self.channel_errors)

        def guarded(message: Any) -> Any:
            try:
                return handle(message)
            except lost:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the next worker would end of it, too
                self._bury(message, f"it is no message of Celery: {error!r}")
                if not message.acknowledged:
                    message.reject_log_error(log, self.connection_errors)

        return guarded

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Bury what names no task."""
        self._bury(message, "it is no message of Celery: it names no task.")
        super().on_unknown_message(body, message)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Bury a message for a task that this worker does not have."""
        name = message.headers.get("task")
        reason = (
            f"no worker of this queue knows the task {name!r}; import its module there, or send it elsewhere."
        )
        self._bury(message, reason)
        super().on_unknown_task(body, message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Bury a message of a content type that is not accepted, or with a field that can't be."""
        self._bury(message, f"Celery refused it: {exc}")
        super().on_invalid_task(body, message, exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Bury what can't be decoded."""
        self._bury(message, f"it can't be read: {exc}")
        super().on_decode_error(message, exc)

    def _bury(self, message: Any, reason: str) -> None:
        if not getattr(message, MARK, False):
            setattr(message, MARK, True)
            queue = str((message.delivery_info or {}).get("routing_key", ""))
            bury(self.app, queue, _bytes(message.body), reason)


class Perishable(Request):
    """A message for one of our doors: one that expired is a dead letter, which can be sent again."""

    def maybe_expire(self) -> bool:
        """Tell whether its sender wants it no more."""
        if not super().maybe_expire():
            return False
        try:
            body = message_of(self.id, self.args, self.kwargs)
        except UsageError:
            body = raw(self.kwargs)
        bury(self.app, self.name, body, f"it expired at {self.expires} before a worker took it.")
        return True


def check(request: Any) -> None:
    """Refuse what would be lost in a thread of the pool: its slot would never be free again.

    Raises:
        InvalidTaskError: the message is none of Celery's.
    """
    payload = request.message.payload
    # What is a dict is of Celery's first protocol, and was looked at when it was read.
    args, kwargs, embedded = ([], {}, {}) if isinstance(payload, dict) else payload
    if not (isinstance(request.name, str) and isinstance(args, (list, tuple)) and isinstance(kwargs, dict)):
        raise InvalidTaskError("its name is no text, or its arguments are no list and no object.")
    if not isinstance(embedded, (dict, NoneType)):
        raise InvalidTaskError("its third part is no object.")


def bury(app: Any, source: str, body: bytes, reason: str) -> None:
    """Write a dead letter; where the store is away, the log has to do."""
    source, reason = _clean(source), _clean(reason)
    log.warning("message.dead: %d bytes from %s: %s", len(body), source, reason)
    try:
        outbox_of(settings_of(app).redis_url).bury(source, body, reason)
    except StoreError as away:
        log.warning("message.lost: %s The dead letter was not written.", away)


def _bytes(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    return (body if isinstance(body, str) else repr(body)).encode(errors="backslashreplace")


def _clean(text: str) -> str:
    """Shorten a text with parts of the message, and write what is no UTF-8 in letters that are."""
    return text[:MOST].encode(errors="backslashreplace").decode()
