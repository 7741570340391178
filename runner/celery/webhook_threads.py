"""The threads in which a process serves webhooks, one for each; none where there is no webhook.

The sweep finds the timer of a webhook, and begins one unless this process has it. A thread that finds that
another process serves the webhook ends at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from runner.errors import RunnerError
from runner.execution.engine import Engine
from runner.settings import Settings
from runner.store.redis.webhooks import Webhooks
from runner.webhooks.delivery import WebhookSender

log = logging.getLogger(__name__)

ENDS_WITHIN = 2.0
"""Seconds that a stopping worker waits for all of them; what one was sending, another process sends again."""


class WebhookThreads:
    """The threads of this process."""

    def __init__(self, engine: Engine, settings: Settings, is_stopping: Callable[[], bool]) -> None:
        """Nothing is connected yet."""
        self._is_stopping = is_stopping
        self._stored = Webhooks(settings.redis_url, settings.namespace, settings.partitions)
        self._sender = WebhookSender(engine.store, self._stored, settings)
        self._threads: dict[str, threading.Thread] = {}

    def begin(self, webhook_id: str) -> None:
        """Serve a webhook, unless a thread does so already."""
        thread = self._threads.get(webhook_id)
        if thread is not None and thread.is_alive():
            return
        self._threads = {
            name: thread for name, thread in self._threads.items() if thread.is_alive()
        }
        name = f"runner-webhook-{webhook_id}"
        thread = threading.Thread(target=self._serve, args=[webhook_id], name=name, daemon=True)
        self._threads[webhook_id] = thread
        thread.start()

    def join(self) -> None:
        """Wait a moment for the threads, which were told to stop."""
        ends = time.monotonic() + ENDS_WITHIN
        for thread in self._threads.values():
            thread.join(max(0, ends - time.monotonic()))

    def _serve(self, webhook_id: str) -> None:
        try:
            self._sender.serve(webhook_id, self._is_stopping)
        except RunnerError as error:
            log.warning("webhook.waits: %s It is tried again after a lease.", error)
        except Exception:
            log.exception(
                "webhook.failed: %r is tried again after a lease; please report this.", webhook_id
            )
        finally:
            self._stored.close()
