"""Amazon SQS as the broker: kombu's transport, fixed so that no SQS error ends a worker."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from celery import Celery

from runner.celery.config import settings_of
from runner.definition.model import DEFAULT_PRIORITY
from runner.errors import UsageError, needs_extra
from runner.records.validation import one_line

with needs_extra("sqs", "SQS as the broker"):
    from botocore.exceptions import ClientError
    from kombu.asynchronous import set_event_loop
    from kombu.asynchronous.http import get_client
    from kombu.transport import SQS

log = logging.getLogger(__name__)

QUEUES = 100
"""Queues that a worker reads in parallel; kombu reads 10, each for 10 seconds, while the others wait."""

RETRY = 1.0
"""Seconds between two polls of a queue that fail."""

FAILED = object()

NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


class SqsConnection(SQS.AsyncSQSConnection):
    """A worker's polls; the result of a failed poll is its reason."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Read many queues."""
        super().__init__(*args, http_client=get_client(max_clients=QUEUES), **options)

    def _on_list_ready(self, parent: Any, markers: Any, operation: str, response: Any) -> Any:
        if response.status == self.STATUS_CODE_OK:
            return super()._on_list_ready(parent, markers, operation, response)
        body = (response.read() or b"").decode(errors="replace")
        return one_line(f"{response.status} {response.reason} {body}")


SQS.AsyncSQSConnection = SqsConnection


class SqsChannel(SQS.Channel):
    """kombu's channel, which polls again after any failure; kombu's own ends the worker or stops polling."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Poll nothing yet."""
        super().__init__(*args, **options)
        self._failing: set[str] = set()

    def _on_messages_ready(self, url: str, queue: str, messages: dict[str, Any] | str) -> Any:
        if isinstance(messages, dict):
            self._failing.discard(queue)
            return super()._on_messages_ready(url, queue, messages)
        if queue not in self._failing:
            self._failing.add(queue)
            log.warning(
                "queue.unread: SQS did not answer for the queue %s: %s. Trying again each second.",
                queue,
                messages,
            )
        if "QueueDoesNotExist" in messages or "NonExistentQueue" in messages:
            self._queue_cache.pop(self.canonical_queue_name(queue), None)  # so it is created
        return FAILED

    def _loop1(self, queue: str, fetched: Any = None) -> None:
        if fetched is FAILED:
            self.hub.call_later(RETRY, self._schedule_queue, queue)
        else:
            super()._loop1(queue, fetched)


class SqsTransport(SQS.Transport):
    """kombu's transport, which treats every SQS refusal as a connection error."""

    Channel = SqsChannel
    connection_errors = (*SQS.Transport.connection_errors, ClientError)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Name the loop again: after an error Celery has reset it, and kombu would stop polling."""
        set_event_loop(loop)
        super().register_with_event_loop(connection, loop)


def check_queues(app: Celery, priorities: Mapping[str, AbstractSet[int]]) -> None:
    """Refuse features that SQS lacks; `priorities` holds the priorities of each queue's nodes.

    Raises:
        UsageError: SQS can't name a queue so, or its nodes have priorities.
    """
    prefix = (app.conf.broker_transport_options or {}).get("queue_name_prefix", "")
    queues: dict[str, str] = {}
    for queue in sorted({settings_of(app).messages_queue, *priorities}):
        name = SqsChannel.entity_name(SqsChannel, prefix + queue)
        other = queues.setdefault(name, queue)
        if not NAME.fullmatch(name) or other != queue:
            problem = f"as {other!r} is" if other != queue else "which isn't a valid name there"
            raise UsageError(
                f"the queue {queue!r} would be {name!r} on SQS, {problem}. Names have at most 80 letters, "
                "digits, - and _ (. and / become - and _). Give its graph another one with set_queue(...)."
            )
        if priorities.get(queue, set()) - {DEFAULT_PRIORITY}:
            raise UsageError(
                f"nodes of the queue {queue!r} have priorities, which SQS does not have. Leave out "
                "priority=, and give urgent nodes a separate queue (queue=) with separate workers."
            )
