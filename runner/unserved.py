"""Visits that this process can't run, because it doesn't have their graph: said where people look.

Such a visit is put back until a worker takes it that has the graph. Where none has, that goes on
for ever: so the log says it once for each graph, and the run's events once for each visit.
"""

from __future__ import annotations

import logging
import threading

from runner.errors import StoreError
from runner.events import EventKind
from runner.ports import Claim, Store
from runner.registry import Plan

log = logging.getLogger(__name__)

PUT_BACK_MS = 2_000
"""How long a node waits that this process has no code for: another worker may have it."""

KEPT = 10_000
"""Visits that are remembered as told; after so many their runs may be told once more."""


class Unserved:
    """What one process has told already. Thread-safe."""

    def __init__(self, store: Store) -> None:
        """Share the engine's store."""
        self._store = store
        self._lock = threading.Lock()
        self._graphs: set[tuple[str, str]] = set()
        self._visits: dict[tuple[str, str, int], None] = {}

    def tell(self, claim: Claim, plan: Plan | None) -> None:
        """Say that a visit was put back and why; an outage of the store is no reason to stop."""
        token = claim.token
        graph = claim.graph_id
        reason = (
            "no graph of this name can be built here" if plan is None else "another graph has this name here"
        )
        new_graph, new_visit = self._remember(
            (graph, claim.fingerprint), (token.run_id, token.node, token.visit)
        )
        if new_graph:
            log.warning(
                "node.unserved: node %r of run %s is put back: its graph is %r, and %s. It is tried again "
                "until a worker takes it that has the graph; start one, or see `runner doctor`.",
                token.node,
                token.run_id,
                graph,
                reason,
            )
        if new_visit:
            data = {"graph": graph, "reason": reason}
            try:
                self._store.emit(token.run_id, EventKind.NODE_UNSERVED, token.node, token.visit, data)
            except StoreError as error:
                log.warning("event.lost: %s Run %s is not told why it is put back.", error, token.run_id)

    def _remember(self, graph: tuple[str, str], visit: tuple[str, str, int]) -> tuple[bool, bool]:
        with self._lock:
            told = graph not in self._graphs, visit not in self._visits
            self._graphs.add(graph)
            self._visits[visit] = None
            if len(self._visits) > KEPT:
                del self._visits[next(iter(self._visits))]
            return told


def say_held(claim: Claim) -> None:
    """Say that a visit was set aside, for its graph is another one by now."""
    log.warning(
        "node.held: run %s waits for migration: node %r of graph %r is not what it was when the run "
        "started. Answers are kept; see `runner runs show`.",
        claim.token.run_id,
        claim.token.node,
        claim.graph_id,
    )
