"""Message handling shared by streams and RabbitMQ's queues: each message gets a result or is retried."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from runner.errors import ConflictError, StoreError
from runner.execution.engine import Engine
from runner.operations.message_handlers import (
    Disposition,
    HandlerResult,
    IncomingMessage,
    KeepEarly,
    handle_answer,
    handle_start,
)
from runner.records.codec import JSON
from runner.records.validation import one_line
from runner.settings import Settings
from runner.store.redis.partitions import SharedStore

log = logging.getLogger(__name__)


@dataclass
class MessageHandler:
    """Handles the starts and answers of one door: the name by which the store hands back early answers."""

    _engine: Engine
    _settings: Settings
    _door: str

    def start(self, message: IncomingMessage) -> HandlerResult | None:
        """Handle a start; return None if the store refuses it for now."""
        return self._guard(
            message, lambda: handle_start(self._engine, message, self._settings.on_end)
        )

    def answer(
        self, message: IncomingMessage, early: Callable[[], JSON] | None
    ) -> HandlerResult | None:
        """Handle an answer; None if the store refuses it for now, LEFT if another process must take it.

        `early` returns the stored form of an answer that came before its question; with None, such
        an answer counts as unknown.
        """
        keep = self._keep(early) if early else None
        return self._guard(message, lambda: handle_answer(self._engine, message, keep))

    def _keep(self, early: Callable[[], JSON]) -> KeepEarly | None:
        store = self._engine.store
        seconds = self._settings.early_answer
        if not isinstance(store, SharedStore) or not seconds:
            return None
        return lambda interrupt_id: store.keep_early(interrupt_id, self._door, early(), seconds)

    def _guard(
        self, message: IncomingMessage, handle: Callable[[], HandlerResult]
    ) -> HandlerResult | None:
        """Handle a message; no error of one message may delay the messages behind it."""
        try:
            return handle()
        except ConflictError as error:
            log.info("message.left: %s: %s", one_line(message.key), one_line(error))
            return HandlerResult(Disposition.LEFT)
        except StoreError as error:
            if self._is_away(error):
                raise
            log.info("message.later: %s: %s", one_line(message.key), one_line(error))
            return None
        except Exception as error:
            log.exception("message.failed: %s goes to the dead letters.", one_line(message.key))
            return HandlerResult(Disposition.DEAD, reason=f"it could not be applied: {error!r}")

    def _is_away(self, error: StoreError) -> bool:
        """Return whether no message can be applied now; otherwise the store refuses only this one.

        A refused message is retried, since people may remove the cause, and the messages behind it
        don't wait. With several partitions, perhaps only this message's partition is away.
        """
        one_server = len(self._settings.partition_addresses) == 1
        return error.passing and one_server
