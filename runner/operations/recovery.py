"""Retries and removal of ended runs, and forks: new runs that start from another run's completed visits.

Retries and forks are planned on a replay of the run. Its history (the visits that completed or
failed, each with the edges that it took) is fed to an empty run in the order of completion, by the
same transitions that a store applies. Visits that are left out stay ready, and nodes that depended
on them never become ready, so dead paths, loops and joins need no special rules here. A map is one
visit; its items keep their records, and a map that runs again continues with its completed items.
The store applies a plan only if the run has not changed since it was read.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter

from runner import scheduler
from runner.approvals.decision_keys import run_name
from runner.approvals.rules import Principal
from runner.approvals.votes import principal_of
from runner.definition.model import AFTER_GRAPH, UNDO, FailurePolicy, Topology, map_of
from runner.errors import ConflictError, NotFoundError, TooManyRuns, UsageError
from runner.execution import ids
from runner.execution.engine import Engine
from runner.execution.runs import check_requester
from runner.immutable import immutable
from runner.limits.concurrency import label, tag_of
from runner.records import codec
from runner.records.codec import JSON, JSONMapping
from runner.records.listings import grouped
from runner.records.run import (
    FINAL,
    MapRecord,
    NodeRecord,
    Records,
    Rewrite,
    RunRecord,
    Status,
    VisitEntry,
    VisitKey,
    existing,
    no_such_run,
)
from runner.records.run_ids import partition_of
from runner.records.validation import similar
from runner.scheduler.changes import Changes, Dispatch, TransitionResult
from runner.store.interface import Fork, Reply, RunSnapshot, Start, Store
from runner.store.memory.run import MemoryRun
from runner.store.memory.semaphores import Semaphores
from runner.store.memory.sessions import Sessions
from runner.store.requests import ForkRun, RemoveRun, RewriteRuns, new_nonce

TRIES = 20
"""Most times that a retry or a fork is planned: once more whenever the run changed after it was read."""

BROKEN = frozenset({Status.FAILED, Status.CANCELLED})


@immutable
class SettledVisit:
    """An ended visit: its status, a bit for each of its edges, and the results its conditions read."""

    node: str
    visit: int
    status: Status
    edges: str = ""
    reads: tuple[VisitKey, ...] = ()


def history(snapshot: RunSnapshot) -> dict[VisitKey, SettledVisit]:
    """List the visits of a run that count, in the order they ended; failed ones come last."""
    visits = grouped(sorted(snapshot.outputs), itemgetter(0))
    upcoming = {node: iter(keys) for node, keys in visits.items()}
    completed_visits = [next(upcoming[node]) for node in snapshot.order]
    failed_visits = [
        key
        for key in snapshot.entries
        if key not in snapshot.outputs and _failed(snapshot, key)
    ]
    return {
        key: _settled(snapshot, key, status)
        for outcome_visits, status in (
            (completed_visits, Status.COMPLETED),
            (sorted(failed_visits), Status.FAILED),
        )
        for key in outcome_visits
        if not key[0].startswith((AFTER_GRAPH, UNDO))
    }


def _failed(snapshot: RunSnapshot, key: VisitKey) -> bool:
    """Return whether a visit has failed: it has an error, isn't being retried and was not undone.

    In a later round of its loop the node may wait again, or have been skipped.
    """
    entry = snapshot.entries[key]
    record = snapshot.node(key[0])
    if not entry.get("error") or entry.get("undone") or map_of(key[0]):
        return False
    return key[1] < record.visit or record.status in {
        Status.FAILED,
        Status.PENDING,
        Status.SKIPPED,
    }


def _settled(snapshot: RunSnapshot, key: VisitKey, status: Status) -> SettledVisit:
    node, visit = key
    if status is Status.FAILED:
        return SettledVisit(node, visit, status)
    entry = snapshot.entries[key]
    # Outside of loops a node completes once, so its record has the edges of that visit.
    edges = entry.get("edges", snapshot.node(node).edges)
    reads = tuple((name, number) for name, number in entry.get("reads", ()))
    return SettledVisit(node, visit, status, edges, reads)


class Replay:
    """One replay. `inputs` maps each fed visit to the visits whose outputs had reached it when it ended."""

    def __init__(
        self,
        topology: Topology,
        past: Mapping[VisitKey, SettledVisit],
        left_out: Collection[VisitKey] = (),
    ) -> None:
        """Play the whole past except the visits to leave out; limits don't count here."""
        nodes = {
            name: replace(node, limits=())
            for name, node in topology.nodes.items()
            if not name.startswith(UNDO)
        }
        self._topology = replace(topology, limit=0, timeout_ms=0, nodes=nodes)
        if topology.policy is FailurePolicy.FAIL_FAST:
            left_out = {
                *left_out,
                *(
                    key
                    for key, settled_visit in past.items()
                    if settled_visit.status is Status.FAILED
                ),
            }
        self._fed = {key: position for position, key in enumerate(past) if key not in left_out}
        self._visits: dict[str, list[VisitKey]] = grouped(sorted(past), itemgetter(0))
        self._heap: list[tuple[int, VisitKey]] = []
        self._run = _empty_run(topology)
        self.inputs: dict[VisitKey, list[VisitKey]] = {}
        self._take(scheduler.start(self._draft()))
        while self._heap:
            _, key = heapq.heappop(self._heap)
            self._feed(past[key])

    def records(self) -> Records:
        """Return the records at the end, each node in its present round."""
        changes = self._draft()
        run = self._run
        loops = {number: run.loop(number) for number in range(len(self._topology.loops))}
        nodes = {name: changes.node(name) for name in run.nodes}
        return Records(nodes, loops, dict(run.arrived), run.record.failed)

    def _draft(self) -> Changes:
        return Changes(self._run, self._topology, 0, 0)

    def _feed(self, settled_visit: SettledVisit) -> None:
        node = settled_visit.node
        visit = settled_visit.visit
        attempt = self._run.nodes[node].attempt
        self._take(scheduler.claim(self._draft(), node, visit, attempt, "replay"))
        changes = self._draft()
        self.inputs[node, visit] = scheduler.live_inputs(changes, node)
        claim = (node, visit, self._run.nodes[node].fence)
        self._take(
            scheduler.settle(
                changes,
                *claim,
                nonce="",
                status=settled_visit.status,
                edges=settled_visit.edges,
            )
        )

    def _take(self, result: TransitionResult) -> None:
        self._run.write(result)
        for action in result.actions:
            if isinstance(action, Dispatch):
                self._place(action.node, action.visit)

    def _place(self, node: str, visit: int) -> None:
        """Give a ready visit the node's next number in the history, which skips undone visits."""
        visits = self._visits.get(node, [])
        index = bisect_left(visits, (node, visit))
        if index < len(visits):
            _, visit = visits[index]
            self._run.nodes[node] = replace(self._run.nodes[node], visit=visit)
        if (node, visit) in self._fed:
            heapq.heappush(self._heap, (self._fed[node, visit], (node, visit)))


