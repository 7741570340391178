"""GraphBuilder: nodes and edges are declared, checked when built, and never changed after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from runner import fanout
from runner import limits as limiting
from runner.batches import STRANDS, with_batches
from runner.checks import can_decide, check_id, check_options, positive
from runner.cycles import reach
from runner.errors import DefinitionError
from runner.functions import function_node
from runner.graph import Definition, EdgeSpec, FailurePolicy, Join, NodeSpec, topology
from runner.graph_events import with_events
from runner.hooks import HookProvider
from runner.limits import Limit
from runner.local import Graph
from runner.ports import Store
from runner.retries import RetryPolicy


class GraphBuilder:
    """Collects nodes and edges; every call but `add_node` and `add_edge` returns the builder."""

    def __init__(self, *, compat: str | None = None) -> None:
        """Start empty. With `compat="strands"` the graph runs in batches, as Strands runs it.

        Raises:
            DefinitionError: `compat` names nothing that is known.
        """
        if compat not in {None, STRANDS}:
            raise DefinitionError(f"compat is {STRANDS!r} or not given, not {compat!r}.")
        self._compat = compat or ""
        self._nodes: dict[str, NodeSpec] = {}
        self._edges: list[EdgeSpec] = []
        self._entries: list[str] = []
        self._settings: dict[str, Any] = {}
        self._limits: tuple[Limit, ...] = ()
        self._id = "default_graph"
        self._store: Store | None = None

    def add_node(
        self,
        executor: object,
        node_id: str | None = None,
        *,
        join: str = "all",
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        queue: str | None = None,
        priority: int | None = None,
        resume: str = "all",
        version: str = "",
        limits: Sequence[Limit] = (),
    ) -> NodeSpec:
        """Add a node: an Agent, a Graph, a function, or an adapter.

        `timeout` is in seconds; `priority` from 0 (first) to 9; `resume="each"` wakes the node at
        every answer instead of at the last; executions keep to the `limits`. A `version` that changes
        tells waiting runs that the node does not go on where an older one stopped.

        Raises:
            DefinitionError: the id is taken or unusable, the executor is in use or is none.
        """
        found = node_id or _name(executor) or f"node_{len(self._nodes)}"
        check_id(found, "node")
        if found in self._nodes:
            raise DefinitionError(f"Node {found!r} already exists; give the second one another node_id.")
        wrapped, kind = _executor(executor)
        if kind != "function" and any(node.executor is wrapped for node in self._nodes.values()):
            raise DefinitionError(
                f"Duplicate node instance detected: the {kind} of node {found!r} is a node already. "
                "Each node must have a unique object; build a second one."
            )
        check_options(found, join, resume, priority, timeout)
        if self._compat and join != Join.ALL:
            raise DefinitionError(f"node {found!r}: in a graph with compat the batch decides, not a join.")
        shared = limiting.check(f"node {found!r}", limits)
        said = (retry, timeout, queue, priority, resume, version)
        spec = NodeSpec(found, wrapped, kind, Join(join), *said, limits=shared)
        self._nodes[found] = spec
        return spec

    def add_map(
        self,
        executor: object,
        node_id: str | None = None,
        *,
        over: object = None,
        concurrency: int | None = None,
        on_error: str = "fail",
        **options: Any,
    ) -> NodeSpec:
        """Add a node that runs its executor once for each item of a list; its output is theirs in order.

        The list is what the node `over` gives, or what that function of a NodeContext returns; None means
        the map's only input, or the task. At most `concurrency` items are at work at once. A failed item
        stops the map, or with `on_error="continue"` leaves None in its place. Other `options` are those
        of `add_node`: retry, timeout, queue and priority hold for each item.

        Raises:
            DefinitionError: the id or an option can't be used, the executor is in use or is none.
        """
        spec = fanout.mapped(self.add_node(executor, node_id, **options), over, concurrency, on_error)
        self._nodes[spec.id] = spec
        return spec

    def add_edge(
        self,
        source: str | NodeSpec,
        target: str | NodeSpec,
        condition: Callable[..., object] | None = None,
        *,
        back: bool = False,
        on_expire: bool = False,
    ) -> EdgeSpec:
        """Let `target` follow `source`, where the condition holds when the source completes.

        `back=True` says that this edge repeats a loop; otherwise the order of the nodes decides. With
        `on_expire=True` it is taken only when nobody answers a question that names `target` as its route.

        Raises:
            DefinitionError: one of the nodes was not added, or the condition can't be one.
        """
        ends = self._known(source, "Source"), self._known(target, "Target")
        edge = EdgeSpec(*ends, condition, back, on_expire)
        if self._compat and (back or on_expire):
            raise DefinitionError(
                "a graph with compat has no loops to repeat or routes; leave back, on_expire out."
            )
        if on_expire and condition is not None:
            raise DefinitionError(
                f"the edge from {edge.source!r} to {edge.target!r} is for expired questions: nobody asks its "
                "condition; leave it out."
            )
        if condition is not None and not can_decide(condition):
            raise DefinitionError(
                f"the condition from {edge.source!r} to {edge.target!r} must be a sync function of the state."
            )
        self._edges.append(edge)
        return edge

    def _known(self, node: str | NodeSpec, role: str) -> str:
        found = node.id if isinstance(node, NodeSpec) else node
        known = self._nodes.get(found)
        if known is None or (isinstance(node, NodeSpec) and known is not node):
            raise DefinitionError(f"{role} node {found!r} not found; add it with add_node first.")
        return found

    def set_entry_point(self, node_id: str) -> GraphBuilder:
        """Start at this node; several calls start at several nodes.

        Raises:
            DefinitionError: there is no such node.
        """
        if node_id not in self._nodes:
            raise DefinitionError(f"Node {node_id!r} not found; add it before it becomes an entry point.")
        if node_id not in self._entries:
            self._entries.append(node_id)
        return self

    def set_max_node_executions(self, limit: int) -> GraphBuilder:
        """Fail a run that would start more node visits than this."""
        if not isinstance(limit, int):
            raise DefinitionError(f"max_node_executions must be a whole number, not {limit!r}.")
        return self._set("max_node_executions", positive(limit, "max_node_executions"))

    def set_execution_timeout(self, seconds: float) -> GraphBuilder:
        """Fail a run that is not done after so many seconds, waits included."""
        return self._set("execution_timeout", positive(seconds, "execution_timeout"))

    def set_node_timeout(self, seconds: float) -> GraphBuilder:
        """Fail a node that runs longer than so many seconds, unless it has a timeout of its own."""
        return self._set("node_timeout", positive(seconds, "node_timeout"))

    def reset_on_revisit(self, enabled: bool = True) -> GraphBuilder:  # noqa: FBT001, FBT002 - the field's name for it
        """Let agents forget their conversation when a loop visits them again."""
        return self._set("reset_on_revisit", enabled)

    def set_failure_policy(self, policy: str) -> GraphBuilder:
        """Choose "fail_fast" (the default: a failed node stops the run) or "continue".

        Raises:
            DefinitionError: it is neither.
        """
        if policy not in set(FailurePolicy):
            raise DefinitionError(f"the failure policy is 'fail_fast' or 'continue', not {policy!r}.")
        return self._set("policy", FailurePolicy(policy))

    def set_limits(self, limits: Sequence[Limit]) -> GraphBuilder:
        """Let every node of the graph keep to these limits, besides its own.

        Raises:
            DefinitionError: one is no Limit, or two are the same.
        """
        self._limits = limiting.check("the graph", limits)
        return self

    def set_hook_providers(self, providers: list[Any]) -> GraphBuilder:
        """Let these objects register callbacks for the graph's events.

        Raises:
            DefinitionError: one has no `register_hooks`.
        """
        for provider in providers:
            if not isinstance(provider, HookProvider):
                raise DefinitionError(f"{provider!r} has no register_hooks(registry, **kwargs).")
        return self._set("hooks", tuple(providers))

    def set_graph_id(self, graph_id: str) -> GraphBuilder:
        """Name the graph; a registered graph has the name it is registered under.

        Raises:
            DefinitionError: the name is no name for a graph.
        """
        check_id(graph_id, "graph")
        self._id = graph_id
        return self

    def set_version(self, version: str) -> GraphBuilder:
        """Declare a version; it is part of the fingerprint that runs carry."""
        return self._set("version", version)

    def set_store(self, store: Store) -> GraphBuilder:
        """Run this graph in process on a store of yours instead of on memory."""
        self._store = store
        return self

    def _set(self, name: str, value: object) -> GraphBuilder:
        self._settings[name] = value
        return self

    def build(self) -> Graph:
        """Check everything and build the graph.

        Raises:
            DefinitionError: no nodes, no entry point, nodes that can't be reached, loops that overlap.
        """
        if not self._nodes:
            raise DefinitionError("Graph must contain at least one node.")
        entries = tuple(self._entries) or self._without_incoming()
        edges = tuple(self._edges)
        following: dict[str, list[str]] = {node: [] for node in self._nodes}
        for edge in edges:
            following[edge.source].append(edge.target)
        fanout.check(self._nodes, edges)
        lost = set(self._nodes) - reach(entries, following)
        if lost and not self._compat:
            raise DefinitionError(
                f"no path from the entry points {list(entries)} reaches {sorted(lost)}; add edges to them, "
                "make them entry points or remove them."
            )
        definition = Definition(
            self._id, self._limited(), edges, entries, compat=self._compat, **self._settings
        )
        topology(definition)
        return Graph(with_batches(with_events(definition)), self._store)

    def _limited(self) -> dict[str, NodeSpec]:
        return {
            name: replace(node, limits=limiting.check(f"node {name!r}", (*self._limits, *node.limits)))
            for name, node in self._nodes.items()
        }

    def _without_incoming(self) -> tuple[str, ...]:
        targets = {edge.target for edge in self._edges if not edge.back and edge.source != edge.target}
        found = tuple(node for node in self._nodes if node not in targets)
        if not found:
            raise DefinitionError(
                "No entry points found: all nodes have incoming edges. Name one with set_entry_point."
            )
        return found


def _name(executor: object) -> str | None:
    for attribute in ("id", "name", "__name__"):
        found = getattr(executor, attribute, None)
        if isinstance(found, str) and found and found != "<lambda>":
            return found
    return None


def _executor(executor: object) -> tuple[Any, str]:
    if isinstance(executor, Graph):
        return executor, "graph"
    kind = getattr(executor, "kind", None)
    if isinstance(kind, str) and callable(getattr(executor, "execute", None)):
        return executor, kind
    function = function_node(executor)
    if function is not None:
        return function, function.kind
    raise DefinitionError(
        f"{executor!r} can't be a node: give an Agent, a Graph, a function that takes one NodeContext "
        "or one input with a type, or an adapter with `kind` and `execute`."
    )
