"""Plans as arguments of the script `apply`, and the parts of graphs that plans need.

A number in an argument costs a script more than a comparison of texts, so numbers are packed into bytes, and
texts that Python can write in full aren't assembled in Lua.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.definition.model import ROOT, EdgeKind, Join, Topology, item_id, map_of, shape_name
from runner.immutable import immutable
from runner.limits.fairness import Share
from runner.records.run import LoopRecord, NodeRecord
from runner.scheduler import may_follow
from runner.scheduler import plan as plans
from runner.scheduler.changes import AddEvent, Arrival, Dispatch, DropTimer, SetTimer
from runner.scheduler.plan import PartialView, TransitionPlan
from runner.store import encoding
from runner.store.encoding import EVENT_LETTERS, RUN, graph_with, loop_text, node_text
from runner.store.redis.connection import Argument

MOST_FIELDS = 3_000
"""The most fields of a run in a plan or a claim: Lua takes 8,000 arguments, two per written field."""

_HEAD = struct.Struct(">BBBB9H")
"""Active, waiting and started with 128 added; 1 for a child run; the numbers of guards, arrivals, queues,
fields, results, dropped timers, set timers, events and doorbells."""

_ARRIVAL = struct.Struct(">5HBB")
"""Round of the scope and of the node; arrivals, live ones, needed ones; kind, number of its queue.

With `_FOLLOWS` in its kind a node may be claimed as it begins.

For an item of a map: 0, the map's visit, 0, 0, the items that run at once; kind, number of its queue.
"""

_ALL = 0
_ANY = 1
_ITEM = 2
_FOLLOWS = 4

CHANGED_BY = "again"
"""The field with the nonce of the last retry or migration, which change completed nodes of the run."""

Queue = tuple[str, int]
"""A queue's name, and the priority of a message in it."""


@immutable
class Target:
    """A node that arrivals can make ready: the arrivals it needs, its first record, its doorbell's queue."""

    needs: int
    kind: int
    record: NodeRecord
    scope: int
    queue: Queue


class KnownGraph:
    """A graph's topology, with data computed from it for plans and claims."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        # Plans have no key: a settle adds its run's key.
        self.unshared = replace(topology, fairness=None)
        self.templates: dict[tuple[str, str, bool], SettleTemplate] = {}
        self._targets: dict[str, Target | None] = {}
        self._fields: dict[str, tuple[str, ...]] = {}
        self._guards: dict[str, tuple[str, ...]] = {}
        shapes = topology.nodes.values()
        # Several nodes read their outputs, which in loops would change.
        self.before_joins = {
            edge.source
            for edges in topology.incoming.values()
            if len(edges) > 1 and not topology.loops
            for edge in edges
        }
        self._limited = {(shape.queue, shape.priority) for shape in shapes if shape.limits}

    def is_plain(self, node: str) -> bool:
        """Return whether a plan covers all that a node needs; limits would be shared with other runs."""
        shape = self.topology.nodes.get(shape_name(node))
        return shape is not None and not shape.limits and node[:1] != "@"

    def next_from(self, node: str) -> str:
        """Name the queue whose next doorbell a worker may take when it settles a node: priority, then name.

        It is the node's queue, which the worker serves; "" if nodes with limits also ring there, or if keys
        take turns.
        """
        shape = self.topology.nodes[shape_name(node)]
        is_shared = self.topology.fairness or (shape.queue, shape.priority) in self._limited
        return "" if is_shared else f"{shape.priority} {shape.queue}"

    def fields(self, node: str) -> tuple[str, ...]:
        """Name the fields of the run that a claim needs: for an item its map; otherwise sources, with the
        outputs of first visits; and loops.
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
        if self.before_joins:
            yield CHANGED_BY
        yield from self.guards(node)
        if topology.nodes[node].map:
            yield f"m:{node}"

    def guards(self, node: str) -> tuple[str, ...]:
        """Name the fields of the loops on which a node's inputs and its end depend, and of their headers."""
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
        """Return how arrivals make a node ready; None if they come over edges of several scopes."""
        if node not in self._targets:
            self._targets[node] = self._target(node)
        return self._targets[node]

    def _target(self, node: str) -> Target | None:
        topology = self.unshared
        shape = self.topology.nodes[node]
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


ACTIVE = RUN.reader("active")


