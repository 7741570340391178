"""What makes nodes ready: arrivals along edges, the rounds of loops, batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.actions import Announce
from runner.draft import Draft
from runner.events import EventKind
from runner.graph import BATCH, ROOT, EdgeKind, Join
from runner.run import Arrivals, LoopRecord, Status
from runner.transitions.steps import fresh, ring, stop


def spread(draft: Draft, first: str) -> None:
    """Carry a settled node's arrivals as far as they settle other nodes."""
    todo = [first]
    while todo:
        node = todo.pop(0)
        record = draft.node(node)
        for position, edge in enumerate(draft.topology.outgoing[node]):
            live = record.edges[position : position + 1] == "1"
            if edge.kind is EdgeKind.FORWARD:
                arrive(draft, edge.target, edge.scope, live=live, settled=todo)
            elif live and edge.kind is EdgeKind.BACK:
                loop = draft.loop(edge.loop)
                draft.loops[edge.loop] = replace(loop, asked=(*loop.asked, (node, record.visit)))
            elif live and edge.kind is EdgeKind.EXIT:
                _leave(draft, node, position, todo)
        for loop_id in draft.topology.nodes[node].loops:
            loop = draft.loop(loop_id)
            draft.loops[loop_id] = replace(loop, settled=loop.settled + 1)
            if loop.settled + 1 == draft.topology.loops[loop_id].size:
                _turn(draft, loop_id, todo)


def arrive(draft: Draft, node: str, scope: int, *, live: bool, settled: list[str]) -> None:
    """Count one arrival; it may make the node ready, or skip it and so settle it."""
    stamp = draft.round(scope)
    old = draft.arrived.get((scope, node)) or draft.view.arrivals(scope, node)
    if old.stamp != stamp:
        old = Arrivals(stamp)
    draft.arrived[scope, node] = Arrivals(stamp, old.arrived + 1, old.live + live)
    record = draft.node(node)
    if record.status is not Status.PENDING:
        return
    shape = draft.topology.nodes[node]
    arrived, alive = _total(draft, node)
    if arrived >= shape.needs and not alive:
        draft.put(node, replace(record, status=Status.SKIPPED))
        draft.add(Announce(EventKind.NODE_SKIPPED, node, record.visit))
        settled.append(node)
    elif (live and shape.join is Join.ANY) or (arrived >= shape.needs and alive):
        _ready(draft, node, visit=record.visit + 1, attempt=1)


def _total(draft: Draft, node: str) -> tuple[int, int]:
    """Sum a node's arrivals over its scopes, leaving out what belongs to an older round."""
    arrived = alive = 0
    for scope in (*draft.topology.nodes[node].loops, ROOT):
        found = draft.arrived.get((scope, node)) or draft.view.arrivals(scope, node)
        if found.stamp == draft.round(scope):
            arrived, alive = arrived + found.arrived, alive + found.live
    return arrived, alive


def _leave(draft: Draft, node: str, position: int, settled: list[str]) -> None:
    """Take an edge out of a loop: it arrives the first time only."""
    edge = draft.topology.outgoing[node][position]
    loop = draft.loop(edge.loop)
    if any((source, place) == (node, position) for source, place, _ in loop.taken):
        return
    taken = (*loop.taken, (node, position, draft.node(node).visit))
    draft.loops[edge.loop] = replace(loop, taken=taken)
    arrive(draft, edge.target, edge.scope, live=True, settled=settled)


def _turn(draft: Draft, loop_id: int, settled: list[str]) -> None:
    """Every node of a loop has settled: begin its next round, or end it."""
    shape, loop = draft.topology.loops[loop_id], draft.loop(loop_id)
    if loop.asked and not any(draft.loop(outer).asked for outer in shape.outer):
        _again(draft, loop_id)
        return
    draft.loops[loop_id] = replace(loop, asked=())
    taken = {(source, position) for source, position, _ in loop.taken}
    for source, position in shape.exits:
        if (source, position) not in taken:
            edge = draft.topology.outgoing[source][position]
            arrive(draft, edge.target, edge.scope, live=False, settled=settled)


def _again(draft: Draft, loop_id: int) -> None:
    """Begin a loop's next round; the loops inside it begin anew, those around it wait for it."""
    shape, loop = draft.topology.loops[loop_id], draft.loop(loop_id)
    draft.loops[loop_id] = LoopRecord(loop.round + 1, taken=loop.taken)
    for inner in shape.inner:
        draft.loops[inner] = LoopRecord(draft.loop(inner).round + 1)
    for outer in shape.outer:
        around = draft.loop(outer)
        draft.loops[outer] = replace(around, settled=around.settled - shape.size)
    record = draft.node(shape.header)
    _ready(draft, shape.header, visit=record.visit + 1, attempt=1, via=loop.asked)


def _ready(
    draft: Draft, node: str, *, visit: int, attempt: int, via: tuple[tuple[str, int], ...] = ()
) -> None:
    """Make a node ready for a new visit, unless the run stops or has used up its executions."""
    if draft.run.stopping:
        return
    limit = draft.topology.limit
    if limit and draft.run.started >= limit:
        stop(draft, Status.FAILED, f'max_node_executions ({limit}) reached before "{node}"')
        return
    draft.run = replace(draft.run, started=draft.run.started + 1)
    record = draft.node(node)
    ring(draft, node, replace(record, status=Status.READY, visit=visit, attempt=attempt, via=via, edges=""))


def open_batch(draft: Draft, following: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> None:
    """Make the nodes of a batch ready, each with its inputs; BATCH remembers them until all have settled."""
    begun = []
    for node, inputs in following:
        record = draft.node(node)
        again = replace(fresh(record), visit=record.visit + 1, attempt=1, via=tuple(inputs), edges="")
        ring(draft, node, again)
        begun.append((node, again.visit))
    draft.run = replace(draft.run, started=draft.run.started + len(begun))
    draft.put(BATCH, replace(draft.node(BATCH), via=tuple(begun)))


def end_batch(draft: Draft) -> bool:
    """When every node of a batch has settled, wake the one that opens the next; False at the run's end."""
    if not draft.topology.batches or draft.run.stopping:
        return False
    record = draft.node(BATCH)
    ended = bool(record.via) and record.status in {Status.PENDING, Status.COMPLETED}
    if ended:
        ring(draft, BATCH, replace(record, visit=record.visit + 1, attempt=1))
    return ended
