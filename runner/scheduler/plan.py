"""A transition as a value that a store applies whole: what it relies on, what it writes, what it adds.

A plan is made from a view of few records, which may be old: whatever the decision depends on is a guard,
and where a guard does not hold the store writes nothing and says what there is now. Two kinds of changes
commute and need no guard: sums (counters of the run, bytes), and arrivals, which the store counts and of
which only the last one, or the first one of a join `any`, makes the node ready. What follows rarely is a
step of its own, a follow-up: until it is done it counts as one active unit of the run and has a timer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.definition.model import ROOT, EdgeKind, Join, Topology, map_of, shape_name
from runner.records.events import EventKind
from runner.records.run import LoopRecord, NodeRecord, Status
from runner.scheduler.changes import AddEvent, Dispatch, DropTimer, SetTimer, TimerKind
from runner.scheduler.steps import owns, refusal


@dataclass(slots=True)
class Arrival:
    """Arrivals at one node over the edges of one scope: how many, and how many of them are live.

    `stamp` is the scope's round, `own` that of the node's innermost loop.
    """

    node: str
    scope: int
    stamp: int
    own: int
    number: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True)
class PlanView:
    """The records that a plan is made from, as they were when somebody looked; absent ones have defaults."""

    topology: Topology
    nodes: Mapping[str, NodeRecord]
    loops: Mapping[int, LoopRecord] = field(default_factory=dict)
    stopping: str = ""

    def node(self, node: str) -> NodeRecord:
        """Return a node's record in the present round; see `Changes.node`."""
        record = self.nodes.get(node) or NodeRecord()
        stamp = self.round(self.topology.nodes[shape_name(node)].scope)
        if record.stamp == stamp:
            return record
        return NodeRecord(visit=record.visit, fence=record.fence, stamp=stamp, nonce=record.nonce)

    def loop(self, loop: int) -> LoopRecord:
        """Return a loop's record, or the defaults."""
        return self.loops.get(loop) or LoopRecord()

    def round(self, scope: int) -> int:
        """Return the number of a scope's present round; 0 outside of loops."""
        return 0 if scope == ROOT else self.loop(scope).round


