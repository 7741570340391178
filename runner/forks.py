"""A new run that begins from what another has done. Pure.

Everything that had completed and does not depend on one visit is kept; the rest starts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner import replay
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.graph import Topology
from runner.maps import map_of
from runner.ports import Fork, RunSnapshot, Start
from runner.run import NodeRecord, Records, Status

JSON = Any


@dataclass(frozen=True, slots=True)
class Begin:
    """How a fork begins: its id and tags, and with `edited` the packed `input` of the node."""

    run_id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    edited: bool = False
    input: JSON = None


def plan(snapshot: RunSnapshot, topology: Topology, node: str, visit: int | None, begin: Begin) -> Fork:
    """Work out the fork of a run from a visit of a node, the latest unless it is named.

    Raises:
        NotFoundError: there is no such node or visit.
        UsageError: the node has not begun yet.
        ConflictError: an older version recorded the run, and kept too little of it.
    """
    record = snapshot.record
    past = replay.history(snapshot, topology)
    at = (node, _chosen(snapshot, topology, past, node, visit))
    leave = replay.dependents(topology, past, at) if at in past else set()
    played = replay.Replay(topology, past, leave)
    records = _records(snapshot, played)
    begins = records.nodes.get(node, NodeRecord())
    if begins.status is not Status.READY:
        raise ConflictError(
            f"what run {record.run_id} has kept does not lead to node {node!r}; nothing began."
        )
    kept = _kept(snapshot, played, past, records)
    tags = {**snapshot.tags, **begin.tags, "forked_from": record.run_id}
    return Fork(
        Start(begin.run_id, record.graph_id, record.fingerprint, snapshot.task, snapshot.given, tags),
        record.run_id,
        records,
        kept,
        _remembering(snapshot, kept, records),
        (node, begins.visit) if begin.edited else None,
        begin.input,
    )


def _chosen(
    snapshot: RunSnapshot,
    topology: Topology,
    past: Mapping[replay.At, object],
    node: str,
    visit: int | None,
) -> int:
    """Find the visit to start again: the one named, or the latest."""
    run_id = snapshot.record.run_id
    if node not in topology.nodes or node.endswith("]"):
        raise NotFoundError(f"graph {snapshot.record.graph_id!r} has no node {node!r}; nothing began.")
    record = snapshot.nodes.get(node, NodeRecord())
    known = {number for name, number in past if name == node}
    if record.status not in {Status.PENDING, Status.SKIPPED}:
        known.add(record.visit)
    if not known:
        raise UsageError(f"node {node!r} has not run yet in run {run_id}; nothing began.")
    if visit is not None and visit not in known:
        raise NotFoundError(f"node {node!r} of run {run_id} has no visit {visit}; nothing began.")
    return max(known) if visit is None else visit


def _records(snapshot: RunSnapshot, played: replay.Replay) -> Records:
    """Take the records of a replay, with the items of maps that are kept."""
    records = played.records()
    nodes = {}
    for name, record in records.nodes.items():
        old = snapshot.nodes.get(name, NodeRecord())
        same = (old.visit, old.status) == (record.visit, record.status)
        known = replace(record, attempt=old.attempt, child=old.child) if same and record.visit else record
        nodes[name] = replace(known if (name, record.visit) in played.inputs else record, nonce="")
    maps = {
        name: found
        for name, found in snapshot.maps.items()
        if (name, found.visit) in played.inputs and nodes[name].visit == found.visit
    }
    items = {
        name: record
        for name, record in snapshot.nodes.items()
        if map_of(name) in maps and record.visit == maps[map_of(name)].visit
    }
    return replace(records, nodes={**nodes, **items}, maps=maps)


def _kept(
    snapshot: RunSnapshot,
    played: replay.Replay,
    past: Mapping[replay.At, replay.Settled],
    records: Records,
) -> dict[replay.At, int]:
    """List the visits whose results are kept; places in the order end below those of the new run."""
    others = {at: 0 for at in snapshot.entries if at in played.inputs or _is_item(at, records)}
    order = [at for at in past if at in played.inputs and past[at].status is Status.COMPLETED]
    return others | {at: place - len(order) for place, at in enumerate(order)}


def _is_item(at: replay.At, records: Records) -> bool:
    record = records.nodes.get(at[0]) if map_of(at[0]) else None
    return record is not None and record.visit == at[1]


def _remembering(snapshot: RunSnapshot, kept: Mapping[replay.At, int], records: Records) -> list[str]:
    """Name the completed nodes all of whose visits are kept: what they remember is of no other visit."""
    partly = {at[0] for at in snapshot.entries if at not in kept}
    names = dict.fromkeys(name for name, _ in kept)
    return [name for name in names if name not in partly and records.nodes[name].status is Status.COMPLETED]