@dataclass(slots=True)
class ClaimRead:
    """Texts that a claim has read from its run; the visit's plans use them and are validated by them.

    `line` has the run's counters, `asked` the stored list of the visit's questions. `kept` has the bytes of
    the node's document and of each message, None if it has written others since. `final` has fields that no
    longer change as long as the run goes on. `decided` has the fields of questions decided by votes, and of
    the audit. `changed_by` is the field CHANGED_BY, None if it was not read.
    """

    run_id: str
    graph: KnownGraph
    is_child: bool
    line: bytes
    texts: dict[str, bytes]
    asked: bytes | None = None
    kept: tuple[int, Sequence[int]] | None = (0, ())
    final: Mapping[str, bytes | None] = field(default_factory=dict)
    decided: dict[str, bytes | None] = field(default_factory=dict)
    changed_by: bytes | None = None

    @property
    def is_alone(self) -> bool:
        """Return whether no other node of the run was active."""
        return bool(ACTIVE(self.line) == "1")

    def known(self) -> PartialView:
        """Decode the texts for a plan."""
        nodes: dict[str, NodeRecord] = {}
        loops: dict[int, LoopRecord] = {}
        for name, text in self.texts.items():
            if name.startswith("n:"):
                nodes[name[2:]] = encoding.node_record(self.run_id, name[2:], text)[0]
            elif name.startswith("l:"):
                loops[int(name[2:])] = encoding.loop_record(text or b"{}")
        # An item's map is not read: its counts are changed by differences.
        owners = {owner: NodeRecord() for name in nodes if (owner := map_of(name))}
        return PartialView(nodes | owners, loops)


class Unplanned(Exception):
    """A plan needs more than the script `apply` can do."""


@dataclass(slots=True)
class PlanWrites:
    """The writes of a plan, as arguments of `apply`.

    `fields` and `results` are names with values; the number of the first event is put before each result.
    """

    fields: list[Argument] = field(default_factory=list)
    results: list[Argument] = field(default_factory=list)
    dropped: list[Argument] = field(default_factory=list)
    timers: list[Argument] = field(default_factory=list)
    events: list[Argument] = field(default_factory=list)
    doorbells: list[Dispatch] = field(default_factory=list)


def guard_fields(plan: TransitionPlan) -> list[str]:
    """Name the fields that must be unchanged."""
    return [f"n:{name}" if isinstance(name, str) else f"l:{name}" for name in plan.guards]


def writes(
    plan: TransitionPlan, claim_read: ClaimRead, data: Mapping[str, bytes]
) -> PlanWrites:
    """Write the records, timers, events and doorbells of a plan; `data` has the events' data, by kind.

    Raises:
        Unplanned: it has other actions.
    """
    topology = claim_read.graph.topology
    run_id = claim_read.run_id
    plan_writes = PlanWrites()
    for node, record in plan.nodes.items():
        plan_writes.fields += (
            f"n:{node}",
            node_text(node, record, topology.nodes[shape_name(node)].scope),
        )
    for loop, loop_record in plan.loops.items():
        plan_writes.fields += (f"l:{loop}", loop_text(loop_record))
    for action in plan.actions:
        match action:
            case DropTimer():
                plan_writes.dropped.append(f"{action.kind}|{run_id}|{action.key}")
            case SetTimer():
                plan_writes.timers += (action.due, f"{action.kind}|{run_id}|{action.key}")
            case AddEvent():
                detail = data.get(action.kind, b"")
                plan_writes.events += (
                    EVENT_LETTERS.get(action.kind, action.kind),
                    action.visit,
                    action.node,
                    action.detail,
                    detail,
                )
            case Dispatch():
                plan_writes.doorbells.append(action)
            case _:
                raise Unplanned(action)
    return plan_writes


@immutable
class SettleTemplate:
    """The arguments of a plan that depend on the graph and a node's outcome, not on its run.

    `queues` has the numbers by which the arguments name queues; `goes_on` says that it may make a node ready.
    """

    head: Sequence[Argument]
    counted: Sequence[Argument]
    arrivals: Sequence[Argument]
    queues: Mapping[Queue, int]
    goes_on: bool