def _empty_run(topology: Topology) -> MemoryRun:
    record = RunRecord("", topology.graph_id, topology.fingerprint)
    start = Start("", topology.graph_id, topology.fingerprint, None)
    return MemoryRun(record, start, 0, Semaphores(), Sessions())


def dependents(
    topology: Topology, past: Mapping[VisitKey, SettledVisit], key: VisitKey
) -> set[VisitKey]:
    """Find a visit and all visits that its output reached or decided, directly or indirectly."""
    keys = {key}
    replay = Replay(topology, past)
    for reader, inputs in replay.inputs.items():
        if not keys.isdisjoint((*inputs, *past[reader].reads)):
            keys.add(reader)
    return keys


def cancellation(by: str, reason: str) -> str:
    """Return the reason of a cancelled run, which begins with the requester of the cancellation."""
    return f"cancelled by {by}" + (f": {reason}" if reason else "")


def retry(
    engine: Engine, run_id: str, node: str | None = None, by: Principal | str | None = None
) -> list[str]:
    """Continue an ended run; return the nodes that run again, none if all completed during the stop.

    `by` is the person who asks for it.

    Raises:
        NotFoundError: the run or the node doesn't exist.
        UsageError: the node has not failed, the run is part of another run, or `by` isn't a principal.
        ConflictError: the run has not ended, or has completed.
    """
    names, reply = write_retry(engine.store, run_id, node, principal_of(by).key if by else "")
    engine.ring(reply)
    return names


