"""Quarantine: of the nodes that may have killed their workers, a process runs one at a time.

Whatever kills a process kills all that runs there. In a worker of threads nodes then lose their leases
together, and nothing shows which of them is to blame. So a node whose next lost lease would fail it runs
alone among its like: only the one that kills is lost in the end. Where a process runs one node at a time
anyway, this changes nothing.
"""

from __future__ import annotations

import os
import threading
import weakref

from runner.errors import NotFoundError
from runner.scheduler import CRASH_BUDGET
from runner.store.interface import Claim, Reply, Store, Token


class Quarantine:
    """Claims visits, one in quarantine at a time. Thread-safe, and usable after a fork."""

    def __init__(self, store: Store) -> None:
        """Claim in this store."""
        self._store = store
        self._forget()
        if hasattr(os, "register_at_fork"):
            forget = weakref.WeakMethod(self._forget)
            os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def _forget(self) -> None:
        self._running: Token | None = None
        self._lock = threading.Lock()

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | Reply:
        """Claim a visit as the store does; "crowded" where another node in quarantine runs here.

        Then nothing was written, and its doorbell rings again later.
        """
        if attempt < CRASH_BUDGET:  # it can't have lost that many leases yet
            return self._store.claim(run_id, node, visit, attempt, nonce)
        with self._lock:
            if self._running is not None and self._is_last(run_id, node):
                return Reply("crowded")
            claim = self._store.claim(run_id, node, visit, attempt, nonce)
            if isinstance(claim, Claim) and claim.record.crashes + 1 >= CRASH_BUDGET:
                self._running = claim.token
            return claim

    def release(self, token: Token) -> None:
        """Allow the next node in quarantine to run, if this was one."""
        with self._lock:
            if self._running == token:
                self._running = None

    def _is_last(self, run_id: str, node: str) -> bool:
        try:
            ((record, *_),) = self._store.fetch(run_id, [node])
        except NotFoundError:
            return False
        return record.crashes + 1 >= CRASH_BUDGET
