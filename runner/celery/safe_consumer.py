"""Celery's consumer, with dead letters for the messages that Celery refuses.

Celery only logs and drops a message whose task is unknown, whose content type is not accepted or
which can't be decoded. A header of the wrong type even ends the worker; RabbitMQ then delivers
the message to the next worker, which ends, too. The consumer below writes each such message to
the dead letters before Celery drops it, and no message ends the worker.

Only a worker that starts imports this module: error trackers change Celery's tracer, which Celery's
consumer imports by name, and many apps initialize theirs after `install`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import NoneType
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.consumer import Consumer

from runner.celery.kombu_fixes import write_dead_letter
from runner.records.validation import one_line

log = logging.getLogger(__name__)

DEAD_LETTER_MARK = "_runner_dead_letter"
"""The attribute of a message whose dead letter was written: Celery may report a message twice."""


class SafeConsumer(Consumer):
    """Celery's consumer, which writes refused messages to the dead letters."""

    def __init__(
        self, on_task_request: Callable[[Any], Any], *args: Any, **options: Any
    ) -> None:
        """Check each request before it reaches the pool."""

        def checked(request: Any) -> Any:
            try:
                check_message(request)
            except InvalidTaskError:
                state.task_ready(request)  # Celery has already counted it as taken
                raise
            return on_task_request(request)

        super().__init__(checked, *args, **options)

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Handle each message as Celery does; an error that Celery doesn't expect makes a dead letter."""
        handle = super().create_task_handler(*args, **options)
        lost = (*self.connection_errors, *self.channel_errors)

        def guarded(message: Any) -> Any:
            try:
                return handle(message)
            except lost:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it would end the next worker, too
                self._write_dead_letter(message, f"it isn't a Celery message: {error!r}")
                if not message.acknowledged:
                    message.reject_log_error(log, self.connection_errors)

        return guarded

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Make a dead letter of a message that names no task."""
        self._write_dead_letter(message, "it isn't a Celery message: it names no task.")
        super().on_unknown_message(body, message)

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Make a dead letter of a message for a task that this worker doesn't have."""
        name = message.headers.get("task")
        reason = f"no worker of this queue knows the task {name!r}: import its module, or use another queue."
        self._write_dead_letter(message, reason)
        super().on_unknown_task(body, message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Make a dead letter of a message with an unaccepted content type or a field of the wrong type."""
        self._write_dead_letter(message, f"Celery refused it: {exc}")
        super().on_invalid_task(body, message, exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Make a dead letter of an undecodable message, except remote control, which Flower repeats forever.

        A command is encoded by the `task_serializer` of its sender's app, and goes to all workers
        of the server.
        """
        if (message.delivery_info or {}).get(
            "exchange"
        ) == self.app.control.mailbox.exchange.name:
            log.info(
                "control.refused: a command of remote control can't be read: %s",
                one_line(str(exc)),
            )
            message.ack()
            return
        self._write_dead_letter(message, f"it can't be read: {exc}")
        super().on_decode_error(message, exc)

    def _write_dead_letter(self, message: Any, reason: str) -> None:
        if getattr(message, DEAD_LETTER_MARK, False):
            return
        setattr(message, DEAD_LETTER_MARK, True)
        body = message.body
        if not isinstance(body, (bytes, bytearray, memoryview)):
            body = (body if isinstance(body, str) else repr(body)).encode(
                errors="backslashreplace"
            )
        queue = str((message.delivery_info or {}).get("routing_key", ""))
        write_dead_letter(self.app, queue, bytes(body), reason)


def check_message(request: Any) -> None:
    """Refuse a message that would raise in a thread of the pool: its slot would never be free again.

    Raises:
        InvalidTaskError: its name, arguments or options have the wrong type.
    """
    payload = request.message.payload
    # A dict is the body of Celery's first protocol, which Celery checked when it read the message.
    args, kwargs, options = ([], {}, {}) if isinstance(payload, dict) else payload
    if not (
        isinstance(request.name, str)
        and isinstance(args, (list, tuple))
        and isinstance(kwargs, dict)
    ):
        raise InvalidTaskError(
            "its name isn't a text, or its arguments aren't a list and an object."
        )
    if not isinstance(options, (dict, NoneType)):
        raise InvalidTaskError("its third part isn't an object.")
