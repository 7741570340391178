"""The records of one transition while it is being worked out, and the value it ends in.

A `Draft` reads through a `View`, each record at most once it is needed, and keeps the run's
counters in step with the nodes. What a transition decides is in `transitions/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from runner.actions import Action, Announce, DropTimer, Leave, TellParent, TimerKind
from runner.events import EventKind
from runner.graph import ROOT, NodeTopology, Topology
from runner.interrupts import Interrupt
from runner.limits import Standings
from runner.maps import map_of, shape_name
from runner.run import (
    ACTIVE,
    FINAL,
    Arrivals,
    LoopRecord,
    MapRecord,
    NodeRecord,
    RunRecord,
    Status,
    status_of,
)


class View(Standings, Protocol):
    """What a transition may look at: the records of one run, each read only when it is needed."""

    def run(self) -> RunRecord:
        """Return the run's counters."""

    def node(self, node: str) -> NodeRecord:
        """Return a node's record, or the defaults."""

    def loop(self, loop: int) -> LoopRecord:
        """Return a loop's record, or the defaults."""

    def map(self, node: str) -> MapRecord:
        """Return a map's record, or the defaults."""

    def arrivals(self, scope: int, node: str) -> Arrivals:
        """Return what has arrived at a node over the edges of one scope."""

    def live(self) -> Iterable[str]:
        """Name the nodes that a stop must still look at: every one that is ready, retrying or waiting,
        but for those whose child run was told to stop.
        """

    def standing(self, interrupt_id: str) -> str:
        """Return "" for a question never asked, else open, answered, expired, withdrawn when its node
        stopped waiting, or retracted when somebody withdrew it.
        """

    def asked(self, interrupt_id: str) -> Interrupt | None:
        """Return a question as it was asked, with how often it has reminded; None for one never asked."""

    def reported(self, reference: str) -> bool:
        """Tell whether another system has said how the work of that name ended."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a transition decided: a word for the caller, the changed records, and what to do."""

    reply: str
    run: RunRecord
    nodes: Mapping[str, NodeRecord]
    loops: Mapping[int, LoopRecord]
    arrivals: Mapping[tuple[int, str], Arrivals]
    actions: Sequence[Action]
    maps: Mapping[str, MapRecord]


class Draft:
    """What one transition has read and changed so far."""

    def __init__(self, view: View, topology: Topology, now: int, lease_ms: int) -> None:
        """Start from a view; `now` and `lease_ms` are milliseconds."""
        self.view, self.topology, self.now, self.lease_ms = view, topology, now, lease_ms
        self.run = view.run()
        self.before = self.run.status
        self.nodes: dict[str, NodeRecord] = {}
        self.loops: dict[int, LoopRecord] = {}
        self.maps: dict[str, MapRecord] = {}
        self.arrived: dict[tuple[int, str], Arrivals] = {}
        self.actions: list[Action] = []

    def node(self, node: str) -> NodeRecord:
        """Return a node as it stands in this round: settled in an older one means pending.

        A run that was moved may hear of a node that its graph no longer has: that is pending, too.
        """
        record = self.nodes.get(node) or self.view.node(node)
        shape = self.topology.nodes.get(shape_name(node))
        stamp = self.round(shape.scope if shape else ROOT)
        if record.stamp == stamp:
            return record
        return NodeRecord(visit=record.visit, fence=record.fence, stamp=stamp, nonce=record.nonce)

    def shape(self, node: str) -> NodeTopology:
        """Return what the graph's shape says of a node, or of all items of a map."""
        return self.topology.nodes[shape_name(node)]

    def map(self, node: str) -> MapRecord:
        """Return a map's record as it stands in this step."""
        return self.maps.get(node) or self.view.map(node)

    def loop(self, loop: int) -> LoopRecord:
        """Return a loop as it stands in this step."""
        return self.loops.get(loop) or self.view.loop(loop)

    def round(self, scope: int) -> int:
        """Return the number that marks what belongs to the present round of a scope."""
        return 0 if scope == ROOT else self.loop(scope).round

    def put(self, node: str, record: NodeRecord) -> None:
        """Write a node; keep the run's counters, those of its map and its limits in step with it."""
        record = self._leaving(node, record)
        old = self.node(node)
        active, waiting = _is_active(record) - _is_active(old), _is_waiting(record) - _is_waiting(old)
        held = record.held - old.held
        self.count(active, waiting, held)
        owner = map_of(node)
        if owner and (active or waiting or held):
            found = self.map(owner)
            self.maps[owner] = replace(
                found, active=found.active + active, waiting=found.waiting + waiting + held
            )
        self.nodes[node] = record

    def _leaving(self, node: str, record: NodeRecord) -> NodeRecord:
        """Let a node that is no longer running, or no longer ready, give back what limits gave it."""
        old = self.node(node)
        stays = record.status is Status.RUNNING or (record.status is old.status is Status.READY)
        if stays or not old.since:
            return record
        for limit in self.shape(node).limits:
            if limit.concurrency:
                self.add(Leave(limit.key(self.view), node, limit.concurrency))
        return replace(record, since=0)

    def count(self, active: int = 0, waiting: int = 0, held: int = 0) -> None:
        """Move the run's counters."""
        run = self.run
        self.run = replace(
            run, active=run.active + active, waiting=run.waiting + waiting, held=run.held + held
        )

    def add(self, *actions: Action) -> None:
        """Ask the store for something."""
        self.actions.extend(actions)

    def step(self, reply: str) -> Step:
        """Close the transition: work out the run's status and tell what became of it."""
        status = status_of(self.run)
        if status is not self.before:
            self.run = replace(self.run, status=status)
            kind = EventKind.RUN_ENDED if status in FINAL else EventKind.RUN_STATUS
            self.add(Announce(kind, detail=status))
            if status in FINAL and self.topology.timeout_ms:
                self.add(DropTimer(TimerKind.DEADLINE, ""))
            if self.run.parent:
                self.add(TellParent(status))
        return Step(reply, self.run, self.nodes, self.loops, self.arrived, tuple(self.actions), self.maps)

    def refuse(self, reply: str) -> Step:
        """Change nothing and say why."""
        return Step(reply, self.view.run(), {}, {}, {}, (), {})


def _is_active(record: NodeRecord) -> bool:
    return record.status in ACTIVE or (record.status is Status.WAITING and record.busy)


def _is_waiting(record: NodeRecord) -> bool:
    return record.status is Status.WAITING and not record.busy and not record.held
