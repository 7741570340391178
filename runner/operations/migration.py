"""Migrates waiting runs, with the runs nested in them, to the current graphs.

Each node's outcome is planned on a copy of the run (`migration_plan`); the store applies the plan
only if the run has not changed since it was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.definition.model import HIDDEN, Topology, map_of
from runner.definition.registry import CompiledGraph, Registry
from runner.errors import ConflictError, UsageError
from runner.execution import conditions
from runner.execution.conditions import GraphState, Results
from runner.execution.engine import Engine
from runner.execution.held_nodes import held_themselves
from runner.execution.results import node_result
from runner.immutable import immutable
from runner.operations.migration_plan import MigrationPlanner, MigrationRequest, NodeOutcome
from runner.records import codec
from runner.records.codec import JSONObject
from runner.records.migration import Migration
from runner.records.run import PATH, NodeRecord, Records, Status, VisitKey, existing
from runner.store.interface import Fetched, Reply, RunSnapshot, Store
from runner.store.requests import MigrateRuns, new_nonce

TRIES = 20
"""Most times that a migration is planned: once more whenever the run changed after it was read."""

WAITING = frozenset({Status.INTERRUPTED, Status.NEEDS_MIGRATION})


@immutable
class MigrationResult:
    """The outcome for a run's nodes; with `dry_run` the planned one."""

    run_id: str
    nodes: tuple[NodeOutcome, ...]

    @property
    def unused(self) -> list[str]:
        """The ids of answered questions whose answers don't apply: they are asked again, or dropped."""
        return [question for outcome in self.nodes for question in outcome.unused]


@immutable
class MigratedRun:
    """A run and the outcome for its nodes; `error` says why it could not be moved, or ""."""

    run_id: str
    moved: bool
    error: str
    nodes: tuple[NodeOutcome, ...]


def migrate(
    engine: Engine, run_id: str, request: MigrationRequest, *, dry_run: bool = False
) -> MigrationResult:
    """Migrate a run with all runs nested in it; with `dry_run` only return the outcome for its nodes.

    Raises:
        NotFoundError: the run, a graph or a node doesn't exist.
        UsageError: the run is nested in another one, or two nodes would have one id.
        ConflictError: the run does not wait, or something in it can't be migrated. Nothing was changed.
    """
    planner = FamilyPlanner(engine.store, engine.registry)
    for _ in range(TRIES):
        migrations, outcomes = planner.plan(run_id, request)
        if not dry_run:
            reply: Reply = engine.store.do(MigrateRuns(migrations, new_nonce()))
            if reply.word != "migrated":
                continue
            engine.ring(reply)
        return MigrationResult(run_id, tuple(outcomes))
    raise ConflictError(
        f"run {run_id} kept changing while its migration was planned; try again."
    )


