"""The check before a deploy: mistakes in graphs, and nodes of unfinished runs to be held, with reasons.

The store's runs are compared with the graphs of this process, by shape: nothing is run or changed.
Runs that began with the same shape are checked together, so the cost grows with the number of runs,
not with the size of their graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from runner.authoring.lint import LintProblem, Severity, check
from runner.definition.fingerprint import changes
from runner.definition.model import BRACKETS, Topology
from runner.definition.registry import Registry
from runner.errors import DefinitionError, NotFoundError
from runner.execution.held_nodes import UNDER_WAY, plans_of, runs_of
from runner.immutable import immutable
from runner.records.listings import RunQuery, RunSummary
from runner.records.run import NodeRecord, Status
from runner.store.interface import Store

COMES_BACK = frozenset({Status.READY, Status.RUNNING, Status.WAITING, Status.RETRYING})
"""Statuses of nodes that are claimed again, unless their run stops."""

NO_SHAPE = "the shape that its run began with is gone"


@immutable
class AffectedNode:
    """A node that would be held when it is claimed; `status` is its present status."""

    run_id: str
    graph_id: str
    node: str
    visit: int
    status: Status
    reason: str


def held(store: Store, registry: Registry, names: Sequence[str]) -> Iterator[AffectedNode]:
    """List the nodes of unfinished runs that the graphs of this process would not run.

    A run counts if its shape differs from the graph's shape here; of its nodes, only changed ones
    that may still be claimed count.

    Raises:
        NotFoundError: this process does not have one of the graphs.
    """
    plans = plans_of(registry, names)
    shapes: dict[tuple[str, str], tuple[Topology | None, dict[str, str]]] = {}
    for run in (run for status in UNDER_WAY for run in runs_of(store, RunQuery(status))):
        plan = plans.get(run.graph_id)
        shape = (run.graph_id, run.fingerprint)
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
    """Read the records of nodes; none if the run has been removed meanwhile."""
    try:
        rows = store.fetch(run_id, names) if names else []
    except NotFoundError:
        return {}
    return {name: record for name, (record, _, _) in zip(names, rows, strict=False)}


@immutable
class GraphCheck:
    """The problems of `runner graphs check`, and with --against-waiting the nodes that would be held."""

    problems: tuple[LintProblem, ...]
    held: tuple[AffectedNode, ...] | None


def problems_of(registry: Registry, name: str) -> list[LintProblem]:
    """Check a graph and its inner graphs; a graph that can't be built is also a problem."""
    try:
        return [problem for plan in registry.family(name) for problem in check(plan)]
    except DefinitionError as error:
        advice = "Fix what the message names; no worker can run this graph."
        return [LintProblem("not-built", Severity.ERROR, name, "", str(error), advice)]


def check_graphs(registry: Registry, names: Sequence[str], store: Store | None) -> GraphCheck:
    """Check graphs; with a store, also find the nodes that they would hold there."""
    problems = tuple(problem for name in names for problem in problems_of(registry, name))
    if store is None:
        return GraphCheck(problems, None)
    broken = {problem.graph for problem in problems if problem.code == "not-built"}
    built = [name for name in names if name not in broken]
    return GraphCheck(problems, tuple(held(store, registry, built)))
