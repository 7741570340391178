"""Nodes that this process can't run: put back for another one, or held until their run is migrated."""

from __future__ import annotations

import logging
from collections.abc import Callable

from runner import releases, unserved
from runner.last_lives import LastLives
from runner.ports import Claim, Reply, Store
from runner.registry import Plan, Registry
from runner.unserved import PUT_BACK_MS, Unserved

log = logging.getLogger(__name__)


class Aside:
    """The part of the engine that sets nodes aside."""

    store: Store
    registry: Registry
    _last_lives: LastLives
    _unserved: Unserved
    _ring: Callable[[Reply], Reply]

    def _find(self, graph_id: str) -> Plan | None:
        """Find a graph; one whose factory raises is put back like one that this process doesn't have."""
        try:
            return self.registry.find(graph_id)
        except Exception:
            log.exception("graph.broken: graph %r could not be built; its node is put back.", graph_id)
            return None

    def _set_aside(self, plan: Plan | None, claim: Claim) -> str:
        """A deploy changed the graph: hold an older run's node; leave a newer run's to newer workers."""
        self._last_lives.ended(claim.token)
        if releases.is_newest(self.store, self._find, plan, claim):
            unserved.say_held(claim)
            return self._ring(self.store.hold(claim.token)).word
        word = self._put_back(claim, PUT_BACK_MS)
        if word == "retrying":
            self._unserved.tell(claim, plan)
        return word

    def _put_back(self, claim: Claim, delay_ms: int) -> str:
        """Let a node be tried again later, by whichever worker takes it; no attempt is counted."""
        return self._ring(self.store.retry(claim.token, delay_ms, None, None)).word
