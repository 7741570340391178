"""What a graph is, as plain values: nodes, edges, loops, and the fingerprint of it all.

`Definition` is what the builder collected; `Topology` is what scheduling needs of it, worked out
once: joins as counts, loops as numbered groups, each edge with its kind. The topology is stored
beside the runs, so that a transition looks up only the nodes that it touches.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner import cycles, maps
from runner.fingerprints import fingerprint, signatures
from runner.limits import Limit, LimitShape, shapes
from runner.maps import BRACKETS, MapSpec, MapTopology
from runner.retries import RetryPolicy

ROOT = -1
"""The scope of an edge that lies in no loop."""


class Join(enum.StrEnum):
    """When a node with several incoming edges is ready."""

    ALL = "all"
    ANY = "any"


class EdgeKind(enum.StrEnum):
    """What an edge does to loops: nothing, leaves one, or asks for another round of one.

    In a graph that runs in batches it asks for a visit in the next batch.
    """

    FORWARD = "forward"
    EXIT = "exit"
    BACK = "back"
    BATCH = "batch"


class FailurePolicy(enum.StrEnum):
    """What a failed node does to the rest of its run."""

    FAIL_FAST = "fail_fast"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node as it was declared; `timeout` in seconds, `priority` from 0 (first) to 9."""

    id: str
    executor: Any
    kind: str
    join: Join = Join.ALL
    retry: RetryPolicy | None = None
    timeout: float | None = None
    queue: str | None = None
    priority: int | None = None
    resume: str = "all"
    version: str = ""
    map: MapSpec | None = None

    def item(self) -> NodeSpec:
        """Return the declaration of a map's items: its executor as a node of its own kind."""
        return replace(self, kind=self.map.kind, map=None) if self.map else self

    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """One edge as it was declared; `back` overrides the search, `on_expire` is for expired questions."""

    source: str
    target: str
    condition: Callable[..., object] | None = None
    back: bool = False
    on_expire: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole graph as it was declared, already checked. Timeouts in seconds."""

    id: str
    nodes: Mapping[str, NodeSpec]
    edges: tuple[EdgeSpec, ...]
    entries: tuple[str, ...]
    policy: FailurePolicy = FailurePolicy.FAIL_FAST
    max_node_executions: int | None = None
    execution_timeout: float | None = None
    node_timeout: float | None = None
    reset_on_revisit: bool = False
    hooks: tuple[Any, ...] = ()
    version: str = ""
    compat: str = ""

    def edges_by_source(self) -> dict[str, list[EdgeSpec]]:
        """Group the edges by source, in the order of the bits of `NodeRecord.edges`."""
        found: dict[str, list[EdgeSpec]] = {node: [] for node in self.nodes}
        for edge in self.edges:
            found[edge.source].append(edge)
        return found


@dataclass(frozen=True, slots=True)
class OutEdge:
    """An edge seen from its source. `scope` is the innermost loop around both ends, `loop` the one
    that it leaves (exit) or repeats (back).
    """

    target: str
    kind: EdgeKind
    scope: int = ROOT
    loop: int = ROOT
    on_expire: bool = False


@dataclass(frozen=True, slots=True)
class InEdge:
    """The same edge seen from its target; `position` is its place among the source's edges."""

    source: str
    position: int
    kind: EdgeKind
    loop: int = ROOT


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """What is stored of one node; edges are apart, as they may be many. `kind` is "" in old shapes."""

    needs: int
    join: Join
    loops: tuple[int, ...]
    queue: str
    priority: int
    each: bool
    signature: str
    map: MapTopology | None = None
    limits: tuple[LimitShape, ...] = ()
    kind: str = ""
    version: str = ""

    @property
    def scope(self) -> int:
        """The innermost loop around the node, or ROOT."""
        return self.loops[0] if self.loops else ROOT