def write_retry(
    store: Store, run_id: str, node: str | None = None, by: str = "", held: Sequence[str] = ()
) -> tuple[list[str], Reply]:
    """Plan a retry and write it; return the nodes that run again, and the reply with their doorbells.

    `held` names a run and its node that `by` holds instead of letting it run.
    """
    for _ in range(TRIES):
        rewrites = plan_retry(store, run_id, node)
        if held:
            rewrites = [_with_hold(rewrite, by, *held) for rewrite in rewrites]
        reply = store.do(RewriteRuns(rewrites, new_nonce(), by))
        if reply.word == "reopened":
            return running_again(rewrites[0].records), reply
        if reply.word == "full":
            raise TooManyRuns(reply.detail)
    raise ConflictError(f"run {run_id} kept changing while its retry was planned; try again.")


def _with_hold(rewrite: Rewrite, by: str, run_id: str, node: str) -> Rewrite:
    if rewrite.run_id != run_id:
        return rewrite
    records = rewrite.records
    nodes = {**records.nodes, node: replace(records.node(node), hold=by)}
    return replace(rewrite, records=replace(records, nodes=nodes))


def plan_retry(store: Store, run_id: str, node: str | None = None) -> list[Rewrite]:
    """Plan a retry: the run itself, then the child runs that continue with it; raises like `retry`."""
    snapshot = existing(store.read(run_id), run_id)
    record = snapshot.record
    if record.parent:
        raise UsageError(
            f"run {run_id} does the work of node {record.parent_node!r} in run {record.parent}; retry "
            f"run {record.root}, and this one goes on with it."
        )
    rewrites = _plan_retry(store, snapshot, node)
    if not rewrites:
        reason = (
            "has undone its work: start another one"
            if _undone(snapshot)
            else "has nothing left to do"
        )
        raise ConflictError(f"run {run_id} {reason}; nothing was changed.")
    return rewrites


def _plan_retry(store: Store, snapshot: RunSnapshot, node: str | None) -> list[Rewrite]:
    """Plan a retry; return nothing if no node would run again, or the run's undos have begun."""
    _check_broken(snapshot)
    if _undone(snapshot):
        return []
    topology = _topology(store, snapshot)
    replay = Replay(topology, history(snapshot), _visits_to_repeat(snapshot, topology, node))
    records = reopened(snapshot, replay)
    after_graph = records.node(AFTER_GRAPH)
    if (
        records.failed
        and not set(running_again(records)) - {AFTER_GRAPH}
        and after_graph.attempt < 2
    ):
        return []
    records, children = _with_children(store, records)
    undone = undone_entries(snapshot, replay, records.nodes)
    forgets = list(dict.fromkeys(name for name, _ in undone))
    return [
        Rewrite(snapshot.record.run_id, snapshot.events, records, undone, forgets),
        *children,
    ]


def _undone(snapshot: RunSnapshot) -> set[str]:
    """Return the nodes that the run has undone, or will undo as it stops."""
    nodes = snapshot.nodes
    todo = nodes.get(UNDO, NodeRecord()).via if snapshot.record.stopping else ()
    begun = (
        name.removeprefix(UNDO)
        for name, record in nodes.items()
        if record.visit and name.startswith(UNDO)
    )
    return {*begun, *(name for name, _ in todo)}


def _with_children(store: Store, records: Records) -> tuple[Records, list[Rewrite]]:
    """Plan the retries of the child runs of nodes that run again; such nodes wait for their children."""
    nodes = dict(records.nodes)
    children = []
    for name, record in records.nodes.items():
        if record.status is not Status.READY or not record.child:
            continue
        child = store.read(record.child)
        if child is not None and child.record.status is Status.COMPLETED:
            continue
        rewrites = _plan_retry(store, child, None) if child is not None else []
        children += rewrites
        # A missing child, or one with nothing left to do, is useless: its node starts a new one.
        nodes[name] = (
            replace(
                record, status=Status.WAITING, busy=True, attempt=record.attempt - 1, rings=0
            )
            if rewrites
            else replace(record, child="")
        )
    return replace(records, nodes=nodes), children


def _topology(store: Store, snapshot: RunSnapshot) -> Topology:
    record = snapshot.record
    topology = store.topology(record.graph_id, record.fingerprint)
    if topology is None:
        raise ConflictError(
            f"the shape of graph {record.graph_id!r} that run {record.run_id} had is gone; nothing was "
            "changed. Start it again from its beginning."
        )
    return topology


