"""Moves waiting runs, and the runs of the graphs inside them, to the graphs of today.

What becomes of each node is worked out on a copy of the run (`migration.py`); the store takes it only
if nothing has happened to the run since it was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from runner import codec, conditions, ids
from runner.conditions import GraphState, Results
from runner.errors import ConflictError, UsageError
from runner.graph import HIDDEN, Topology
from runner.maps import map_of
from runner.migrating import Migration
from runner.migration import Move
from runner.missing import known
from runner.ports import Fetched, Reply, RunSnapshot, Store
from runner.registry import PATH, Plan, Registry
from runner.releases import set_aside
from runner.results import node_result
from runner.run import NodeRecord, Records, Status
from runner.wishes import Fate, Wish

TRIES = 20
"""How often a migration is worked out anew because something happened to the run in between."""

WAITS = frozenset({Status.INTERRUPTED, Status.NEEDS_MIGRATION})


@dataclass(frozen=True, slots=True)
class Migrated:
    """What became of a run's nodes, or would become of them with `dry_run`."""

    run_id: str
    fates: tuple[Fate, ...]

    @property
    def unused(self) -> list[str]:
        """The ids of answered questions whose answers don't apply: they are asked anew, or no more."""
        return [each for fate in self.fates for each in fate.unused]


class Migrations:
    """Works out how runs go on in today's graphs."""

    def __init__(self, store: Store, registry: Registry) -> None:
        """Share the engine's store and registry."""
        self._store, self._registry = store, registry

    def migrate(self, run_id: str, wish: Wish, *, dry_run: bool = False) -> tuple[Migrated, Reply | None]:
        """Move a run with all graphs inside it; with `dry_run` only say what would become of its nodes.

        Raises:
            NotFoundError: there is no such run, graph or node.
            UsageError: the run is part of another run, or names meet.
            ConflictError: the run does not wait, or something in it can't be moved. Nothing was changed.
        """
        for _ in range(TRIES):
            moves, fates = self.plan(run_id, wish)
            found = Migrated(run_id, tuple(fates))
            if dry_run:
                return found, None
            reply = self._store.migrate(moves, ids.nonce())
            if reply.word == "migrated":
                return found, reply
        raise ConflictError(f"run {run_id} kept changing while it was to be moved; try again.")

    def plan(self, run_id: str, wish: Wish) -> tuple[list[Migration], list[Fate]]:
        """Work a migration out: the run itself, then the child runs in it; raises as `migrate`."""
        snapshot = known(self._store.read(run_id), run_id)
        record = snapshot.record
        if record.parent:
            raise UsageError(
                f"run {run_id} does the work of node {record.parent_node!r} in run {record.parent}; migrate "
                f"run {record.root}, and this one is moved with it."
            )
        moves, fates = self._family(snapshot, wish, record.graph_id, "", "")
        if not moves:
            raise ConflictError(
                f"run {run_id} has the graph of today and nothing of it is set aside; nothing was changed."
            )
        return moves, fates

    def _family(
        self, snapshot: RunSnapshot, wish: Wish, graph_id: str, parent_node: str, path: str
    ) -> tuple[list[Migration], list[Fate]]:
        """Plan a run and the unfinished child runs of the nodes that go on in it."""
        move = self._move(snapshot, wish.own(), graph_id)
        wish.check_inside(move.old)
        found = move.migration(parent_node, path)
        moves, fates = ([found], move.fates) if _changes(move, found) else ([], [])
        for child, node, name in self._children(move, found.records):
            here, there = map_of(node) or node, map_of(name) or name
            inside, graph = wish.inside(here, there), f"{graph_id}{PATH}{there}"
            more, told = self._family(child, inside, graph, name, f"{path}{name}/")
            moves, fates = [*moves, *more], [*fates, *told]
        return moves, fates

    def _move(self, snapshot: RunSnapshot, wish: Wish, graph_id: str) -> Move:
        record, plan = snapshot.record, self._registry.find(graph_id)
        if record.status not in WAITS:
            raise ConflictError(
                f"run {record.run_id} is {record.status}: only one that waits can be moved. Nothing was "
                "changed."
            )
        old, new = self._then(snapshot), self._now(graph_id)

        def decide(node: str, visit: int, place: int) -> str:
            return _taken(plan, move, (node, visit), place)

        move = Move(snapshot, old, new, wish, set_aside(self._store, snapshot), decide)
        if any(node != today for node, today in wish.goes.items()):
            move.documents = self._store.documents(record.run_id)
        return move

    def _children(self, move: Move, records: Records) -> Iterator[tuple[RunSnapshot, str, str]]:
        """Give each unfinished child run with its node, as that was called then and is called today."""
        for node, kept in move.snapshot.nodes.items():
            name = move.names.today(node)
            if kept.child and name in records.nodes and records.nodes[name].child == kept.child:
                child = self._store.read(kept.child)
                if child is not None and not child.record.is_final:
                    yield child, node, name

    def _then(self, snapshot: RunSnapshot) -> Topology:
        record = snapshot.record
        found = self._store.topology(record.graph_id, record.fingerprint)
        if found is None or found.batches:
            reason = "runs in batches, as Strands does" if found else "had a shape that is gone"
            raise ConflictError(
                f"graph {record.graph_id!r} of run {record.run_id} {reason}; such a run can only be started "
                "again from its beginning. Nothing was changed."
            )
        return found

    def _now(self, graph_id: str) -> Topology:
        current = self._store.graphs().get(graph_id, "")
        plan = self._registry.find(graph_id)
        if plan is not None and plan.topology.fingerprint != current:
            raise ConflictError(
                f"graph {graph_id!r} of this program is not the one that the workers have. Nothing was "
                "changed. Deploy it first, or do this with the code that the workers have."
            )
        found = plan.topology if plan else self._store.topology(graph_id, current)
        if found is None or found.batches:
            raise ConflictError(
                f"graph {graph_id!r} is {'one that runs in batches' if found else 'gone'}, so nothing can be "
                "moved to it. Nothing was changed."
            )
        return found


