"""Plans as arguments of the script `apply`, and graphs as far as plans need them.

A number in an argument costs a script more than a comparison of texts, so numbers go in bytes, and texts
that Python can write in full are not put together in Lua.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.definition.model import ROOT, EdgeKind, Join, Topology, item_id, map_of, shape_name
from runner.records.run import LoopRecord, NodeRecord
from runner.scheduler import may_follow
from runner.scheduler import plan as plans
from runner.scheduler.changes import AddEvent, Arrival, Dispatch, DropTimer, SetTimer
from runner.scheduler.plan import PartialView, TransitionPlan
from runner.store import encoding
from runner.store.encoding import EVENT_LETTERS
from runner.store.redis.connection import Argument
from runner.store.redis.run_fields import loop_text, node_text

MOST_FIELDS = 3_000
"""Fields of a run that a plan or a claim names: Lua takes 8,000 arguments, two for each that is written."""

_HEAD = struct.Struct(">BBBB9H")
"""Active, waiting and started with 128 added; 1 for a child run; how many guards, arrivals, queues, fields,
results, dropped timers, set timers, events and doorbells there are."""

_ARRIVAL = struct.Struct(">5HBB")
"""Round of the scope and of the node; arrivals, live ones; how many it needs; kind, number of its queue.

With `_FOLLOWS` in its kind a node may be claimed as it begins.

For an item of a map: 0, the map's visit, 0, 0, how many run at once; kind, number of its queue.
"""

_ALL, _ANY, _ITEM, _FOLLOWS = 0, 1, 2, 4

Queue = tuple[str, int]
"""A queue's name, and the priority of a message in it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A node that arrivals can make ready: how many it needs, how it begins, and where its doorbell goes."""

    needs: int
    kind: int
    record: NodeRecord
    scope: int
    queue: Queue


class KnownGraph:
    """A graph's topology, with what was computed of it for plans and claims."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.templates: dict[tuple[str, str, bool], SettleTemplate] = {}
        self._targets: dict[str, Target | None] = {}
        self._fields: dict[str, tuple[str, ...]] = {}
        self._guards: dict[str, tuple[str, ...]] = {}
        self._next_from: dict[str, str] = {}

    def is_plain(self, node: str) -> bool:
        """Whether a plan has all that a node needs; one with limits shares those with other runs."""
        shape = self.topology.nodes.get(shape_name(node))
        return shape is not None and not shape.limits and node[:1] != "@"

    def next_from(self, node: str) -> str:
        """Name the queue whose next doorbell a worker may take when it settles a node: priority, then name.

        It is the node's own, which the worker serves; "" where nodes with limits ring there, too.
        """
        name = shape_name(node)
        if name not in self._next_from:
            nodes, own = self.topology.nodes.values(), self.topology.nodes[name]
            place = (own.queue, own.priority)
            limited = any(shape.limits for shape in nodes if (shape.queue, shape.priority) == place)
            self._next_from[name] = "" if limited else f"{own.priority} {own.queue}"
        return self._next_from[name]

    def fields(self, node: str) -> tuple[str, ...]:
        """Name the fields of the run that a claim needs: for an item its map, otherwise sources, with their
        outputs as if of first visits, and loops.
        """
        if node not in self._fields:
            if node != shape_name(node):
                return (f"m:{map_of(node)}", *self.guards(node))
            self._fields[node] = tuple(dict.fromkeys(self._needed(node)))
        return self._fields[node]

    def _needed(self, node: str) -> Iterator[str]:
        topology = self.topology
        for source in dict.fromkeys(edge.source for edge in topology.incoming[node]):
            yield from (f"n:{source}", f"o:{source}.1")
        yield from self.guards(node)
        if topology.nodes[node].map:
            yield f"m:{node}"

    def guards(self, node: str) -> tuple[str, ...]:
        """Name the fields of the loops that a node's inputs and its end depend on, and of their headers."""
        name = shape_name(node)
        if name not in self._guards:
            self._guards[name] = tuple(self._loops(name))
        return self._guards[name]

    def _loops(self, node: str) -> Iterator[str]:
        topology = self.topology
        loops = {edge.loop for edge in topology.incoming[node] if edge.kind is EdgeKind.EXIT}
        for edge in topology.outgoing[node]:
            loops.update(
                topology.nodes[edge.target].loops, [edge.loop] if edge.loop != ROOT else []
            )
        for loop in topology.nodes[node].loops:
            loops.update([loop], topology.loops[loop].inner)
            if node == topology.loops[loop].header:
                continue
            yield f"n:{topology.loops[loop].header}"
        yield from (f"l:{loop}" for loop in sorted(loops))

    def target(self, node: str) -> Target | None:
        """Return how arrivals make a node ready; None where they come over edges of several scopes."""
        if node not in self._targets:
            self._targets[node] = self._target(node)
        return self._targets[node]

    def _target(self, node: str) -> Target | None:
        topology, shape = self.topology, self.topology.nodes[node]
        scopes = {
            topology.outgoing[edge.source][edge.position].scope
            for edge in topology.incoming[node]
            if edge.kind is not EdgeKind.BACK
        }
        if len(scopes | ({ROOT} if node in topology.entries else set())) > 1:
            return None
        record, bell = plans.beginning(topology, node, 0)
        kind = _ANY if shape.join is Join.ANY else _ALL
        return Target(shape.needs, kind, record, shape.scope, (bell.queue, bell.priority))