@dataclass(frozen=True, slots=True)
class LoopTopology:
    """One loop: `inner` and `outer` are the loops inside and around it, innermost first."""

    header: str
    size: int
    inner: tuple[int, ...]
    outer: tuple[int, ...]
    exits: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of a graph, worked out for scheduling; the items of a map `M` have the entry `M[]`."""

    graph_id: str
    fingerprint: str
    entries: tuple[str, ...]
    policy: FailurePolicy
    limit: int
    timeout_ms: int
    nodes: Mapping[str, NodeTopology]
    outgoing: Mapping[str, tuple[OutEdge, ...]]
    incoming: Mapping[str, tuple[InEdge, ...]]
    loops: tuple[LoopTopology, ...] = field(default=())
    batches: bool = False


HIDDEN = "@"
"""Ids that begin with this belong to the graph's own events; users' ids may not."""

BEFORE_GRAPH = "@before"
"""The hidden node ahead of the entry points that fires BeforeGraphEvent."""

AFTER_GRAPH = "@after"
"""The hidden node that fires AfterGraphEvent: it becomes ready when a run would end."""

BATCH = "@batch"
"""The hidden node of a graph that runs in batches: ready when one has ended, to choose the next."""

DEFAULT_QUEUE = "runner"
DEFAULT_PRIORITY = 5


def topology(definition: Definition) -> Topology:
    """Work out the shape of a checked definition.

    Raises:
        DefinitionError: two loops overlap without one holding the other.
    """
    names, entries, batches = list(definition.nodes), definition.entries, bool(definition.compat)
    # In batches a cycle is no loop: its nodes are visited again, and nothing is forgotten.
    back = set() if batches else cycles.back_edges(names, entries, definition.edges)
    loops = [] if batches else cycles.loops(names, definition.edges, back)
    around = {node: _around(node, loops) for node in definition.nodes}
    outgoing: dict[str, list[OutEdge]] = {node: [] for node in definition.nodes}
    incoming: dict[str, list[InEdge]] = {node: [] for node in definition.nodes}
    exits: dict[int, list[tuple[str, int]]] = {k: [] for k in range(len(loops))}
    signed = signatures(definition)
    headers = {header: k for k, (header, _) in enumerate(loops)}
    for index, edge in enumerate(definition.edges):
        out = _classify(edge, around, headers[edge.target] if index in back else None)
        out = OutEdge(edge.target, EdgeKind.BATCH) if batches else out
        position = len(outgoing[edge.source])
        if out.kind is EdgeKind.EXIT:
            exits[out.loop].append((edge.source, position))
        outgoing[edge.source].append(out)
        incoming[edge.target].append(InEdge(edge.source, position, out.kind, out.loop))
    nodes = {
        node: _node(definition, spec, incoming[node], around[node], signed[node])
        for node, spec in definition.nodes.items()
    }
    items = {node + BRACKETS: replace(found, map=None) for node, found in nodes.items() if found.map}
    # A map's limits are those of its items.
    nodes = {node: replace(found, limits=()) if found.map else found for node, found in nodes.items()}
    no_edges = dict.fromkeys(items, ())
    return Topology(
        graph_id=definition.id,
        fingerprint=fingerprint(definition),
        entries=definition.entries,
        policy=definition.policy,
        limit=_limit(definition),
        timeout_ms=_deadline(definition),
        nodes=nodes | items,
        outgoing={node: tuple(found) for node, found in outgoing.items()} | no_edges,
        incoming={node: tuple(found) for node, found in incoming.items()} | no_edges,
        loops=tuple(_loop(k, loops, exits[k]) for k in range(len(loops))),
        batches=batches,
    )


def _around(node: str, loops: list[tuple[str, set[str]]]) -> tuple[int, ...]:
    """Number the loops around a node, innermost first."""
    inside = [k for k, (_, body) in enumerate(loops) if node in body]
    return tuple(sorted(inside, key=lambda k: len(loops[k][1])))


def _limit(definition: Definition) -> int:
    """The hidden node ahead of the entry points does not count as an execution."""
    limit = definition.max_node_executions
    return limit + (BEFORE_GRAPH in definition.nodes) if limit else 0


def _deadline(definition: Definition) -> int:
    """In batches the time is looked at between them: a deadline would count the waits for people."""
    return 0 if definition.compat else round((definition.execution_timeout or 0) * 1000)


def _classify(edge: EdgeSpec, around: Mapping[str, tuple[int, ...]], header: int | None) -> OutEdge:
    if header is not None:
        return OutEdge(edge.target, EdgeKind.BACK, loop=header, on_expire=edge.on_expire)
    shared = [k for k in around[edge.source] if k in around[edge.target]]
    left = [k for k in around[edge.source] if k not in around[edge.target]]
    scope = shared[0] if shared else ROOT
    kind, loop = (EdgeKind.EXIT, left[-1]) if left else (EdgeKind.FORWARD, ROOT)
    return OutEdge(edge.target, kind, scope, loop, edge.on_expire)


def _node(
    definition: Definition, spec: NodeSpec, incoming: list[InEdge], around: tuple[int, ...], signature: str
) -> NodeTopology:
    return NodeTopology(
        needs=sum(edge.kind is not EdgeKind.BACK for edge in incoming) + (spec.id in definition.entries),
        join=spec.join,
        loops=around,
        queue=spec.queue or DEFAULT_QUEUE,
        priority=DEFAULT_PRIORITY if spec.priority is None else spec.priority,
        each=spec.resume == "each",
        signature=signature,
        map=maps.shape_of(spec.map),
        limits=shapes(spec.limits, definition.id, spec.id),
        kind=spec.kind,
        version=spec.version,
    )


def _loop(k: int, loops: list[tuple[str, set[str]]], exits: list[tuple[str, int]]) -> LoopTopology:
    header, body = loops[k]
    others = sorted((j for j in range(len(loops)) if j != k), key=lambda j: len(loops[j][1]))
    return LoopTopology(
        header=header,
        size=len(body),
        inner=tuple(j for j in others if loops[j][1] < body or (loops[j][1] == body and j > k)),
        outer=tuple(j for j in others if body < loops[j][1] or (loops[j][1] == body and j < k)),
        exits=tuple(exits),
    )
