"""Cache of the freezes for this process: it looks every few seconds, and only while it has work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from runner.approvals import freezes
from runner.approvals.freezes import Freeze
from runner.errors import EffectsFrozen, StoreError
from runner.store.interface import Store

log = logging.getLogger(__name__)

LOOK_EVERY = 5.0
"""Seconds for which a process works without a look: so long a freeze may take to be in force everywhere."""

WAIT_MS = 15_000
"""For how long a node waits that has met a frozen tool, before it looks again."""


class Freezes:
    """Cache of freezes. Thread-safe; without work it costs nothing, with work a read every few seconds."""

    def __init__(self, store: Store, names: Callable[[str], Iterable[str]] = lambda _: ()) -> None:
        """Nothing is read yet. `names` returns further names of the graphs on a path."""
        self._store, self._names, self._due = store, names, 0.0
        self._known: Mapping[str, Freeze] = {}

    def refresh(self) -> None:
        """Read now what is frozen; where the store is away, what was read last counts on."""
        self._due = time.monotonic() + LOOK_EVERY
        try:
            self._known = self._store.frozen()
        except StoreError as error:
            log.info("freeze.unread: %s What was read last counts.", error)

    def of(self, graph: str, tool: str = "") -> Freeze | None:
        """Return what stops a node of a graph, or a call of a tool there.

        What is said to stop something is read again: after a thaw the doorbell rings at once, and who
        still believed in the freeze would let it pass.
        """
        active_freezes = self.known
        if not active_freezes:
            return None
        names = self._names(graph)
        freeze = freezes.frozen(active_freezes, graph, tool, names)
        if freeze is not None:
            self.refresh()
            freeze = freezes.frozen(self._known, graph, tool, names)
        return freeze

    @property
    def known(self) -> Mapping[str, Freeze]:
        """All that is frozen, by its scope."""
        if time.monotonic() >= self._due:
            self.refresh()
        return self._known

    def check(self, graph: str, tool: str = "") -> None:
        """Stop before an effect that is frozen.

        Raises:
            EffectsFrozen: it is; the node is tried again later.
        """
        freeze = self.of(graph, tool)
        if freeze is not None:
            raise EffectsFrozen(str(freeze))
