"""Rebuilding a run's records from its history, as if only a part of it had happened. Pure.

The history is the visits that have completed or failed, each with the edges that it took. A replay
begins the run on an empty page and feeds it those visits in the order of completion, by the same
transitions that a store applies; visits that are left out stay ready, and what depended on them does
not become ready at all. So dead paths, loops and joins need no rules of their own here. A map is one
visit; its items keep their records, and a map that runs again goes on with those that have completed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner import schedule
from runner.actions import Dispatch
from runner.draft import Draft, Step
from runner.errors import ConflictError
from runner.graph import AFTER_GRAPH, FailurePolicy, Topology
from runner.limits import Turn
from runner.maps import map_of
from runner.ports import RunSnapshot
from runner.run import FINAL, Arrivals, LoopRecord, MapRecord, NodeRecord, Records, RunRecord, Status

At = tuple[str, int]
"""A visit: node and number."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A visit that has ended: its status, a bit for each of its edges, and whose results its
    conditions read.
    """

    node: str
    visit: int
    status: Status
    edges: str = ""
    reads: tuple[At, ...] = ()


def history(snapshot: RunSnapshot, topology: Topology) -> dict[At, Settled]:
    """List the visits of a run that count, in the order in which they ended; failed ones come last.

    Raises:
        ConflictError: an older version recorded the run, and kept too little of it.
    """
    visits: dict[str, list[int]] = {}
    for node, visit in sorted(snapshot.outputs):
        visits.setdefault(node, []).append(visit)
    upcoming = {node: iter(found) for node, found in visits.items()}
    completed = [(node, next(upcoming[node])) for node in snapshot.order]
    failed = [at for at in snapshot.entries if at not in snapshot.outputs and _failed(snapshot, at)]
    return {
        at: _settled(snapshot, topology, at, status)
        for ended, status in ((completed, Status.COMPLETED), (sorted(failed), Status.FAILED))
        for at in ended
        if at[0] != AFTER_GRAPH
    }


def _failed(snapshot: RunSnapshot, at: At) -> bool:
    """A visit with an error has failed, unless it is still being retried or was undone."""
    entry, record = snapshot.entries[at], snapshot.nodes.get(at[0], NodeRecord())
    if not entry.get("error") or entry.get("undone") or map_of(at[0]):
        return False
    return at[1] < record.visit or record.status in {Status.FAILED, Status.PENDING}


def _settled(snapshot: RunSnapshot, topology: Topology, at: At, status: Status) -> Settled:
    node, visit = at
    if status is Status.FAILED:
        return Settled(node, visit, status)
    entry, record = snapshot.entries[at], snapshot.nodes.get(node, NodeRecord())
    edges = entry.get("edges")
    if edges is None and (record.visit, record.status) == (visit, Status.COMPLETED):
        edges = record.edges
    if edges is None and topology.outgoing[node]:
        raise ConflictError(
            f"run {snapshot.record.run_id} was recorded by an older version, which did not keep where visit "
            f"{visit} of node {node!r} led; nothing was changed. Start it again from its beginning."
        )
    reads = tuple((name, number) for name, number in entry.get("reads", ()))
    return Settled(node, visit, status, edges or "", reads)


@dataclass
class Page:
    """An empty run in memory: the View that a replay works on."""

    record: RunRecord
    nodes: dict[str, NodeRecord]
    loops: dict[int, LoopRecord]
    arrived: dict[tuple[int, str], Arrivals]

    def run(self) -> RunRecord:
        """Return the run's counters."""
        return self.record

    def node(self, node: str) -> NodeRecord:
        """Return a node's record, or the defaults."""
        return self.nodes.get(node) or NodeRecord()

    def map(self, node: str) -> MapRecord:
        """Know of no items."""
        del node
        return MapRecord()

    def loop(self, loop: int) -> LoopRecord:
        """Return a loop's record, or the defaults."""
        return self.loops.get(loop) or LoopRecord()

    def arrivals(self, scope: int, node: str) -> Arrivals:
        """Return what has arrived at a node over the edges of one scope."""
        return self.arrived.get((scope, node)) or Arrivals()

    def live(self) -> Iterable[str]:
        """Name no node: a replay stops nothing."""
        return ()

    def standing(self, interrupt_id: str) -> str:
        """Know of no question."""
        del interrupt_id
        return ""

    def asked(self, interrupt_id: str) -> None:
        """Know of no question."""
        del interrupt_id

    def reported(self, reference: str) -> bool:
        """Know of no work of another system."""
        del reference
        return False

    def tag(self, name: str) -> str:
        """Know of no tag."""
        del name
        return ""

    def next_start(self, key: str) -> int:
        """Know of no rate."""
        del key
        return 0

    def turn(self, key: str, node: str, since: int, now: int) -> Turn:
        """Know of no other execution."""
        del key, node, since, now
        return Turn(0, 0, mine=False)

    def write(self, step: Step) -> None:
        """Take over the records that a transition changed."""
        self.record = step.run
        self.nodes.update(step.nodes)
        self.loops.update(step.loops)
        self.arrived.update(step.arrivals)