def _changes(move: Move, found: Migration) -> bool:
    """Tell whether a migration would change anything of its run."""
    record = move.snapshot.record
    was = (record.fingerprint, record.graph_id, record.parent_node, record.path)
    now = (found.fingerprint, found.graph_id, found.parent_node, found.path)
    return was != now or bool(move.held or move.wish.drops)


def _taken(plan: Plan | None, move: Move, at: tuple[str, int], place: int) -> str:
    """Ask the condition of an edge that was not there when its source completed."""
    if plan is None:
        raise ConflictError(
            f"an edge that leaves node {at[0]!r} is new, and without the graph's code it can't be known "
            "whether it has a condition. Nothing was changed. Do this where RUNNER_GRAPHS names its module."
        )
    edge = plan.edges[at[0]][place]
    try:
        return "1" if conditions.holds(edge, _state(plan, move, at)) else "0"
    except Exception as error:
        raise ConflictError(
            f"the condition of the new edge from {edge.source!r} to {edge.target!r} raised {error!r}. "
            "Nothing was changed."
        ) from error


def _state(plan: Plan, move: Move, at: tuple[str, int]) -> GraphState:
    """Build what a condition sees: the results of today, and its own source as it completed."""
    snapshot = move.snapshot
    names = {move.names.today(node): node for node in snapshot.nodes}

    def result(name: str, record: NodeRecord) -> Fetched:
        done = (names.get(name, name), record.visit)
        return record, snapshot.outputs.get(done), snapshot.entries.get(done)

    def known(name: str) -> NodeRecord:
        return snapshot.nodes.get(names.get(name, ""), NodeRecord())

    node, visit = at
    own = replace(known(node), status=Status.COMPLETED, visit=visit)
    users = [name for name in plan.definition.nodes if not name.startswith(HIDDEN)]
    results = Results(
        node,
        node_result(*result(node, own)),
        users,
        lambda nodes: [result(each, known(each)) for each in nodes],
    )
    state: dict[str, Any] = codec.unpack(snapshot.given) or {}
    return GraphState(codec.unpack(snapshot.task), node, visit, results, state)
