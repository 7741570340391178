"""The check before a deploy: which nodes of unfinished runs it would hold, and why.

The store's runs are compared with the graphs of this process, by shape: nothing is run or changed. Runs
that began with one shape are judged together, so the cost grows with how many runs there are, not
with their graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.definition.fingerprint import changes
from runner.definition.model import BRACKETS, Topology
from runner.definition.registry import Registry
from runner.errors import NotFoundError
from runner.execution.held_nodes import plans_of, runs_of
from runner.records.listings import RunQuery, RunSummary
from runner.records.run import NodeRecord, Status
from runner.store.interface import Store

UNDER_WAY = (Status.EXECUTING, Status.INTERRUPTED, Status.NEEDS_MIGRATION)

COMES_BACK = frozenset({Status.READY, Status.RUNNING, Status.WAITING, Status.RETRYING})
"""Nodes that are claimed again, unless their run stops."""

NO_SHAPE = "the shape that its run began with is gone"


@dataclass(frozen=True, slots=True)
class AffectedNode:
    """A node that would be held when it is claimed; `status` is its present one."""

    run_id: str
    graph_id: str
    node: str
    visit: int
    status: Status
    reason: str


def held(store: Store, registry: Registry, names: Sequence[str]) -> Iterator[AffectedNode]:
    """List the nodes of unfinished runs that the graphs of this process would not run.

    A run counts where its shape differs from the graph's shape here, and of its nodes only those that
    differ and may still be claimed.

    Raises:
        NotFoundError: this process does not have one of the graphs.
    """
    plans = plans_of(registry, names)
    shapes: dict[tuple[str, str], tuple[Topology | None, dict[str, str]]] = {}
    for run in (run for status in UNDER_WAY for run in runs_of(store, RunQuery(status))):
        plan, shape = plans.get(run.graph_id), (run.graph_id, run.fingerprint)
        if plan is None or run.fingerprint == plan.topology.fingerprint:
            continue
        if shape not in shapes:
            topology = store.topology(*shape)
            shapes[shape] = topology, changes(topology, plan.topology) if topology else {}
        yield from _held(store, run, *shapes[shape])


def _held(
    store: Store, run: RunSummary, topology: Topology | None, changed_nodes: Mapping[str, str]
) -> Iterator[AffectedNode]:
    if topology is None:
        yield AffectedNode(run.run_id, run.graph_id, "", 0, run.status, NO_SHAPE)
        return
    loops_of = {name: set(topology.nodes[name].loops) for name in changed_nodes}
    loops = set().union(*loops_of.values())
    names = [
        name
        for name, node in topology.nodes.items()
        if name in changed_nodes or loops.intersection(node.loops)
    ]
    records = _records(
        store, run.run_id, [name for name in names if not name.endswith(BRACKETS)]
    )
    active_loops = {
        loop
        for name, record in records.items()
        if record.status in COMES_BACK
        for loop in topology.nodes[name].loops
    }
    for name in sorted(
        changed_nodes.keys() & records.keys(),
        key=lambda name: (records[name].status not in COMES_BACK, name),
    ):
        record = records[name]
        if (
            record.status in COMES_BACK
            or record.status is Status.PENDING
            or active_loops & loops_of[name]
        ):
            yield AffectedNode(
                run.run_id, run.graph_id, name, record.visit, record.status, changed_nodes[name]
            )


def _records(store: Store, run_id: str, names: Sequence[str]) -> dict[str, NodeRecord]:
    """Read the records of nodes; none where the run is gone meanwhile."""
    try:
        rows = store.fetch(run_id, names) if names else []
    except NotFoundError:
        return {}
    return {name: record for name, (record, _, _) in zip(names, rows, strict=False)}