@dataclass(slots=True)
class Plan:
    """What one transition does to one run; times are in ms from the moment at which it is applied.

    `guards` are the nodes, `loop_guards` the loops whose records must be those of the view; `reads` are
    results that conditions read (node, visit, status); `stopping` must be the run's; `absent` are questions
    that were never asked; a plan with `before` (ms) is too late from then on. `counts` are nodes settled in
    a round of a loop: (loop, round, number), whose last one is followed by the loop's turn. `item_of` is the
    map of which an item has ended: the store counts it, and begins the next item. `follow_up` is the step
    that this plan is.
    """

    word: str
    stopping: str = ""
    before: int = 0
    follow_up: str = ""
    guards: list[str] = field(default_factory=list)
    loop_guards: list[int] = field(default_factory=list)
    reads: Sequence[tuple[str, int, str]] = ()
    absent: Sequence[str] = ()
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    loops: dict[int, LoopRecord] = field(default_factory=dict)
    arrivals: dict[tuple[int, str], Arrival] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    item_of: str = ""
    active: int = 0
    waiting: int = 0
    held: int = 0
    failed: int = 0
    started: int = 0
    timers: list[SetTimer | DropTimer] = field(default_factory=list)
    events: list[AddEvent] = field(default_factory=list)
    bells: list[Dispatch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A transition that changes nothing: the word for whoever asked."""

    word: str


# Settling.


def settle(
    view: PlanView,
    node: str,
    visit: int,
    fence: int,
    *,
    nonce: str,
    edges: str,
    reads: Sequence[tuple[str, int, str]] = (),
) -> Plan | Refusal:
    """Complete a visit: record it, send its arrivals. `edges` has a bit for each outgoing edge."""
    record = view.node(node)
    if record.nonce == nonce and record.status is not Status.RUNNING:
        return Refusal("settled")
    if not owns(record, visit, fence):
        return Refusal("stale")
    plan = Plan("settled", guards=[node], reads=reads, active=-1)
    plan.nodes[node] = replace(
        record,
        status=Status.COMPLETED,
        nonce=nonce,
        edges=edges,
        crashes=0,
        unseen=0,
        busy=False,
        held=False,
    )
    plan.timers.append(DropTimer(TimerKind.NODE, node))
    plan.events.append(AddEvent(EventKind.NODE_COMPLETED, node, visit))
    plan.item_of = map_of(node)
    if not plan.item_of:
        _spread(plan, view, node, visit, edges)
    return plan


def dead(view: PlanView, node: str) -> Plan | Refusal:
    """Skip a node to which every path is dead, and send its own dead arrivals."""
    if view.node(node).status is not Status.PENDING:
        return Refusal("stale")
    plan = Plan("followed", follow_up=f"dead {node}", active=-1, guards=[node])
    _skip(plan, view, node)
    return plan


def _skip(plan: Plan, view: PlanView, node: str) -> None:
    record = view.node(node)
    plan.nodes[node] = replace(record, status=Status.SKIPPED)
    plan.events.append(AddEvent(EventKind.NODE_SKIPPED, node, record.visit))
    _spread(plan, view, node, record.visit, "")


def _spread(plan: Plan, view: PlanView, node: str, visit: int, edges: str) -> None:
    """Send a settled node's arrivals, and count it in its innermost loop."""
    dying: list[str] = []
    for position, edge in enumerate(view.topology.outgoing[node]):
        live = edges[position : position + 1] == "1"
        if edge.kind is EdgeKind.FORWARD:
            _arrive(plan, view, edge.target, edge.scope, live=live)
            dying += [] if live else [edge.target]
        elif live and edge.kind is EdgeKind.BACK:
            loop = _loop(plan, view, edge.loop)
            plan.loops[edge.loop] = replace(loop, asked=(*loop.asked, (node, visit)))
        elif live and edge.kind is EdgeKind.EXIT:
            _leave(plan, view, node, position, visit)
    loops = view.topology.nodes[node].loops
    if loops:
        plan.counts[loops[0]] = plan.counts.get(loops[0], 0) + 1
    for target in dict.fromkeys(dying):
        _die(plan, view, target)


def _arrive(plan: Plan, view: PlanView, node: str, scope: int, *, live: bool) -> None:
    arrival = plan.arrivals.get((scope, node))
    if arrival is None:
        own = view.topology.nodes[node].scope
        if own not in (ROOT, scope):
            _loop(plan, view, own)  # an edge into a loop: its round may change meanwhile
        for other in scopes(view.topology, node):
            if other not in (ROOT, scope):
                _loop(plan, view, other)
        arrival = plan.arrivals[scope, node] = Arrival(node, scope, view.round(scope), view.round(own))
    arrival.number += 1
    arrival.live += live


def _die(plan: Plan, view: PlanView, node: str) -> None:
    """Skip a node in the same plan where all edges that it needs are dead ones of this plan.

    Only outside of loops: in one, its record may be of an older round, which the view does not have.
    """
    shape = view.topology.nodes[node]
    arrival = plan.arrivals.get((ROOT, node))
    alone = arrival is not None and not arrival.live and arrival.number == shape.needs
    if not alone or shape.loops or node in plan.nodes or node in view.nodes:
        return
    plan.guards.append(node)
    _skip(plan, view, node)


def _leave(plan: Plan, view: PlanView, node: str, position: int, visit: int) -> None:
    """Follow an edge out of a loop; it arrives only the first time that it is taken."""
    edge = view.topology.outgoing[node][position]
    loop = _loop(plan, view, edge.loop)
    if any((source, place) == (node, position) for source, place, _ in loop.taken):
        return
    plan.loops[edge.loop] = replace(loop, taken=(*loop.taken, (node, position, visit)))
    _arrive(plan, view, edge.target, edge.scope, live=True)


def _loop(plan: Plan, view: PlanView, loop: int) -> LoopRecord:
    """Return a loop's record, on which the plan then relies."""
    if loop not in plan.loop_guards:
        plan.loop_guards.append(loop)
    return plan.loops.get(loop) or view.loop(loop)


def nothing(view: PlanView, what: str) -> Plan:
    """Take a follow-up of a run that has stopped meanwhile: nothing follows any more."""
    return Plan("followed", stopping=view.stopping, follow_up=what, active=-1)


def plannable(topology: Topology, node: str) -> bool:
    """Whether the spike plans what a node does; all else goes the general way."""
    shape = topology.nodes.get(shape_name(node))
    if shape is None or shape.limits or topology.limit or node.startswith("@"):
        return False
    return True


def scopes(topology: Topology, node: str) -> tuple[int, ...]:
    """Name the scopes over whose edges something arrives at a node; each is counted apart."""
    found = {
        topology.outgoing[edge.source][edge.position].scope: None
        for edge in topology.incoming[node]
        if edge.kind is not EdgeKind.BACK
    }
    if node in topology.entries:
        found[ROOT] = None
    return tuple(found)


# Turning a loop.


def turn(view: PlanView, loop_id: int) -> Plan | Refusal:
    """Start the next round of a loop all of whose nodes have settled, or end it. `view` has it, the loops
    inside and around it, and its header.
    """
    shape, loop = view.topology.loops[loop_id], view.loop(loop_id)
    plan = Plan("followed", follow_up=f"turn {loop_id} {loop.round}", active=-1)
    plan.loop_guards += [loop_id, *shape.inner, *shape.outer]
    if loop.asked and not any(view.loop(outer).asked for outer in shape.outer):
        plan.loops[loop_id] = LoopRecord(loop.round + 1, taken=loop.taken)
        for inner in shape.inner:
            plan.loops[inner] = LoopRecord(view.loop(inner).round + 1)
        again = replace(view, loops={**view.loops, **plan.loops})
        record = again.node(shape.header)
        plan.guards.append(shape.header)
        ready(
            plan,
            view.topology,
            shape.header,
            replace(record, visit=record.visit + 1, attempt=1, via=loop.asked),
        )
        plan.started += 1
        return plan
    plan.loops[loop_id] = replace(loop, asked=())
    taken = {(source, position) for source, position, _ in loop.taken}
    for source, position in shape.exits:
        if (source, position) not in taken:
            edge = view.topology.outgoing[source][position]
            _arrive(plan, view, edge.target, edge.scope, live=False)
    around = parent_loop(view.topology, loop_id)
    if around is not None:
        plan.counts[around] = shape.size
    return plan


def parent_loop(topology: Topology, loop_id: int) -> int | None:
    """Return the innermost loop around a loop, which counts its nodes when it has ended."""
    loops = topology.nodes[topology.loops[loop_id].header].loops
    place = loops.index(loop_id) + 1
    return loops[place] if place < len(loops) else None


def ready(plan: Plan, topology: Topology, node: str, record: NodeRecord) -> None:
    """Make a node ready and ring for it."""
    shape = topology.nodes[node]
    plan.nodes[node] = replace(
        record,
        status=Status.READY,
        edges="",
        rings=0,
        busy=False,
        held=False,
        items=False,
        uncounted=record.uncounted if record.attempt > 1 else 0,
    )
    plan.active += 1
    plan.bells.append(Dispatch(node, record.visit, record.attempt, shape.queue, shape.priority))
    plan.timers.append(SetTimer(TimerKind.NODE, node, -1))  # one lease from now


# Questions.

PARKED = {Status.WAITING: "waiting", Status.READY: "ready", Status.CANCELLED: "cancelled"}


def ask(view: PlanView, node: str, visit: int, fence: int, interrupts: Sequence[str]) -> Plan | Refusal:
    """Publish questions of a running node that were never asked before."""
    record = view.node(node)
    if not owns(record, visit, fence):
        return Refusal("stale")
    plan = Plan("asked", guards=[node])
    _publish(plan, record, node, interrupts)
    return plan


def _publish(plan: Plan, record: NodeRecord, node: str, interrupts: Sequence[str]) -> NodeRecord:
    new = [interrupt for interrupt in interrupts if interrupt not in record.questions]
    plan.absent = new
    plan.events += [AddEvent(EventKind.INTERRUPT_ASKED, node, record.visit, interrupt) for interrupt in new]
    record = plan.nodes[node] = replace(record, questions=(*record.questions, *new))
    return record


def park(
    view: PlanView, node: str, visit: int, fence: int, interrupts: Sequence[str]
) -> Plan | Refusal | None:
    """Make a running node wait for people; None where that needs a question's history: see `scheduler.park`."""
    record = view.node(node)
    if not owns(record, visit, fence):
        return Refusal(refusal(record, visit, fence, PARKED))
    if any(question not in interrupts for question in record.questions):
        return None  # one is withdrawn
    plan = Plan("waiting", guards=[node], active=-1)
    plan.timers.append(DropTimer(TimerKind.NODE, node))
    record = _publish(plan, record, node, interrupts)
    parked = replace(record, status=Status.WAITING, crashes=0)
    if not parked.questions and not parked.unseen:
        return Refusal("nothing_open")
    if satisfied(view.topology, node, parked):
        plan.word = "ready"
        plan.timers.clear()
        ready(plan, view.topology, node, parked)
        return plan
    plan.nodes[node] = parked
    plan.waiting = 1
    plan.events.append(AddEvent(EventKind.NODE_WAITING, node, visit))
    return plan


def satisfied(topology: Topology, node: str, record: NodeRecord) -> bool:
    """Whether answers that a node has not seen let it go on."""
    return record.unseen > 0 and (topology.nodes[node].each or not record.questions)


def answer(
    view: PlanView, node: str, visit: int, interrupts: Sequence[str], before: int = 0
) -> Plan | Refusal:
    """Apply answers to open questions of one node; "moved" where one is not open."""
    record = view.node(node)
    if any(interrupt not in record.questions for interrupt in interrupts):
        return Refusal("moved")
    plan = Plan("answered", stopping=view.stopping, guards=[node], before=before)
    plan.events += [
        AddEvent(EventKind.INTERRUPT_ANSWERED, node, visit, interrupt) for interrupt in interrupts
    ]
    left = tuple(question for question in record.questions if question not in interrupts)
    resolved = replace(record, questions=left, unseen=record.unseen + len(interrupts))
    plan.timers += [
        DropTimer(kind, interrupt)
        for interrupt in interrupts
        for kind in (TimerKind.EXPIRE, TimerKind.REMIND)
    ]
    waits = record.status is Status.WAITING and not record.held and not record.items
    if waits and satisfied(view.topology, node, resolved):
        plan.events.append(AddEvent(EventKind.NODE_RESUMED, node, visit))
        plan.waiting = 0 if record.busy else -1
        plan.active = -1 if record.busy else 0
        ready(plan, view.topology, node, resolved)
    else:
        plan.nodes[node] = resolved
    return plan


def any_of(topology: Topology, node: str) -> bool:
    """Whether the first live arrival makes a node ready."""
    return topology.nodes[node].join is Join.ANY


# Claiming.


def live_inputs(view: PlanView, node: str, own: NodeRecord) -> list[tuple[str, int]]:
    """List the (node, visit) whose outputs reach this visit, in edge order, each once."""
    sources: dict[tuple[str, int], None] = {}
    for edge in view.topology.incoming[shape_name(node)]:
        if edge.kind is EdgeKind.BACK:
            arrived = [pair for pair in own.via if pair[0] == edge.source]
        elif edge.kind is EdgeKind.EXIT:
            arrived = [
                (name, visit)
                for name, place, visit in view.loop(edge.loop).taken
                if (name, place) == (edge.source, edge.position)
            ]
        else:
            source = view.node(edge.source)
            arrived = (
                [(edge.source, source.visit)]
                if source.edges[edge.position : edge.position + 1] == "1"
                else []
            )
        for pair in arrived:
            sources[pair] = None
    return list(sources)
