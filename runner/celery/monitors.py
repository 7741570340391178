"""Celery's task events, which a worker on Redis publishes only while a monitor such as Flower listens.

Redis drops an event without subscribers, but making and publishing it costs as much as
running a short node. PUBLISH returns its number of subscribers, so an empty message tells whether
there are any.
"""

from __future__ import annotations

import time
from typing import Any

from celery.events import EventDispatcher
from kombu.utils.json import dumps

from runner.celery.shutdown import stopping

KNOWN_FOR = 1.0
"""Seconds after which the next event of a task asks again whether a monitor listens."""

COLLECTED_FOR = 0.1
"""Seconds after which events of tasks are published, many in one message."""

NO_EVENTS = dumps(
    {
        "body": "[]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"delivery_tag": "", "delivery_info": {}},
    }
)
"""A message without events, which a monitor ignores."""


class MonitoredDispatcher(EventDispatcher):
    """Publishes events of workers as Celery does, and those of tasks while a monitor listens."""

    def __init__(self, *args: Any, on_send_buffered: Any = None, **options: Any) -> None:
        """Collect events only where Celery does, which needs an event loop."""
        super().__init__(
            *args, on_send_buffered=on_send_buffered and self._flush_later, **options
        )
        self._flush_soon, self._is_due = on_send_buffered, False
        # The consumer's: kombu forgets the process's event loop at a reconnection.
        self._hub = on_send_buffered and on_send_buffered.__self__.hub
        self._known_until = self.unheard_until = 0.0

    def send(self, type: str, *args: Any, **fields: Any) -> None:  # noqa: A002 - Celery's name
        """Send an event, unless it is a task's and no monitor listens."""
        if not type.startswith("task-"):
            # A monitor that gets this event also gets the next task's.
            self._known_until = self.unheard_until = 0.0
            if type == "worker-offline" and stopping():
                self.flush()
        elif not self.enabled or (self.groups and "task" not in self.groups):
            return
        elif time.monotonic() > self._known_until:
            self._known_until = time.monotonic() + KNOWN_FOR
            try:
                self.unheard_until = 0.0 if self._has_listeners() else self._known_until
            except Exception:  # noqa: BLE001 - a closed channel raises AttributeError
                self.unheard_until = 0.0  # Celery keeps events until the broker is back
        if not (self.unheard_until and type.startswith("task-")):
            super().send(type, *args, **fields)

    def _has_listeners(self) -> bool:
        with self.mutex:
            channel = self.producer and self.producer.channel
            if channel is None:
                return False
            topic = channel._get_publish_topic(self.exchange.name, "task.multi")  # noqa: SLF001 - no public way
            with channel.conn_or_acquire() as client:
                return bool(client.publish(topic, NO_EVENTS))

    def _flush_later(self) -> None:
        if stopping():
            self._flush_soon()  # the event loop may end sooner
        elif not self._is_due:
            self._is_due = True
            self._hub.call_soon(self._hub.call_later, COLLECTED_FOR, self._flush_collected)

    def _flush_collected(self) -> None:
        self._is_due = False
        self.flush()
