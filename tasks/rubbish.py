"""What is no message of Celery, on a queue in Redis, goes to the dead letters and nowhere else.

Without this kombu ends the worker that took it. Worse, some of it would be put back as the worker ends,
and end the next one. It costs nothing where messages are well: only an error is caught.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.transport import redis

from runner.errors import StoreError

log = logging.getLogger(__name__)

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading a message raises that is none. A lost connection is none of these."""

Bury = Callable[[str, bytes, str], object]
"""Writes a dead letter: the queue, the bytes, the reason."""


class Channel(redis.Channel):
    """Kombu's channel, but what can't be read is buried."""

    bury: Bury
    _taken: Any = None

    def _brpop_read(self, **options: Any) -> Any:
        newest = next(reversed(self.qos._delivered), None)  # noqa: SLF001 - no public way
        try:
            return super()._brpop_read(**options)
        except UNREADABLE as error:
            if self._taken is None:
                raise
            self._drop(newest, error)
            return True
        finally:
            self._taken = None

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        client = super()._create_client(asynchronous)
        if asynchronous:
            client.parse_response = partial(self._noted, client.parse_response)
        return client

    def _noted(self, read: Callable[..., Any], connection: Any, command: str, **options: Any) -> Any:
        """Remember what a read takes off a queue: an error would forget it."""
        reply = read(connection, command, **options)
        if command == "BRPOP":
            self._taken = reply
        return reply

    def _drop(self, newest: Any, error: Exception) -> None:
        """Bury what was taken; where kombu counts it as delivered already, it must not be put back."""
        queue, item = self._taken
        added = next(reversed(self.qos._delivered), None)  # noqa: SLF001 - no public way
        if added != newest:
            self.qos.ack(added)
        log.warning(
            "message.dead: %d bytes on queue %s are no message of Celery: %r", len(item), queue, error
        )
        try:
            self.bury(queue.decode(errors="replace"), item, f"it is no message of Celery: {error!r}")
        except StoreError as away:
            log.warning("message.lost: %s The dead letter was not written.", away)


def guard(bury: Bury) -> None:
    """Let the workers of this process bury what they can't read."""
    Channel.bury = staticmethod(bury)
    redis.Transport.Channel = Channel
