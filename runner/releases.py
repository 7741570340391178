"""Lets nodes go on that were set aside, where this process has the graph that they were part of.

A deploy that is taken back brings the older graph; a later one may have the node as it was. Whoever
publishes such a graph looks for the nodes that it can run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from runner.deploys import plans_of, runs_of
from runner.listings import RunQuery
from runner.maps import shape_name
from runner.ports import Claim, Reply, RunSnapshot, Store
from runner.registry import PATH, Plan, Registry
from runner.run import Status

log = logging.getLogger(__name__)


def is_newest(store: Store, find: Callable[[str], Plan | None], plan: Plan | None, claim: Claim) -> bool:
    """Tell whether the graph of this process is today's, so that a node which it can't run is an older one's.

    Of a graph inside that is not there any more the graph around it says so.
    """
    if plan is not None:
        return claim.current == plan.topology.fingerprint
    path = claim.graph_id.rpartition(PATH)[0]
    while path and (around := find(path)) is None:
        path = path.rpartition(PATH)[0]
    return bool(path) and around is not None and store.graphs().get(path) == around.topology.fingerprint


def release(store: Store, registry: Registry, names: Sequence[str]) -> Iterator[Reply]:
    """Release every held node of some graphs that is what it was, as this process has them."""
    plans = plans_of(registry, names)
    for run in list(runs_of(store, RunQuery(Status.NEEDS_MIGRATION))):
        plan = plans.get(run.graph_id)
        snapshot = store.read(run.run_id) if plan else None
        nodes = _unchanged(store, plan, snapshot) if plan and snapshot else []
        if nodes:
            reply = store.release(run.run_id, nodes)
            log.info("node.released: run %s goes on with %s: %s", run.run_id, ", ".join(nodes), reply.word)
            yield reply


def set_aside(store: Store, snapshot: RunSnapshot) -> list[str]:
    """Name the nodes that are held themselves; others only wait for a child run that needs migration."""
    return [
        name
        for name, record in snapshot.nodes.items()
        if record.held and not (record.child and _goes_on(store, record.child))
    ]


def _goes_on(store: Store, run_id: str) -> bool:
    found = store.peek(run_id)
    return found is not None and not found.is_final


def _unchanged(store: Store, plan: Plan, snapshot: RunSnapshot) -> list[str]:
    record, today = snapshot.record, plan.topology.nodes
    if record.fingerprint == plan.topology.fingerprint:
        return set_aside(store, snapshot)
    old = store.topology(record.graph_id, record.fingerprint)
    if old is None:
        return []
    return [
        name
        for name in set_aside(store, snapshot)
        if (now := today.get(shape_name(name))) and now.signature == old.nodes[shape_name(name)].signature
    ]
