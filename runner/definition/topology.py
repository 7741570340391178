"""Computes the topology of a graph for scheduling: each node's edges, loops and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.definition import cycles, model
from runner.definition.fingerprint import fingerprint, signatures
from runner.definition.model import (
    BEFORE_GRAPH,
    BRACKETS,
    DEFAULT_PRIORITY,
    ROOT,
    UNDO,
    Definition,
    EdgeKind,
    EdgeSpec,
    InEdge,
    LoopTopology,
    NodeSpec,
    NodeTopology,
    OutEdge,
    Topology,
)
from runner.limits.limit import shapes


def topology(definition: Definition) -> Topology:
    """Compute the topology of a validated definition.

    Raises:
        DefinitionError: two loops overlap and neither contains the other, or an edge repeats
            nothing.
    """
    names = list(definition.nodes)
    back = cycles.back_edges(names, definition.entries, definition.edges)
    loops = cycles.loops(names, definition.edges, back)
    around = {node: _around(node, loops) for node in names}
    headers = {header: number for number, (header, _) in enumerate(loops)}
    outgoing: dict[str, list[OutEdge]] = {node: [] for node in names}
    # No edge leads to an undo: the record of each visit names the undone visit in `via`.
    incoming = {
        node: [InEdge(node.removeprefix(UNDO), 0, EdgeKind.BACK)] * node.startswith(UNDO)
        for node in names
    }
    exits: list[list[tuple[str, int]]] = [[] for _ in loops]
    for index, edge in enumerate(definition.edges):
        out = _classify(edge, around, headers[edge.target] if index in back else None)
        position = len(outgoing[edge.source])
        if out.kind is EdgeKind.EXIT:
            exits[out.loop].append((edge.source, position))
        outgoing[edge.source].append(out)
        incoming[edge.target].append(InEdge(edge.source, position, out.kind, out.loop))
    node_signatures = signatures(definition)
    nodes: dict[str, NodeTopology] = {}
    items: dict[str, NodeTopology] = {}
    for node, spec in definition.nodes.items():
        nodes[node] = _node(
            definition, spec, incoming[node], around[node], node_signatures[node]
        )
        if spec.map:
            # A map's limits apply to its items.
            items[node + BRACKETS] = replace(nodes[node], map=None)
            nodes[node] = replace(nodes[node], limits=())
    no_edges = dict.fromkeys(items, ())
    limit = definition.max_node_executions
    return Topology(
        graph_id=definition.id,
        fingerprint=fingerprint(definition),
        entries=definition.entries,
        policy=definition.policy,
        # The hidden node ahead of the entry points does not count as an execution.
        limit=limit + (BEFORE_GRAPH in definition.nodes) if limit else 0,
        timeout_ms=round((definition.execution_timeout or 0) * 1000),
        nodes=nodes | items,
        outgoing={node: tuple(edges) for node, edges in outgoing.items()} | no_edges,
        incoming={node: tuple(edges) for node, edges in incoming.items()} | no_edges,
        loops=tuple(_loop(number, loops, exits[number]) for number in range(len(loops))),
        admission=definition.admission,
        fairness=definition.fairness,
    )


def _around(node: str, loops: list[tuple[str, set[str]]]) -> tuple[int, ...]:
    """Return the numbers of the loops around a node, innermost first."""
    inside = [k for k, (_, body) in enumerate(loops) if node in body]
    return tuple(sorted(inside, key=lambda k: len(loops[k][1])))


def _classify(
    edge: EdgeSpec, around: Mapping[str, tuple[int, ...]], header: int | None
) -> OutEdge:
    if header is not None:
        return OutEdge(edge.target, EdgeKind.BACK, loop=header, on_expire=edge.on_expire)
    common_loops = [k for k in around[edge.source] if k in around[edge.target]]
    inner_loops = [k for k in around[edge.source] if k not in around[edge.target]]
    scope = common_loops[0] if common_loops else ROOT
    kind, loop = (EdgeKind.EXIT, inner_loops[-1]) if inner_loops else (EdgeKind.FORWARD, ROOT)
    return OutEdge(edge.target, kind, scope, loop, edge.on_expire)


def _node(
    definition: Definition,
    spec: NodeSpec,
    incoming: list[InEdge],
    around: tuple[int, ...],
    signature: str,
) -> NodeTopology:
    return NodeTopology(
        needs=sum(edge.kind is not EdgeKind.BACK for edge in incoming)
        + (spec.id in definition.entries),
        join=spec.join,
        loops=around,
        queue=spec.queue or definition.queue or definition.id,
        priority=DEFAULT_PRIORITY if spec.priority is None else spec.priority,
        each=spec.resume == "each",
        signature=signature,
        map=model.shape_of(spec.map),
        limits=shapes(spec.limits, definition.id, spec.id),
        kind=spec.kind,
        version=spec.version,
    )


def _loop(
    k: int, loops: list[tuple[str, set[str]]], exits: list[tuple[str, int]]
) -> LoopTopology:
    header, body = loops[k]
    inner: list[int] = []
    outer: list[int] = []
    for j, (_, second_body) in sorted(enumerate(loops), key=lambda loop: len(loop[1][1])):
        if j == k:
            continue
        if second_body < body or (second_body == body and j > k):
            inner.append(j)
        elif body <= second_body:
            outer.append(j)
    return LoopTopology(header, len(body), tuple(inner), tuple(outer), tuple(exits))
