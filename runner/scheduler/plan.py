"""Transitions planned by the worker that has read the node, for a store that only checks and applies them.

This folder runs unchanged on `PartialView`, which has a few records and assumes a run in progress.
Values that other nodes change at the same time are left to the store, in a form that commutes: a
run's counters and a map's numbers are changed by differences; arrivals are counted, and the last of
them, or the first live arrival at a join `any`, makes its node ready with the record and doorbell
that `beginning` returns. Everything else that a plan depends on is in `TransitionPlan.guards`: the
plan is applied only if those records are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from runner.definition.model import Topology, shape_name
from runner.immutable import immutable
from runner.limits.setting import LimitSetting
from runner.limits.slots import KeyedLimit, QueuePosition
from runner.records.interrupts import Interrupt
from runner.records.run import Arrivals, LoopRecord, MapRecord, NodeRecord, RunRecord, Status
from runner.scheduler.arrivals import begin_visit
from runner.scheduler.changes import Action, Arrival, Changes, Dispatch, TransitionResult, View
from runner.scheduler.maps import begin_item

MANY = 1 << 40
"""The active nodes and map items that a plan assumes, so many that it ends neither run nor map."""


Name = TypeVar("Name", str, int)

Record = TypeVar("Record", NodeRecord, LoopRecord)


class Unread(Exception):
    """A transition needs a record that its view does not have."""


class PartialView(View):
    """The records of a run that were read; `used` are the records that a transition depends on."""

    def __init__(
        self,
        nodes: Mapping[str, NodeRecord],
        loops: Mapping[int, LoopRecord] = MappingProxyType({}),
    ) -> None:
        self._nodes = nodes
        self._loops = loops
        self.used: dict[str | int, None] = {}

    def run(self) -> RunRecord:
        return RunRecord("", "", "", Status.EXECUTING, active=MANY, waiting=MANY)

    def node(self, node: str) -> NodeRecord:
        return self._take(node, self._nodes)

    def loop(self, loop: int) -> LoopRecord:
        return self._take(loop, self._loops)

    def _take(self, name: Name, records: Mapping[Name, Record]) -> Record:
        if name not in records:
            raise Unread(name)
        self.used[name] = None
        return records[name]

    def map(self, node: str) -> MapRecord:  # noqa: ARG002 - all maps have the same assumed record
        return MapRecord(total=MANY, active=MANY)

    def arrivals(self, scope: int, node: str) -> Arrivals:
        raise Unread(scope, node)

    def idle(self, after_node: str) -> Iterable[str]:
        raise Unread(after_node)

    def question_status(self, interrupt_id: str) -> str:
        raise Unread(interrupt_id)

    def question(self, interrupt_id: str) -> Interrupt | None:
        raise Unread(interrupt_id)

    def reported(self, reference: str) -> bool:
        raise Unread(reference)

    def tag(self, name: str) -> str:
        raise Unread(name)

    def next_start(self, key: str, interval: int) -> int:
        raise Unread(key, interval)

    def limit_setting(self, name: str) -> LimitSetting | None:
        raise Unread(name)

    def input_key(self, node: str, visit: int, path: str) -> str | None:
        raise Unread(node, visit, path)

    def queue_position(
        self, limit: KeyedLimit, node: str, since: int, now: int
    ) -> QueuePosition:
        raise Unread(limit, node, since, now)


@immutable
class TransitionPlan:
    """All changes by one transition to one run. Timers are in ms from the time it is applied.

    `guards` are the nodes and loops that must still have the records of the view. `active`,
    `waiting` and `started` are added to the run's counters; `item_of` is the map whose item has
    ended, or "".
    """

    word: str
    guards: Sequence[str | int]
    nodes: Mapping[str, NodeRecord]
    loops: Mapping[int, LoopRecord]
    arrivals: Sequence[Arrival]
    item_of: str
    active: int
    waiting: int
    started: int
    actions: Sequence[Action]


def plan_transition(
    view: PartialView,
    topology: Topology,
    lease_ms: int,
    transition: Callable[[Changes], TransitionResult],
) -> TransitionPlan | None:
    """Plan a transition; None if it is refused, or needs or changes more than a plan can hold."""
    changes = Changes(view, topology, 0, lease_ms)
    changes.uncounted = []
    try:
        result = transition(changes)
    except Unread:
        return None
    assumed = view.run()
    run = result.run
    with_counters = replace(
        assumed, active=run.active, waiting=run.waiting, started=run.started
    )
    item_of = next(iter(result.maps), "")
    if (
        not result.nodes
        or run != with_counters
        or (item_of and result.maps != {item_of: ENDED_ITEM})
    ):
        return None
    return TransitionPlan(
        word=result.reply,
        guards=[name for name in view.used if name != item_of],
        nodes=result.nodes,
        loops=result.loops,
        arrivals=changes.uncounted,
        item_of=item_of,
        active=run.active - assumed.active,
        waiting=run.waiting - assumed.waiting,
        started=run.started - assumed.started,
        actions=result.actions,
    )


ENDED_ITEM = MapRecord(total=MANY, active=MANY - 1)


def beginning(topology: Topology, node: str, node_round: int) -> tuple[NodeRecord, Dispatch]:
    """Return the record and the doorbell of a node's first visit in a round of its innermost loop."""
    loops = dict.fromkeys(topology.nodes[node].loops, LoopRecord(node_round))
    changes = Changes(PartialView({node: NodeRecord(stamp=node_round)}, loops), topology, 0, 0)
    begin_visit(changes, node, visit=1)
    return changes.nodes[node], _dispatch(changes)


def beginning_item(
    topology: Topology, item: str, visit: int, node_round: int
) -> tuple[NodeRecord, Dispatch]:
    """Return the record and the doorbell of a map's item that hasn't run in this visit."""
    loops = dict.fromkeys(topology.nodes[shape_name(item)].loops, LoopRecord(node_round))
    changes = Changes(PartialView({item: NodeRecord(stamp=node_round)}, loops), topology, 0, 0)
    begin_item(changes, item, visit)
    return changes.nodes[item], _dispatch(changes)


def _dispatch(changes: Changes) -> Dispatch:
    return next(action for action in changes.actions if isinstance(action, Dispatch))
