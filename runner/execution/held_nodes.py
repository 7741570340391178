"""Nodes that a process can't run, because it doesn't have their graph.

If a deploy changed a waiting run's graph, the node is held: its run needs migration. A process that
publishes a graph later releases the held nodes that it can run: a rollback brings the older graph
back, or another deploy may have the node unchanged. If the run is newer than this process, the node
is returned to the queue until a worker that has the graph takes it: at once by each process that
gets it for the first time, later after a pause. If no worker has the graph, that goes on forever,
so the log names the graph once per process, and the run's events name each visit once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from runner.definition.model import shape_name
from runner.definition.registry import CompiledGraph, Registry
from runner.errors import StoreError
from runner.records.listings import RunQuery, RunSummary
from runner.records.run import PATH, EventKind, Status
from runner.store.interface import Claim, Reply, RunSnapshot, Store, Token
from runner.store.requests import EmitEvent, ReleaseNodes

log = logging.getLogger(__name__)

UNDER_WAY = (Status.EXECUTING, Status.INTERRUPTED, Status.NEEDS_MIGRATION)
"""Statuses of runs whose nodes a process may have to run."""

PAGE = 1_000
"""Runs in one page of a listing."""

RETURN_DELAY_MS = 2_000
"""Delay of a node that this process gets again without having its code: probably no other has it."""

REMEMBERED = 10_000
"""Visits remembered as reported; beyond that, a run's event may be written again."""


def plans_of(registry: Registry, names: Sequence[str]) -> dict[str, CompiledGraph]:
    """Return graphs and their nested graphs by path."""
    return {plan.topology.graph_id: plan for name in names for plan in registry.family(name)}


def runs_of(store: Store, query: RunQuery) -> Iterator[RunSummary]:
    """List all runs that a query matches, reading page by page."""
    cursor: str | None = ""
    while cursor is not None:
        page = store.runs(query, PAGE, cursor)
        yield from page
        cursor = page.next


def is_current(
    store: Store,
    find: Callable[[str], CompiledGraph | None],
    plan: CompiledGraph | None,
    claim: Claim,
) -> bool:
    """Return whether this process has the current graph, so that a node it can't run is of an older run.

    If a nested graph is gone, the graph around it decides.
    """
    path = claim.graph_id
    while plan is None and (path := path.rpartition(PATH)[0]):
        plan = find(path)
    return plan is not None and store.graphs().get(path) == plan.topology.fingerprint


def release(store: Store, registry: Registry, names: Sequence[str]) -> Iterator[Reply]:
    """Release the held nodes that are unchanged in this process's version of some graphs."""
    plans = plans_of(registry, names)
    for run in list(runs_of(store, RunQuery(Status.NEEDS_MIGRATION))):
        plan = plans.get(run.graph_id)
        snapshot = store.read(run.run_id) if plan else None
        nodes = _unchanged(store, plan, snapshot) if plan and snapshot else []
        if nodes:
            reply = store.do(ReleaseNodes(run.run_id, nodes))
            log.info(
                "node.released: run %s goes on with %s: %s",
                run.run_id,
                ", ".join(nodes),
                reply.word,
            )
            yield reply


def held_themselves(store: Store, snapshot: RunSnapshot) -> list[str]:
    """List the nodes held for their own change; others wait for an operator, or a child run's migration."""
    return [
        name
        for name, record in snapshot.nodes.items()
        if record.held and not (record.hold or (record.child and _goes_on(store, record.child)))
    ]


def _goes_on(store: Store, run_id: str) -> bool:
    run = store.peek(run_id)
    return run is not None and not run.is_final


def _unchanged(store: Store, plan: CompiledGraph, snapshot: RunSnapshot) -> list[str]:
    record = snapshot.record
    today = plan.topology.nodes
    if record.fingerprint == plan.topology.fingerprint:
        return held_themselves(store, snapshot)
    recorded_shape = store.topology(record.graph_id, record.fingerprint)
    if recorded_shape is None:
        return []
    return [
        name
        for name in held_themselves(store, snapshot)
        if (now := today.get(shape_name(name)))
        and now.signature == recorded_shape.nodes[shape_name(name)].signature
    ]


class UnservedNodes:
    """Reports visits that this process returned to the queue, each once. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._graphs: set[tuple[str, str]] = set()
        self._visits: dict[tuple[str, str, int], None] = {}

    def is_new(self, token: Token) -> bool:
        """Return whether this process returns a visit for the first time."""
        with self._lock:
            return (token.run_id, token.node, token.visit) not in self._visits

    def record(self, claim: Claim, plan: CompiledGraph | None) -> None:
        """Log and record the return of a visit to the queue, with the reason; an outage is only logged."""
        token = claim.token
        graph = claim.graph_id
        reason = (
            "no graph of this name can be built here"
            if plan is None
            else "another graph has this name here"
        )
        new_graph, new_visit = self._remember(
            (graph, claim.fingerprint), (token.run_id, token.node, token.visit)
        )
        if new_graph:
            log.warning(
                "node.unserved: node %r of run %s was returned to the queue %r: its graph is %r, and %s. It "
                "is tried again until a worker that has the graph takes it: start one, take the "
                "queue from this one, or see `runner doctor`.",
                token.node,
                token.run_id,
                self._queue(claim),
                graph,
                reason,
            )
        if new_visit:
            data = {"graph": graph, "reason": reason}
            try:
                self._store.do(
                    EmitEvent(
                        token.run_id, EventKind.NODE_UNSERVED, token.node, token.visit, data
                    )
                )
            except StoreError as error:
                log.warning(
                    "event.lost: %s Run %s has no event about its returned node.",
                    error,
                    token.run_id,
                )

    def _queue(self, claim: Claim) -> str:
        """Return the queue of a visit, "" if the store can't be asked."""
        try:
            topology = self._store.topology(claim.graph_id, claim.fingerprint)
        except StoreError:
            return ""
        return topology.nodes[shape_name(claim.token.node)].queue if topology else ""

    def _remember(
        self, graph: tuple[str, str], visit: tuple[str, str, int]
    ) -> tuple[bool, bool]:
        """Return whether the graph and the visit are new, and remember both."""
        with self._lock:
            is_new = graph not in self._graphs, visit not in self._visits
            self._graphs.add(graph)
            self._visits[visit] = None
            if len(self._visits) > REMEMBERED:
                del self._visits[next(iter(self._visits))]
            return is_new