@dataclass(slots=True)
class ClaimRead:
    """What a claim has read of its run, as texts: what plans of that visit are made of, and their guards.

    `line` are the run's counters, `asked` what is stored of the visit's questions. `kept` are the bytes of
    the document and of each message that the node keeps, None where it has written others since. `final` are
    fields that no longer change as long as the run goes on.
    """

    run_id: str
    graph: KnownGraph
    is_child: bool
    line: bytes
    texts: dict[str, bytes]
    asked: bytes | None = None
    kept: tuple[int, Sequence[int]] | None = (0, ())
    final: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """Whether no other node of the run was active."""
        return self.line.split(b" ", 2)[1] == b"1"

    def known(self) -> PartialView:
        """Read the texts, for a plan."""
        nodes: dict[str, NodeRecord] = {}
        loops: dict[int, LoopRecord] = {}
        for name, text in self.texts.items():
            if name.startswith("n:"):
                nodes[name[2:]] = encoding.node_record(text)[0] if text else NodeRecord()
            elif name.startswith("l:"):
                loops[int(name[2:])] = encoding.loop_record(text or b"{}")
        # An item's map is not read: its numbers are added by difference.
        owners = {owner: NodeRecord() for name in nodes if (owner := map_of(name))}
        return PartialView(nodes | owners, loops)


class Unplanned(Exception):
    """A plan has what the script `apply` does not do, or too much of it."""


@dataclass(slots=True)
class PlanWrites:
    """What a plan writes, as the arguments that `apply` takes for it.

    `fields` and `results` are names with values; results get the number of the first event in front.
    """

    fields: list[Argument] = field(default_factory=list)
    results: list[Argument] = field(default_factory=list)
    dropped: list[Argument] = field(default_factory=list)
    timers: list[Argument] = field(default_factory=list)
    events: list[Argument] = field(default_factory=list)
    doorbells: list[Dispatch] = field(default_factory=list)


def guard_fields(plan: TransitionPlan) -> list[str]:
    """Name the fields that must still be what they were."""
    return [f"n:{name}" if isinstance(name, str) else f"l:{name}" for name in plan.guards]


def writes(plan: TransitionPlan, seen: ClaimRead, data: Mapping[str, bytes]) -> PlanWrites:
    """Write the records, timers, events and doorbells of a plan; `data` are those of events, by kind.

    Raises:
        Unplanned: it has other actions.
    """
    topology, run_id = seen.graph.topology, seen.run_id
    made = PlanWrites()
    for node, record in plan.nodes.items():
        made.fields += (f"n:{node}", node_text(record, topology.nodes[shape_name(node)].scope))
    for loop, changed in plan.loops.items():
        made.fields += (f"l:{loop}", loop_text(changed))
    for action in plan.actions:
        match action:
            case DropTimer():
                made.dropped.append(f"{action.kind}|{run_id}|{action.key}")
            case SetTimer():
                made.timers += (action.due, f"{action.kind}|{run_id}|{action.key}")
            case AddEvent():
                detail = data.get(action.kind, b"")
                made.events += (
                    EVENT_LETTERS.get(action.kind, action.kind),
                    action.visit,
                    action.node,
                    action.detail,
                    detail,
                )
            case Dispatch():
                made.doorbells.append(action)
            case _:
                raise Unplanned(action)
    return made


@dataclass(frozen=True, slots=True)
class SettleTemplate:
    """The arguments of a plan that depend on the graph and on what a node did, not on its run.

    `queues` are numbered as the arguments name them; `goes_on` says that it may make a node ready.
    """

    head: Sequence[Argument]
    counted: Sequence[Argument]
    arrivals: Sequence[Argument]
    queues: Mapping[Queue, int]
    goes_on: bool