def _check_broken(snapshot: RunSnapshot) -> None:
    run_id = snapshot.record.run_id
    status = snapshot.record.status
    if status is Status.COMPLETED:
        raise ConflictError(
            f"run {run_id} has completed; nothing was changed. Fork it to start again from one of its nodes."
        )
    if status not in BROKEN:
        raise ConflictError(
            f"run {run_id} is {status} and has not ended; nothing was changed. Wait for its end or cancel it."
        )


def _visits_to_repeat(
    snapshot: RunSnapshot, topology: Topology, node: str | None
) -> set[VisitKey]:
    """List the failed visits to run again: all failed nodes' latest, or one node's."""
    failed_nodes = {
        name
        for name, record in snapshot.nodes.items()
        if record.status is Status.FAILED and not map_of(name)
    }
    if node is not None:
        record = snapshot.node(node)
        if node not in topology.nodes:
            raise NotFoundError(
                f"graph {snapshot.record.graph_id!r} has no node {node!r}; nothing was changed."
                + similar(node, topology.nodes)
            )
        if record.status not in BROKEN:
            raise UsageError(
                f"node {node!r} is {record.status}: only a failed or cancelled node runs again in the "
                "same run; nothing was changed. Fork the run to repeat a node that has completed."
            )
        other_failures = sorted(failed_nodes - {node})
        if other_failures and topology.policy is FailurePolicy.FAIL_FAST:
            raise ConflictError(
                f"{', '.join(other_failures)} failed, too, which would stop the run at once; nothing was "
                "changed. Retry the run without naming a node."
            )
        failed_nodes &= {node}
    return {(name, snapshot.nodes[name].visit) for name in failed_nodes}


def running_again(records: Records) -> list[str]:
    return [
        name
        for name, record in records.nodes.items()
        if record.status in {Status.READY, Status.WAITING}
    ]


def reopened(snapshot: RunSnapshot, replay: Replay) -> Records:
    """Return the records with which an ended run continues.

    A node that failed or was cancelled keeps its visit: its next attempt has a higher number. A
    node that had ended and must wait once more gets a new visit when its turn comes.
    """
    records = replay.records()
    nodes = {}
    for name in {**records.nodes, **snapshot.nodes}:
        old_record = snapshot.node(name)
        record = _continued(records.node(name), old_record)
        if name in records.nodes or record != NodeRecord():
            nodes[name] = old_record if map_of(name) else record
    maps = {
        name: MapRecord(record.visit, record.total)
        for name, record in snapshot.maps.items()
        if nodes[name].status is Status.READY and nodes[name].visit == record.visit
    }
    return replace(records, nodes=nodes, maps=maps)


def _continued(new_record: NodeRecord, old_record: NodeRecord) -> NodeRecord:
    """Continue the numbers of a replayed node that must not repeat: visit, attempt and fence."""
    if (
        new_record.status is Status.READY
        and old_record.visit >= new_record.visit
        and old_record.status in {Status.FAILED, Status.CANCELLED}
    ):
        again = replace(
            new_record,
            visit=old_record.visit,
            attempt=old_record.attempt + 1,
            fence=old_record.fence + 1,
        )
        again = replace(again, hold=old_record.hold, handed=old_record.skip)
        return replace(again, child=old_record.child, uncounted=old_record.attempt)
    return following(new_record, old_record, old_record.visit)


def following(new_record: NodeRecord, old_record: NodeRecord, highest: int) -> NodeRecord:
    """Return the record of a replayed node that doesn't continue its visit; `highest` is its last one."""
    highest = max(highest, old_record.last)
    skip = "" if old_record.ended[0] else old_record.skip
    new_record = replace(new_record, hold=old_record.hold, handed=skip)
    if new_record.status is Status.READY:
        return replace(
            new_record,
            visit=max(new_record.visit, highest + 1),
            attempt=1,
            fence=old_record.fence,
        )
    is_same = (new_record.visit, new_record.status) == (old_record.visit, old_record.status)
    visit = new_record.visit if new_record.status in FINAL else max(new_record.visit, highest)
    new_record = replace(new_record, visit=visit, last=highest if highest > visit else 0)
    if is_same and visit == old_record.visit:
        return replace(
            new_record,
            attempt=old_record.attempt,
            fence=old_record.fence,
            nonce=old_record.nonce,
            child=old_record.child,
        )
    return replace(new_record, fence=max(old_record.fence, new_record.fence), nonce="")


