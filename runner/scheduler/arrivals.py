"""Readiness of nodes: arrivals along edges, and the rounds of loops.

`store/lua/apply.lua` counts the arrivals of planned transitions as `arrive` does:
test_redis_does_what_the_model_says compares them.
"""

from __future__ import annotations

from dataclasses import replace

from runner.definition.model import ROOT, EdgeKind, Join
from runner.records.run import Arrivals, EventKind, LoopRecord, Status
from runner.scheduler.changes import AddEvent, Arrival, Changes, dispatch, stop


def spread(changes: Changes, origin: str) -> None:
    """Send a settled node's arrivals; a node that these skip has settled too, and sends its own."""
    todo = [origin]
    while todo:
        node = todo.pop(0)
        record = changes.node(node)
        for position, edge in enumerate(changes.topology.outgoing[node]):
            live = record.edges[position : position + 1] == "1"
            if edge.kind is EdgeKind.FORWARD:
                arrive(changes, edge.target, edge.scope, live=live, todo=todo)
            elif live and edge.kind is EdgeKind.BACK:
                loop = changes.loop(edge.loop)
                changes.loops[edge.loop] = replace(
                    loop, asked=(*loop.asked, (node, record.visit))
                )
            elif live and edge.kind is EdgeKind.EXIT:
                _take_exit(changes, node, position, todo)
        for loop_id in changes.topology.nodes[node].loops:
            loop = changes.loop(loop_id)
            changes.loops[loop_id] = replace(loop, settled=loop.settled + 1)
            if loop.settled + 1 == changes.topology.loops[loop_id].size:
                _close_round(changes, loop_id, todo)


def arrive(changes: Changes, node: str, scope: int, *, live: bool, todo: list[str]) -> None:
    """Count one arrival, which may make the node ready or skip it; a skipped node is added to `todo`."""
    stamp = changes.round(scope)
    if changes.uncounted is not None:
        node_round = changes.round(changes.topology.nodes[node].scope)
        changes.uncounted.append(Arrival(node, scope, stamp, node_round, live))
        return
    record = changes.node(node)
    shape = changes.topology.nodes[node]
    # A node that needs a single arrival has no stored count: no other arrival would be added to it.
    arrivals = 1
    alive = int(live)
    if shape.needs != 1:
        earlier = changes.arrived.get((scope, node)) or changes.view.arrivals(scope, node)
        if earlier.stamp != stamp:
            earlier = Arrivals(stamp)
        changes.arrived[scope, node] = Arrivals(stamp, earlier.arrived + 1, earlier.live + live)
        arrivals, alive = _total(changes, node)
    if record.status is not Status.PENDING:
        return
    if arrivals >= shape.needs and not alive:
        changes.put(node, replace(record, status=Status.SKIPPED, hold=""))
        changes.add(AddEvent(EventKind.NODE_SKIPPED, node, record.visit))
        todo.append(node)
    elif (live and shape.join is Join.ANY) or (arrivals >= shape.needs and alive):
        begin_visit(changes, node, visit=record.next_visit)


def _total(changes: Changes, node: str) -> tuple[int, int]:
    """Sum a node's arrivals over its scopes, without arrivals of older rounds."""
    arrivals = alive = 0
    for scope in (*changes.topology.nodes[node].loops, ROOT):
        counts = changes.arrived.get((scope, node)) or changes.view.arrivals(scope, node)
        if counts.stamp == changes.round(scope):
            arrivals = arrivals + counts.arrived
            alive = alive + counts.live
    return arrivals, alive


def _take_exit(changes: Changes, node: str, position: int, todo: list[str]) -> None:
    """Follow an edge out of a loop; only the first time it is taken counts as an arrival."""
    edge = changes.topology.outgoing[node][position]
    loop = changes.loop(edge.loop)
    if any(
        (source, exit_position) == (node, position) for source, exit_position, _ in loop.taken
    ):
        return
    exits = (*loop.taken, (node, position, changes.node(node).visit))
    changes.loops[edge.loop] = replace(loop, taken=exits)
    arrive(changes, edge.target, edge.scope, live=True, todo=todo)


def _close_round(changes: Changes, loop_id: int, todo: list[str]) -> None:
    """Start the next round of a loop whose nodes have all settled, or end the loop."""
    shape = changes.topology.loops[loop_id]
    loop = changes.loop(loop_id)
    if loop.asked and not any(changes.loop(outer).asked for outer in shape.outer):
        _start_round(changes, loop_id)
        return
    changes.loops[loop_id] = replace(loop, asked=())
    exits = {(source, position) for source, position, _ in loop.taken}
    for source, position in shape.exits:
        if (source, position) not in exits:
            edge = changes.topology.outgoing[source][position]
            arrive(changes, edge.target, edge.scope, live=False, todo=todo)


def _start_round(changes: Changes, loop_id: int) -> None:
    """Start a loop's next round: loops inside it begin again, loops around it wait for it."""
    shape = changes.topology.loops[loop_id]
    loop = changes.loop(loop_id)
    changes.loops[loop_id] = LoopRecord(loop.round + 1, taken=loop.taken)
    for inner in shape.inner:
        changes.loops[inner] = LoopRecord(changes.loop(inner).round + 1)
    for outer in shape.outer:
        around = changes.loop(outer)
        changes.loops[outer] = replace(around, settled=around.settled - shape.size)
    begin_visit(
        changes, shape.header, visit=changes.node(shape.header).next_visit, via=loop.asked
    )


def begin_visit(
    changes: Changes,
    node: str,
    *,
    visit: int,
    via: tuple[tuple[str, int], ...] = (),
) -> None:
    """Make a node ready for a new visit, or stop the run if its executions are used up.

    In a run that stops this does nothing.
    """
    if changes.run.stopping:
        return
    limit = changes.topology.limit
    if limit and changes.run.started >= limit:
        stop(changes, Status.FAILED, f'max_node_executions ({limit}) reached before "{node}"')
        return
    changes.run = replace(changes.run, started=changes.run.started + 1)
    dispatch(
        changes,
        node,
        replace(changes.node(node), visit=visit, attempt=1, via=via, edges=""),
    )
