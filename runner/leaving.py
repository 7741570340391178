"""A process that ends gives up what it runs: others begin it at once, no lease has to run out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.errors import StoreError
from runner.last_lives import LastLives
from runner.leases import Lease, Leases
from runner.ports import Reply, Store, Token

log = logging.getLogger(__name__)


class Leaving:
    """The part of the engine that leaves.

    `told_to_end` tells whether a signal ends this process, so that a SystemExit in a node comes from it
    and not from the node's own code. That code counts as a lost worker: it would end every process.
    """

    store: Store
    _ring: Callable[[Reply], Reply]
    leases: Leases
    _last_lives: LastLives
    told_to_end: Callable[[], bool] = staticmethod(lambda: False)

    def running(self) -> list[Token]:
        """List what this process runs now."""
        return self.leases.held()

    def leave(self) -> list[Token]:
        """Give up all that this process runs, and return it; what its code still does is refused."""
        return [token for token in self.running() if self._give_up(token)]

    @contextmanager
    def _hold(
        self, token: Token, timeout: float | None, on_timeout: Callable[[Lease], object]
    ) -> Iterator[Lease]:
        """Hold a lease; give it up when a signal ends this process, a child of a pool, meanwhile."""
        with self.leases.hold(token, timeout, on_timeout) as lease:
            try:
                yield lease
            except SystemExit:
                if self.told_to_end():
                    self._give_up(token)
                raise
            finally:
                self._last_lives.ended(token)

    def _give_up(self, token: Token) -> bool:
        # First no more renewal: where the store is away, the lease runs out by itself.
        self.leases.drop(token)
        try:
            return self._ring(self.store.leave(token)).word != "stale"
        except StoreError as error:
            log.warning("node.kept: %s Its lease runs out instead.", error)
            return False