class FamilyPlanner:
    """Plans the migrations of a run and of the runs nested in it."""

    def __init__(self, store: Store, registry: Registry) -> None:
        """Take the current graphs from the registry; if it lacks one, the store knows its shape."""
        self._store, self._registry = store, registry

    def plan(
        self, run_id: str, request: MigrationRequest
    ) -> tuple[list[Migration], list[NodeOutcome]]:
        """Plan a migration: the run itself, then the child runs in it; raises like `migrate`."""
        snapshot = existing(self._store.read(run_id), run_id)
        record = snapshot.record
        if record.parent:
            raise UsageError(
                f"run {run_id} does the work of node {record.parent_node!r} in run {record.parent}; migrate "
                f"run {record.root}, and this one is migrated with it."
            )
        migrations, outcomes = self._family(snapshot, request, record.graph_id, "", "")
        if not migrations:
            raise ConflictError(
                f"run {run_id} has the current graph and none of its nodes is held for a change; nothing "
                "was changed."
            )
        return migrations, outcomes

    def _family(
        self,
        snapshot: RunSnapshot,
        request: MigrationRequest,
        graph_id: str,
        parent_node: str,
        path: str,
    ) -> tuple[list[Migration], list[NodeOutcome]]:
        """Plan a run and the unfinished child runs of the nodes that continue in it."""
        planner = self._planner(snapshot, request.outermost(), graph_id)
        request.check_nested(planner.old)
        migration = planner.migration(parent_node, path)
        migrations = list[Migration]()
        outcomes = list[NodeOutcome]()
        if _changes_run(planner, migration):
            migrations = [migration]
            outcomes = planner.outcomes
        for child, node, name in self._children(planner, migration.records):
            owner = map_of(node) or node
            new_owner = map_of(name) or name
            nested_request = request.nested_in(owner, new_owner)
            child_results = self._family(
                child, nested_request, f"{graph_id}{PATH}{new_owner}", name, f"{path}{name}/"
            )
            migrations = migrations + child_results[0]
            outcomes = outcomes + child_results[1]
        return migrations, outcomes

    def _planner(
        self, snapshot: RunSnapshot, request: MigrationRequest, graph_id: str
    ) -> MigrationPlanner:
        record = snapshot.record
        plan = self._registry.find(graph_id)
        if record.status not in WAITING or record.stopping:
            status = "stopping" if record.stopping else record.status
            raise ConflictError(
                f"run {record.run_id} is {status}: only a waiting run can be migrated. Nothing was "
                "changed."
            )

        def decide(node: str, visit: int, position: int) -> str:
            return "1" if _takes_new_edge(plan, planner, (node, visit), position) else "0"

        old = self._old_shape(snapshot)
        new = self._new_shape(graph_id)
        held = held_themselves(self._store, snapshot)
        planner = MigrationPlanner(snapshot, old, new, request, held, decide)
        if any(old_id != new_id for old_id, new_id in request.renames.items()):
            planner.documents = self._store.documents(record.run_id)
        return planner

    def _children(
        self, planner: MigrationPlanner, records: Records
    ) -> Iterator[tuple[RunSnapshot, str, str]]:
        """Yield each unfinished child run with its node's old and new id."""
        for node, record in planner.snapshot.nodes.items():
            name = planner.names.new_id(node)
            if (
                record.child
                and name in records.nodes
                and records.nodes[name].child == record.child
            ):
                child = self._store.read(record.child)
                if child is not None and not child.record.is_final:
                    yield child, node, name

    def _old_shape(self, snapshot: RunSnapshot) -> Topology:
        record = snapshot.record
        topology = self._store.topology(record.graph_id, record.fingerprint)
        if topology is None:
            raise ConflictError(
                f"the shape of graph {record.graph_id!r} that run {record.run_id} had is gone; the run "
                "can only be started again from its beginning. Nothing was changed."
            )
        return topology

    def _new_shape(self, graph_id: str) -> Topology:
        current = self._store.graphs().get(graph_id, "")
        plan = self._registry.find(graph_id)
        if plan is not None and plan.topology.fingerprint != current:
            raise ConflictError(
                f"graph {graph_id!r} of this program is not the one that the workers have. Nothing was "
                "changed. Deploy it first, or do this with the code that the workers have."
            )
        topology = plan.topology if plan else self._store.topology(graph_id, current)
        if topology is None:
            raise ConflictError(
                f"graph {graph_id!r} is gone, so nothing can be migrated to it. Nothing was changed."
            )
        return topology


def _changes_run(planner: MigrationPlanner, migration: Migration) -> bool:
    record = planner.snapshot.record
    old_identity = (record.fingerprint, record.graph_id, record.parent_node, record.path)
    new_identity = (
        migration.fingerprint,
        migration.graph_id,
        migration.parent_node,
        migration.path,
    )
    return old_identity != new_identity or bool(planner.held or planner.request.drops)


def _takes_new_edge(
    plan: CompiledGraph | None, planner: MigrationPlanner, source: VisitKey, position: int
) -> bool:
    """Evaluate the condition of an edge that did not exist when its source completed."""
    if plan is None:
        raise ConflictError(
            f"an edge that leaves node {source[0]!r} is new, and without the graph's code it can't be known "
            "whether it has a condition. Nothing was changed. Do this where RUNNER_GRAPHS names its module."
        )
    edge = plan.edges[source[0]][position]
    try:
        return conditions.holds(edge, _condition_state(plan, planner, source))
    except Exception as error:
        raise ConflictError(
            f"the condition of the new edge from {edge.source!r} to {edge.target!r} raised {error!r}. "
            "Nothing was changed."
        ) from error


def _condition_state(
    plan: CompiledGraph, planner: MigrationPlanner, source: VisitKey
) -> GraphState:
    """Build the state that a condition reads: the present results, and its own source as it completed."""
    snapshot = planner.snapshot
    old_ids = {planner.names.new_id(node): node for node in snapshot.nodes}

    def record_of(name: str) -> NodeRecord:
        return snapshot.node(old_ids.get(name, ""))

    def fetched(name: str, record: NodeRecord) -> Fetched:
        key = (old_ids.get(name, name), record.visit)
        return record, snapshot.outputs.get(key), snapshot.entries.get(key)

    node, visit = source
    completed_record = replace(record_of(node), status=Status.COMPLETED, visit=visit)
    results = Results(
        node,
        node_result(*fetched(node, completed_record)),
        [name for name in plan.definition.nodes if not name.startswith(HIDDEN)],
        lambda names: [fetched(name, record_of(name)) for name in names],
        lambda: list(map(planner.names.new_id, snapshot.order)),
    )
    state: JSONObject = codec.unpack(snapshot.invocation_state) or {}
    return GraphState(codec.unpack(snapshot.task), node, visit, results, state)
