"""Nodes with one life left: of these a process runs one at a time.

Whatever kills a process kills all that runs there. In a worker of threads nodes so lose their lives
together, and nobody can tell which of them is to blame. Run one by one on their last life, only the
one that kills is lost in the end. Where a process runs one node anyway, this changes nothing.
"""

from __future__ import annotations

import os
import threading
import weakref

from runner.errors import NotFoundError
from runner.ports import Claim, Reply, Store, Token
from runner.schedule import CRASH_BUDGET


class LastLives:
    """Which node of this process is on its last life. Thread-safe, and usable after a fork."""

    def __init__(self, store: Store) -> None:
        """Claim in this store."""
        self._store = store
        self._forget()
        if hasattr(os, "register_at_fork"):
            forget = weakref.WeakMethod(self._forget)
            os.register_at_fork(after_in_child=lambda: (found := forget()) and found())

    def _forget(self) -> None:
        self._running: Token | None = None
        self._lock = threading.Lock()

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        """Claim a visit as the store does; "crowded" where another node on its last life runs here.

        Then nothing was written: what is claimed has a life to lose. Its doorbell rings again.
        """
        if attempt < CRASH_BUDGET:  # so many lives it can't have lost
            return self._store.claim(run_id, node, visit, attempt, nonce)
        with self._lock:
            if self._running is not None and self._is_last(run_id, node):
                return Reply("crowded")
            claim = self._store.claim(run_id, node, visit, attempt, nonce)
            if isinstance(claim, Claim) and claim.record.crashes + 1 >= CRASH_BUDGET:
                self._running = claim.token
            return claim

    def ended(self, token: Token) -> None:
        """Let the next one come, if this was on its last life."""
        with self._lock:
            if self._running == token:
                self._running = None

    def _is_last(self, run_id: str, node: str) -> bool:
        try:
            ((record, *_),) = self._store.fetch(run_id, [node])
        except NotFoundError:
            return False
        return record.crashes + 1 >= CRASH_BUDGET