def make_template(
    plan: TransitionPlan, seen: ClaimRead, made: PlanWrites, node: str = ""
) -> SettleTemplate:
    """Write what plans of one form share; `node` is the one that settles.

    Raises:
        Unplanned: there are too many fields, or a number is too large.
    """
    graph, counted, arrivals = seen.graph, list[Argument](), list[Argument]()
    queues: dict[Queue, int] = {}
    for target, scope in dict.fromkeys((arrival.node, arrival.scope) for arrival in plan.arrivals):
        same = [
            arrival for arrival in plan.arrivals if (arrival.node, arrival.scope) == (target, scope)
        ]
        counted += (f"a{scope}:{target}", f"n:{target}")
        follows = (
            node
            and may_follow(graph.topology, node, target)
            and len(graph.fields(target)) < MOST_FIELDS
        )
        arrivals += _arrival(graph.target(target), same, queues, _FOLLOWS if follows else 0)
    if plan.item_of:
        counted += (f"m:{plan.item_of}", f"n:{plan.item_of}")
        arrivals += _item(graph.topology, plan, queues)
    for bell in made.doorbells:
        queues.setdefault((bell.queue, bell.priority), len(queues))
    if len(plan.guards) + len(counted) > MOST_FIELDS:
        raise Unplanned(len(counted))
    lists = (
        len(made.fields) // 2,
        len(made.results) // 2,
        len(made.dropped),
        len(made.timers) // 2,
    )
    numbers = _packed(
        _HEAD,
        *(128 + plan.active, 128 + plan.waiting, 128 + plan.started, seen.is_child),
        *(len(plan.guards), len(counted) // 2, len(queues)),
        *(*lists, len(made.events) // 5, len(made.doorbells)),
    )
    head = (numbers, graph.topology.limit or "")
    goes_on = bool(made.doorbells or plan.item_of) or any(arrival.live for arrival in plan.arrivals)
    return SettleTemplate(
        head, counted, [*arrivals, *(part for queue in queues for part in queue)], queues, goes_on
    )


def _arrival(
    target: Target | None, arrivals: Sequence[Arrival], queues: dict[Queue, int], follows: int
) -> list[Argument]:
    """Write the arrivals at one node over the edges of one scope."""
    if target is None:
        raise Unplanned(arrivals[0].node)
    first, number, live = arrivals[0], len(arrivals), sum(arrival.live for arrival in arrivals)
    record = replace(target.record, stamp=first.own)
    queue = queues.setdefault(target.queue, len(queues))
    return [
        _packed(
            _ARRIVAL,
            first.stamp,
            first.own,
            number,
            live,
            target.needs,
            target.kind + follows,
            queue,
        ),
        first.node,
        node_text(record, target.scope),
        f"[{first.stamp},{number},{live}]",
    ]


def _item(topology: Topology, plan: TransitionPlan, queues: dict[Queue, int]) -> list[Argument]:
    """Write the end of an item, with the item that begins in its place."""
    (own,) = plan.nodes.values()
    item = item_id(plan.item_of, 0)
    record, bell = plans.beginning_item(topology, item, own.visit, own.stamp)
    shape = topology.nodes[plan.item_of].map
    queue = queues.setdefault((bell.queue, bell.priority), len(queues))
    window = (shape.window or 0) if shape else 0
    return [
        _packed(_ARRIVAL, 0, own.visit, 0, 0, window, _ITEM, queue),
        plan.item_of,
        node_text(record, topology.nodes[shape_name(item)].scope),
        "",
    ]


def _packed(form: struct.Struct, *numbers: int) -> bytes:
    try:
        return form.pack(*numbers)
    except struct.error as error:
        raise Unplanned(numbers) from error


def arguments(
    seen: ClaimRead,
    guards: Sequence[str],
    made: PlanWrites,
    shared: SettleTemplate,
    *,
    task_id: Argument = "",
    grows: Argument = 0,
    claims: Argument = "",
) -> list[Argument]:
    """Write a plan as the arguments of `apply` from the sixth on.

    `guards` are fields that must have the text that was seen; `task_id` is the task that ends with it,
    `grows` the bytes by which the run grows, `claims` how the next node is claimed.
    """
    arguments: list[Argument] = [seen.run_id, seen.graph.topology.graph_id, task_id, grows]
    arguments += (
        *shared.head,
        claims,
        *guards,
        *shared.counted,
        *[seen.texts[guard] for guard in guards],
    )
    arguments += (
        *shared.arrivals,
        *made.fields,
        *made.results,
        *made.dropped,
        *made.timers,
        *made.events,
    )
    for bell in made.doorbells:
        arguments += (shared.queues[bell.queue, bell.priority], bell.node, bell.visit, bell.attempt)
    return arguments