def undone_entries(
    snapshot: RunSnapshot, replay: Replay, nodes: Mapping[str, NodeRecord]
) -> dict[VisitKey, VisitEntry]:
    """List the visits that no longer count, each with its entry marked as undone."""
    undone: dict[VisitKey, VisitEntry] = {}
    for key, entry in snapshot.entries.items():
        record = nodes.get(key[0], NodeRecord())
        again = record.status in {Status.READY, Status.WAITING} and record.visit == key[1]
        counts = key in replay.inputs or again or map_of(key[0]) or key[0] == AFTER_GRAPH
        if not counts and not entry.get("undone"):
            undone[key] = {**entry, "undone": True}
    return undone


@immutable
class ForkOptions:
    """A fork's id, tags and requester, and if `edited` the packed `input` of the node that starts again."""

    run_id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    edited: bool = False
    input: JSON = None
    requester: JSONMapping | None = None


def fork(
    engine: Engine,
    run_id: str,
    node: str,
    visit: int | None = None,
    *,
    tags: Mapping[str, str] | None = None,
    new_input: Sequence[object] = (),
    requester: JSONMapping | None = None,
) -> str:
    """Start a new run in which a visit of a node starts again, by default the latest; return its id.

    Everything that had completed and does not depend on that visit is kept; the rest starts again.
    `new_input` holds the node's new input, or nothing; for `requester` see `Start`.

    Raises:
        NotFoundError: the run, the node or the visit doesn't exist.
        UsageError: the node has not run yet, or a rule excludes the requester, who is unknown.
        ConflictError: the run's kept results don't lead to the node, or its shape is gone.
    """
    source = engine.store.peek(run_id)
    if source and (plan := engine.registry.find(source.graph_id)):
        check_requester(plan, requester)
    packed_input = codec.pack(new_input[0], "input") if new_input else None
    new_id = ids.run_id(partition_of(run_id), run_name(requester))
    options = ForkOptions(
        new_id, codec.pack(dict(tags or {}), "tags"), bool(new_input), packed_input, requester
    )
    engine.ring(write_fork(engine.store, run_id, node, visit, options))
    return new_id


def write_fork(
    store: Store, run_id: str, node: str, visit: int | None, options: ForkOptions
) -> Reply:
    """Plan a fork and write it; return the reply with its doorbells. Raises like `fork`."""
    for _ in range(TRIES):
        reply = store.do(ForkRun(plan_fork(store, run_id, node, visit, options)))
        if reply.word == "forked":
            return reply
        if reply.word == "full":
            raise TooManyRuns(reply.detail)
        if reply.word != "moved":
            raise NotFoundError(
                f"run {run_id} or its graph is gone by now; nothing was started."
            )
    raise ConflictError(f"run {run_id} kept changing while its fork was planned; try again.")


def plan_fork(
    store: Store, run_id: str, node: str, visit: int | None, options: ForkOptions
) -> Fork:
    """Plan a fork; raises like `fork`."""
    snapshot = existing(store.read(run_id), run_id)
    topology = _topology(store, snapshot)
    record = snapshot.record
    past = history(snapshot)
    key = (node, _chosen_visit(snapshot, topology, past, node, visit))
    replay = Replay(topology, past, dependents(topology, past, key) if key in past else set())
    records = _fork_records(snapshot, replay)
    fork_record = records.node(node)
    if fork_record.status is not Status.READY:
        raise ConflictError(
            f"the kept results of run {record.run_id} don't lead to node {node!r}; nothing was started."
        )
    lost = sorted({name for name, _ in replay.inputs} & _undone(snapshot))
    if lost:
        raise ConflictError(
            f"run {record.run_id} has undone {', '.join(lost)}, whose results would be kept; nothing was "
            "started. Fork it from the first of them, or start another run."
        )
    results = _kept_visits(snapshot, replay, past, records)
    tags = {**snapshot.tags, **options.tags, "forked_from": record.run_id}
    by = topology.admission.by if topology.admission else ""
    if by and label(by, tag_of(tags)) != label(by, tag_of(snapshot.tags)):
        raise UsageError(
            f"a fork keeps the key of its run, {label(by, tag_of(snapshot.tags))}; nothing was started. "
            "Start another run instead."
        )
    return Fork(
        Start(
            options.run_id,
            record.graph_id,
            record.fingerprint,
            snapshot.task,
            snapshot.invocation_state,
            tags,
            requester=options.requester,
        ),
        record.run_id,
        records,
        results,
        _kept_memories(snapshot, results, records),
        (node, fork_record.visit) if options.edited else None,
        options.input,
        snapshot.reopened,
    )