def make_template(
    plan: TransitionPlan, claim_read: ClaimRead, plan_writes: PlanWrites, node: str = ""
) -> SettleTemplate:
    """Write the arguments that plans of one form share; `node` is the settling node.

    Raises:
        Unplanned: there are too many fields, or a number is too large.
    """
    graph = claim_read.graph
    count_fields = list[Argument]()
    arrivals = list[Argument]()
    queues: dict[Queue, int] = {}
    for target, scope in dict.fromkeys(
        (arrival.node, arrival.scope) for arrival in plan.arrivals
    ):
        same = [
            arrival
            for arrival in plan.arrivals
            if (arrival.node, arrival.scope) == (target, scope)
        ]
        count_fields += (f"a{scope}:{target}", f"n:{target}")
        follows = (
            node
            and may_follow(graph.topology, node, target)
            and len(graph.fields(target)) < MOST_FIELDS
        )
        arrivals += _arrival(graph.target(target), same, queues, _FOLLOWS if follows else 0)
    if plan.item_of:
        count_fields += (f"m:{plan.item_of}", f"n:{plan.item_of}")
        arrivals += _item(graph.unshared, plan, queues)
    for bell in plan_writes.doorbells:
        queues.setdefault((bell.queue, bell.priority), len(queues))
    if len(plan.guards) + len(count_fields) > MOST_FIELDS:
        raise Unplanned(len(count_fields))
    lists = (
        len(plan_writes.fields) // 2,
        len(plan_writes.results) // 2,
        len(plan_writes.dropped),
        len(plan_writes.timers) // 2,
    )
    numbers = _packed(
        _HEAD,
        *(128 + plan.active, 128 + plan.waiting, 128 + plan.started, claim_read.is_child),
        *(len(plan.guards), len(count_fields) // 2, len(queues)),
        *(*lists, len(plan_writes.events) // 5, len(plan_writes.doorbells)),
    )
    head = (numbers, graph.topology.limit or "")
    goes_on = bool(plan_writes.doorbells or plan.item_of) or any(
        arrival.live for arrival in plan.arrivals
    )
    return SettleTemplate(
        head,
        count_fields,
        [*arrivals, *(text for queue in queues for text in queue)],
        queues,
        goes_on,
    )


def _arrival(
    target: Target | None, arrivals: Sequence[Arrival], queues: dict[Queue, int], follows: int
) -> list[Argument]:
    """Write the arrivals at a node over the edges of one scope."""
    if target is None:
        raise Unplanned(arrivals[0].node)
    first_arrival = arrivals[0]
    number = len(arrivals)
    live = sum(arrival.live for arrival in arrivals)
    record = replace(target.record, stamp=first_arrival.own)
    queue = queues.setdefault(target.queue, len(queues))
    return [
        _packed(
            _ARRIVAL,
            first_arrival.stamp,
            first_arrival.own,
            number,
            live,
            target.needs,
            target.kind + follows,
            queue,
        ),
        first_arrival.node,
        node_text(first_arrival.node, record, target.scope),
        f"[{first_arrival.stamp},{number},{live}]",
    ]


def _item(topology: Topology, plan: TransitionPlan, queues: dict[Queue, int]) -> list[Argument]:
    """Write the end of an item, and the start of the item that replaces it."""
    (item_record,) = plan.nodes.values()
    item = item_id(plan.item_of, 0)
    record, bell = plans.beginning_item(topology, item, item_record.visit, item_record.stamp)
    shape = topology.nodes[plan.item_of].map
    queue = queues.setdefault((bell.queue, bell.priority), len(queues))
    window = shape.window if shape else 0
    return [
        _packed(_ARRIVAL, 0, item_record.visit, 0, 0, window, _ITEM, queue),
        plan.item_of,
        node_text(item, record, topology.nodes[shape_name(item)].scope),
        "",
    ]


def _packed(form: struct.Struct, *numbers: int) -> bytes:
    try:
        return form.pack(*numbers)
    except struct.error as error:
        raise Unplanned(numbers) from error


def arguments(
    claim_read: ClaimRead,
    guards: Sequence[str],
    plan_writes: PlanWrites,
    template: SettleTemplate,
    *,
    task_id: Argument = "",
    grows: Argument = 0,
    claims: Argument = "",
    share: Share | None = None,
) -> list[Argument]:
    """Write a plan as the arguments of `apply` from the sixth on.

    `guards` are fields that must still have the text that was read; `task_id` is the Celery task that ends
    here, `grows` the bytes by which the run grows, `claims` says how to claim the next node, and `share` is
    the share of its doorbells.
    """
    graph_id = claim_read.graph.topology.graph_id
    arguments: list[Argument] = [
        claim_read.run_id,
        graph_with(share, graph_id) if share else graph_id,
        task_id,
        grows,
    ]
    arguments += (
        *template.head,
        claims,
        *guards,
        *template.counted,
        *map(claim_read.texts.__getitem__, guards),
    )
    arguments += (
        *template.arrivals,
        *plan_writes.fields,
        *plan_writes.results,
        *plan_writes.dropped,
        *plan_writes.timers,
        *plan_writes.events,
    )
    for bell in plan_writes.doorbells:
        arguments += (
            template.queues[bell.queue, bell.priority],
            bell.node,
            bell.visit,
            bell.attempt,
        )
    return arguments