class Replay:
    """One replay. `inputs` are the visits whose outputs had reached each fed visit when it ended."""

    def __init__(self, topology: Topology, past: Mapping[At, Settled], leave: Collection[At] = ()) -> None:
        """Play the whole past but for the visits to leave out; limits don't count here."""
        nodes = {name: replace(node, limits=()) for name, node in topology.nodes.items()}
        self._topology = replace(topology, limit=0, timeout_ms=0, nodes=nodes)
        if topology.policy is FailurePolicy.FAIL_FAST:
            leave = {*leave, *(at for at, each in past.items() if each.status is Status.FAILED)}
        self._fed = {at: place for place, at in enumerate(past) if at not in leave}
        self._visits: dict[str, list[int]] = {}
        for node, visit in sorted(past):
            self._visits.setdefault(node, []).append(visit)
        self._heap: list[tuple[int, At]] = []
        self._page = Page(RunRecord("", topology.graph_id, topology.fingerprint), {}, {}, {})
        self.inputs: dict[At, list[At]] = {}
        self._take(schedule.start(self._draft()))
        while self._heap:
            _, at = heapq.heappop(self._heap)
            self._feed(past[at])

    def records(self) -> Records:
        """Give the records as they stand at the end, each node in its present round."""
        draft, page = self._draft(), self._page
        loops = {number: page.loop(number) for number in range(len(self._topology.loops))}
        nodes = {name: draft.node(name) for name in page.nodes}
        scopes = {name: node.scope for name, node in self._topology.nodes.items() if node.loops}
        return Records(nodes, loops, dict(page.arrived), page.record.failed, scopes=scopes)

    def _draft(self) -> Draft:
        return Draft(self._page, self._topology, 0, 0)

    def _feed(self, ended: Settled) -> None:
        node, visit = ended.node, ended.visit
        attempt = self._page.nodes[node].attempt
        self._take(schedule.claim(self._draft(), node, visit, attempt, "replay"))
        draft = self._draft()
        self.inputs[node, visit] = schedule.live_inputs(draft, node)
        fence = self._page.nodes[node].fence
        at = (node, visit, fence)
        self._take(schedule.settle(draft, *at, nonce="", status=ended.status, edges=ended.edges))

    def _take(self, step: Step) -> None:
        self._page.write(step)
        for action in step.actions:
            if isinstance(action, Dispatch):
                self._place(action.node, action.visit)

    def _place(self, node: str, visit: int) -> None:
        """A visit that is ready is the next of its node in the history: others were undone."""
        known = self._visits.get(node, [])
        place = bisect_left(known, visit)
        if place < len(known):
            visit = known[place]
            self._page.nodes[node] = replace(self._page.nodes[node], visit=visit)
        if (node, visit) in self._fed:
            heapq.heappush(self._heap, (self._fed[node, visit], (node, visit)))


def dependents(topology: Topology, past: Mapping[At, Settled], of: At) -> set[At]:
    """Find a visit and all visits that were given its output, or decided by it, or by one of these."""
    found = {of}
    played = Replay(topology, past)
    for at, inputs in played.inputs.items():
        if not found.isdisjoint((*inputs, *past[at].reads)):
            found.add(at)
    return found


def reopened(snapshot: RunSnapshot, replay: Replay) -> Records:
    """Work out the records with which an ended run goes on.

    A node that failed or was cancelled keeps its visit: its next attempt has a higher number. One that
    had ended and must wait once more gets a new visit when its turn comes.
    """
    records = replay.records()
    nodes = {}
    for name in {**records.nodes, **snapshot.nodes}:
        old = snapshot.nodes.get(name, NodeRecord())
        found = _continued(records.nodes.get(name, NodeRecord()), old)
        if name in records.nodes or found.visit or found.fence:
            nodes[name] = old if map_of(name) else found
    maps = {
        name: MapRecord(found.visit, found.total)
        for name, found in snapshot.maps.items()
        if nodes[name].status is Status.READY and nodes[name].visit == found.visit
    }
    return replace(records, nodes=nodes, maps=maps)


def _continued(new: NodeRecord, old: NodeRecord) -> NodeRecord:
    """Give a node of a replay the numbers that must not repeat."""
    if new.status is Status.READY:
        if old.visit >= new.visit and old.status in {Status.FAILED, Status.CANCELLED}:
            again = replace(new, visit=old.visit, attempt=old.attempt + 1, fence=old.fence + 1)
            return replace(again, child=old.child, uncounted=old.attempt)
        return replace(new, visit=max(new.visit, old.visit + 1), attempt=1, fence=old.fence)
    if (new.visit, new.status) == (old.visit, old.status):
        return replace(new, attempt=old.attempt, fence=old.fence, nonce=old.nonce, child=old.child)
    visit = new.visit if new.status in FINAL else max(new.visit, old.visit)
    return replace(new, visit=visit, fence=max(old.fence, new.fence), nonce="")


def undone(
    snapshot: RunSnapshot, replay: Replay, nodes: Mapping[str, NodeRecord]
) -> dict[At, dict[str, Any]]:
    """List the visits that no longer count, each with its entry saying so."""
    gone = {}
    for at, entry in snapshot.entries.items():
        record = nodes.get(at[0], NodeRecord())
        again = record.status in {Status.READY, Status.WAITING} and record.visit == at[1]
        counts = at in replay.inputs or again or map_of(at[0]) or at[0] == AFTER_GRAPH
        if not counts and not entry.get("undone"):
            gone[at] = {**entry, "undone": True}
    return gone