def _chosen_visit(
    snapshot: RunSnapshot,
    topology: Topology,
    past: Mapping[VisitKey, object],
    node: str,
    visit: int | None,
) -> int:
    """Find the visit to start again: the named one, or the latest."""
    run_id = snapshot.record.run_id
    if node not in topology.nodes or node.endswith("]"):
        raise NotFoundError(
            f"graph {snapshot.record.graph_id!r} has no node {node!r}; nothing was started."
            + similar(node, topology.nodes)
        )
    record = snapshot.node(node)
    numbers = {number for name, number in past if name == node}
    if record.status not in {Status.PENDING, Status.SKIPPED}:
        numbers.add(record.visit)
    if not numbers:
        raise UsageError(f"node {node!r} has not run yet in run {run_id}; nothing was started.")
    if visit is not None and visit not in numbers:
        raise NotFoundError(
            f"node {node!r} of run {run_id} has no visit {visit}; nothing was started."
        )
    return max(numbers) if visit is None else visit


def _fork_records(snapshot: RunSnapshot, replay: Replay) -> Records:
    """Take the records of a replay, with the items of kept maps."""
    records = replay.records()
    nodes = {}
    for name, record in records.nodes.items():
        old_record = snapshot.node(name)
        same = (old_record.visit, old_record.status) == (record.visit, record.status)
        fork_record = (
            replace(record, attempt=old_record.attempt, child=old_record.child)
            if same and record.visit
            else record
        )
        nodes[name] = replace(
            fork_record if (name, record.visit) in replay.inputs else record, nonce=""
        )
    maps = {
        name: progress
        for name, progress in snapshot.maps.items()
        if (name, progress.visit) in replay.inputs and nodes[name].visit == progress.visit
    }
    items = {
        name: record
        for name, record in snapshot.nodes.items()
        if map_of(name) in maps and record.visit == maps[map_of(name)].visit
    }
    return replace(records, nodes={**nodes, **items}, maps=maps)


def _kept_visits(
    snapshot: RunSnapshot,
    replay: Replay,
    past: Mapping[VisitKey, SettledVisit],
    records: Records,
) -> dict[VisitKey, int]:
    """List the kept visits, with places in the order before those that the new run gives."""
    positions = {
        key: 0 for key in snapshot.entries if key in replay.inputs or _is_item(key, records)
    }
    order = [
        key for key in past if key in replay.inputs and past[key].status is Status.COMPLETED
    ]
    return positions | {key: position - len(order) for position, key in enumerate(order)}


def _is_item(key: VisitKey, records: Records) -> bool:
    record = records.nodes.get(key[0]) if map_of(key[0]) else None
    return record is not None and record.visit == key[1]


def _kept_memories(
    snapshot: RunSnapshot, visits: Mapping[VisitKey, int], records: Records
) -> list[str]:
    """List the completed nodes all of whose visits up to the present are kept: no other visit
    shaped their memory.
    """
    partly = {key[0] for key in snapshot.entries if key not in visits}
    partly |= {
        name
        for name, record in records.nodes.items()
        if record.visit != snapshot.node(name).visit
    }
    names = dict.fromkeys(name for name, _ in visits)
    return [
        name
        for name in names
        if name not in partly and records.nodes[name].status is Status.COMPLETED
    ]


def remove(store: Store, run_id: str) -> None:
    """Remove an ended run, and the runs nested in it.

    Raises:
        NotFoundError: the run doesn't exist. UsageError: it is nested in another run.
        ConflictError: it has not ended, or its `on_end` task is still to be called.
    """
    outcome = store.do(RemoveRun(run_id)).word
    if outcome == "unknown":
        raise no_such_run(run_id)
    if outcome == "inside":
        raise UsageError(
            f"run {run_id} is inside another one; nothing was removed. Remove the outermost."
        )
    if outcome == "goes_on":
        raise ConflictError(
            f"run {run_id} has not ended, or its on_end task was not called yet; nothing was removed. Cancel "
            "it first, or try again later."
        )
