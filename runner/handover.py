"""Handing a node's work to another system, and taking what that says of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from runner import sizes
from runner.outcomes import Handed
from runner.ports import Reply, Store, Token

JSON = Any
log = logging.getLogger(__name__)


class Handover:
    """The part of the engine that works with other systems."""

    store: Store
    _ring: Callable[[Reply], Reply]

    def report(self, run_id: str, node: str, visit: int, reference: str, outcome: JSON) -> str:
        """Say how the work of that name ended, packed: "reported", or "stale" or "unknown" when too late.

        Raises:
            PayloadTooLarge: it is larger than a value may be; nothing was stored.
        """
        sizes.check(f"the report on {reference}", outcome, self.store.max_bytes)
        return self._ring(self.store.report(run_id, node, visit, reference, outcome)).word

    def _hand(self, token: Token, outcome: Handed, timeout: float | None) -> str:
        """Let a node wait, then tell the other system; `timeout` is in seconds from then on."""
        word = self._ring(self.store.hand(token, outcome.reference)).word
        if word != "handed":
            return word
        try:
            outcome.send()
        except Exception:
            log.exception("work.unsent: %s is sent again when a lease has passed.", outcome.reference)
            return word
        self.store.sent(token, outcome.reference, max(1, round(timeout * 1000)) if timeout else 0)
        return word
