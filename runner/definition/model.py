"""Graphs as plain values.

`Definition` holds the builder's input: the executors, conditions and hooks of a process. `Topology`
is the part that scheduling needs, computed once and stored beside the runs: joins as counts, loops
as numbered groups, each edge with its kind. It is stored by node, so that a transition reads only
the nodes it touches.

A map is one node that runs its executor once for each item of a list. Item 3 of the map `M` is the
node `M[3]` of the same run, created when the list is known; the topology has one entry `M[]` for
all items. An item has its map's visit number.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

from runner.approvals.policies import Policy
from runner.approvals.rules import Rule
from runner.definition.policies import RetryPolicy
from runner.immutable import immutable
from runner.limits.concurrency import Admission
from runner.limits.fairness import Fairness
from runner.limits.limit import TAG, Limit, LimitShape

BRACKETS = "[]"
"""Part of the ids of map items; users' ids may not contain it."""


@immutable
class MapSpec:
    """Map part of a node: `kind` is its executor's kind, `over` the source of its list.

    `over` is None, the id of a node before it, or a wrapped function; `concurrency` is how many items
    may be active at once (None: `MOST_ITEMS`), `stops` whether the first failed item stops the map.
    """

    kind: str
    over: Any = None
    concurrency: int | None = None
    stops: bool = True


MOST_ITEMS = 10_000
"""Items of a map without `concurrency` that are active at once: a stop cancels them one by one."""


@immutable
class MapTopology:
    """Topology of a map: how many items run at once, whether a failed item stops it."""

    window: int
    stops: bool


def item_id(node: str, index: int) -> str:
    """Return the node id of a map's item; the first item has index 0."""
    return f"{node}[{index}]"


@lru_cache(10_000)
def map_of(node: str) -> str:
    """Return the map that an item belongs to; "" for a node that isn't an item."""
    return node[: node.rindex("[")] if node.endswith("]") else ""


def index_of(node: str) -> int | None:
    """Return an item's index in its list; None for a node that isn't an item."""
    return int(node[node.rindex("[") + 1 : -1]) if node.endswith("]") else None


@lru_cache(10_000)
def shape_name(node: str) -> str:
    """Return the node's name in the topology: items share the entry `M[]` of their map."""
    return node[: node.rindex("[")] + BRACKETS if node.endswith("]") else node


def shape_of(spec: MapSpec | None) -> MapTopology | None:
    return MapTopology(spec.concurrency or MOST_ITEMS, spec.stops) if spec else None


def signature(specs: Iterable[tuple[str, MapSpec | None]]) -> list[object]:
    """Return the parts of maps that a fingerprint covers; an empty list without maps."""
    return [
        [node, isinstance(spec.over, str) and spec.over, spec.concurrency, spec.stops]
        for node, spec in specs
        if spec is not None
    ]


ROOT = -1
"""The scope of an edge outside all loops."""


class Join(enum.StrEnum):
    """The rule for when a node with several incoming edges is ready."""

    ALL = "all"
    ANY = "any"


class EdgeKind(enum.StrEnum):
    """Effect of an edge on loops: none, leaving a loop, or requesting another round of it."""

    FORWARD = "forward"
    EXIT = "exit"
    BACK = "back"


class FailurePolicy(enum.StrEnum):
    """Effect of a failed node on the rest of its run."""

    FAIL_FAST = "fail_fast"
    CONTINUE = "continue"


@immutable
class NodeSpec:
    """One node as it was declared; `timeout` in seconds, `priority` from 0 (first) to 9.

    `task` is the function that computes the task of a nested graph, `approval` the rule or policy
    by which people approve each run of the node.
    """

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
    limits: tuple[Limit, ...] = ()
    task: Any = None
    approval: Rule | Policy | None = None

    def item(self) -> NodeSpec:
        """Return the declaration of a map's items: its executor as a node with its own kind."""
        return replace(self, kind=self.map.kind, map=None) if self.map else self


@immutable
class EdgeSpec:
    """One edge as it was declared; `back` overrides the loop search, `on_expire` is for expiry."""

    source: str
    target: str
    condition: Callable[..., object] | None = None
    back: bool = False
    on_expire: bool = False


@immutable
class Definition:
    """A whole graph as it was declared, already validated. Timeouts are in seconds.

    `queue` is the queue of nodes that name none; if it is None, they use the graph's id. `name` is
    the name under which the factory that made it is registered, even if it is a node of another
    graph.
    """

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
    queue: str | None = None
    name: str = ""
    admission: Admission | None = None
    fairness: Fairness | None = None

    def edges_by_source(self) -> dict[str, list[EdgeSpec]]:
        """Return the edges by source, in the order of the bits of `NodeRecord.edges`."""
        by_source: dict[str, list[EdgeSpec]] = {node: [] for node in self.nodes}
        for edge in self.edges:
            by_source[edge.source].append(edge)
        return by_source


@immutable
class OutEdge:
    """An edge seen from its source. `scope` is the innermost loop around both ends, `loop` the loop
    that it leaves (exit) or repeats (back).
    """

    target: str
    kind: EdgeKind
    scope: int = ROOT
    loop: int = ROOT
    on_expire: bool = False


@immutable
class InEdge:
    """The same edge seen from its target; `position` is its place among the source's edges."""

    source: str
    position: int
    kind: EdgeKind
    loop: int = ROOT


@immutable
class NodeTopology:
    """Topology of one node; its edges are stored separately because there may be many."""

    needs: int
    join: Join
    loops: tuple[int, ...]
    queue: str
    priority: int
    each: bool
    signature: str
    kind: str
    map: MapTopology | None = None
    limits: tuple[LimitShape, ...] = ()
    version: str = ""

    @property
    def scope(self) -> int:
        """The innermost loop around the node, or ROOT."""
        return self.loops[0] if self.loops else ROOT


@immutable
class LoopTopology:
    """One loop: `inner` and `outer` are the loops inside and around it, innermost first."""

    header: str
    size: int
    inner: tuple[int, ...]
    outer: tuple[int, ...]
    exits: tuple[tuple[str, int], ...]


@immutable
class Topology:
    """The shape of a graph, computed for scheduling; the items of a map `M` have the entry `M[]`."""

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
    admission: Admission | None = None
    fairness: Fairness | None = None
    key_tags: frozenset[str] = field(init=False, compare=False, repr=False)
    """The tags whose values are keys of its runs or nodes."""
    has_undos: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_undos", any(name.startswith(UNDO) for name in self.nodes))
        by = [limit.by for node in self.nodes.values() for limit in node.limits]
        by += [self.admission.by] if self.admission else []
        by += [self.fairness.by] if self.fairness else []
        tags = frozenset(each.removeprefix(TAG) for each in by if each.startswith(TAG))
        object.__setattr__(self, "key_tags", tags)


HIDDEN = "@"
"""Prefix of the nodes of graph events; users' ids may not begin with it."""

BEFORE_GRAPH = "@before"
"""The hidden node ahead of the entry points that fires BeforeGraphEvent."""

AFTER_GRAPH = "@after"
"""The hidden node that fires AfterGraphEvent: it becomes ready when all other nodes have ended."""

UNDO = "@undo:"
"""Prefix of the hidden node that undoes a node, in a run that fails or is cancelled.

The record with this name alone lists the completed visits to undo as its `via`, the newest first.
"""

SWARM = "@swarm"
"""The hidden node of a swarm that chooses its next agent."""

DEFAULT_PRIORITY = 5
