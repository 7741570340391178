"""Runs that go on after their end, and runs that begin from what another has done.

What is decided here is worked out on a copy of the run (`replay.py`); the store takes it only if
nothing has happened to the run since it was read.
"""

from __future__ import annotations

from dataclasses import replace

from runner import forks, ids, replay
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.forks import Begin
from runner.graph import AFTER_GRAPH, FailurePolicy, Topology
from runner.maps import map_of
from runner.missing import known
from runner.ports import Fork, Reply, RunSnapshot, Store
from runner.run import NodeRecord, Records, Rewrite, Status

TRIES = 20
"""How often a retry is worked out anew because something happened to the run in between."""

BROKEN = frozenset({Status.FAILED, Status.CANCELLED})


class Reruns:
    """Works out runs that go on or begin anew."""

    def __init__(self, store: Store) -> None:
        """Share the engine's store."""
        self._store = store

    def retry(self, run_id: str, node: str | None) -> tuple[list[str], Reply]:
        """Let an ended run go on, and name the nodes that run again.

        Raises:
            NotFoundError: there is no such run or node.
            UsageError: the node has not failed, or the run is part of another run.
            ConflictError: the run has not ended, has completed, or has nothing left to do.
        """
        for _ in range(TRIES):
            runs = self.plan(run_id, node)
            reply = self._store.rewrite(runs, ids.nonce())
            if reply.word == "reopened":
                return _again(runs[0].records), reply
        raise ConflictError(f"run {run_id} kept changing while it was to be retried; try again.")

    def plan(self, run_id: str, node: str | None = None) -> list[Rewrite]:
        """Work a retry out: the run itself, then the child runs that go on with it; raises as `retry`."""
        snapshot = known(self._store.read(run_id), run_id)
        record = snapshot.record
        if record.parent:
            raise UsageError(
                f"run {run_id} does the work of node {record.parent_node!r} in run {record.parent}; retry "
                f"run {record.root}, and this one goes on with it."
            )
        runs = self._plan(snapshot, node)
        if not runs:
            raise ConflictError(f"run {run_id} has nothing left to do; nothing was changed.")
        return runs

    def _plan(self, snapshot: RunSnapshot, node: str | None) -> list[Rewrite]:
        """Empty when nothing would run again."""
        _check_broken(snapshot)
        topology = self._topology(snapshot)
        past = replay.history(snapshot, topology)
        played = replay.Replay(topology, past, _leave(snapshot, topology, node))
        records = replay.reopened(snapshot, played)
        after = records.nodes.get(AFTER_GRAPH, NodeRecord())
        if not set(_again(records)) - {AFTER_GRAPH} and after.attempt < 2:
            return []
        records, children = self._with_children(records)
        undone = replay.undone(snapshot, played, records.nodes)
        forgets = list(dict.fromkeys(name for name, _ in undone))
        return [Rewrite(snapshot.record.run_id, snapshot.events, records, undone, forgets), *children]

    def fork(self, run_id: str, node: str, visit: int | None, begin: Begin) -> Reply:
        """Begin a new run in which a node starts again; it is named as `begin` says.

        Raises:
            NotFoundError: there is no such run, node or visit.
            UsageError: the node has not begun yet.
            ConflictError: too little is known of the run.
        """
        reply = self._store.fork(self.plan_fork(run_id, node, visit, begin))
        if reply.word != "forked":
            raise NotFoundError(f"run {run_id} or its graph is gone meanwhile; nothing was started.")
        return reply

    def plan_fork(self, run_id: str, node: str, visit: int | None, begin: Begin) -> Fork:
        """Work a fork out; raises as `fork`."""
        snapshot = known(self._store.read(run_id), run_id)
        return forks.plan(snapshot, self._topology(snapshot), node, visit, begin)

    def _with_children(self, records: Records) -> tuple[Records, list[Rewrite]]:
        """Let the child runs of nodes that run again go on; such a node waits for its child."""
        nodes, children = dict(records.nodes), []
        for name, record in records.nodes.items():
            if record.status is not Status.READY or not record.child:
                continue
            child = self._store.read(record.child)
            if child is not None and child.record.status is Status.COMPLETED:
                continue
            inner = self._plan(child, None) if child is not None else []
            children += inner
            # A child that is gone, or has nothing left to do, is of no use: its node begins a new one.
            nodes[name] = _waiting(record) if inner else replace(record, child="")
        return replace(records, nodes=nodes), children

    def _topology(self, snapshot: RunSnapshot) -> Topology:
        record = snapshot.record
        found = self._store.topology(record.graph_id, record.fingerprint)
        if found is None:
            raise ConflictError(
                f"the shape of graph {record.graph_id!r} that run {record.run_id} had is gone; nothing was "
                "changed. Start it again from its beginning."
            )
        if found.batches:
            raise ConflictError(
                f"graph {record.graph_id!r} runs in batches, as Strands does; such a run can only be started "
                "again from its beginning. Nothing was changed."
            )
        return found


def _check_broken(snapshot: RunSnapshot) -> None:
    run_id, status = snapshot.record.run_id, snapshot.record.status
    if status is Status.COMPLETED:
        raise ConflictError(
            f"run {run_id} has completed; nothing was changed. Fork it to go another way from one of its "
            "nodes."
        )
    if status not in BROKEN:
        raise ConflictError(
            f"run {run_id} is {status}, it has not ended; nothing was changed. Wait for its end or cancel it."
        )


def _leave(snapshot: RunSnapshot, topology: Topology, node: str | None) -> set[replay.At]:
    """List the failed visits that are to run again: all that stand, or one node's."""
    failed = {
        name for name, record in snapshot.nodes.items() if record.status is Status.FAILED and not map_of(name)
    }
    if node is not None:
        record = snapshot.nodes.get(node, NodeRecord())
        if node not in topology.nodes:
            raise NotFoundError(
                f"graph {snapshot.record.graph_id!r} has no node {node!r}; nothing was changed."
            )
        if record.status not in BROKEN:
            raise UsageError(
                f"node {node!r} is {record.status}: only one that failed or was cancelled runs again in the "
                "same run; nothing was changed. Fork the run to repeat a node that has completed."
            )
        others = sorted(failed - {node})
        if others and topology.policy is FailurePolicy.FAIL_FAST:
            raise ConflictError(
                f"{', '.join(others)} failed, too, which would stop the run at once; nothing was changed. "
                "Retry the run without naming a node."
            )
        failed &= {node}
    return {(name, snapshot.nodes[name].visit) for name in failed}


def _waiting(record: NodeRecord) -> NodeRecord:
    return replace(record, status=Status.WAITING, busy=True, attempt=record.attempt - 1, rings=0)


def _again(records: Records) -> list[str]:
    return [name for name, record in records.nodes.items() if record.status in {Status.READY, Status.WAITING}]
