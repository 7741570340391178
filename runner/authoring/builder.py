"""GraphBuilder: declares nodes and edges, and builds an immutable graph.

An option is checked when it is set, so that the traceback of a mistake ends at the user's line;
`build` makes only the checks that need the whole graph.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

from runner.agent.agent import Agent, refuse_overrides
from runner.approvals import policies
from runner.approvals.policies import ApprovalPolicy, Policy
from runner.approvals.rules import Rule
from runner.definition.cycles import reach
from runner.definition.model import (
    BRACKETS,
    HIDDEN,
    UNDO,
    Definition,
    EdgeSpec,
    FailurePolicy,
    Join,
    NodeSpec,
)
from runner.definition.policies import RetryPolicy
from runner.definition.registry import check_rules, check_sums
from runner.definition.topology import topology
from runner.errors import DefinitionError, UsageError
from runner.execution import map_nodes
from runner.execution.conditions import GraphState
from runner.execution.functions import function_node
from runner.execution.nodes import with_events
from runner.hooks import Callback, HookProvider, HookRegistry
from runner.limits.limit import Limit, check_limits
from runner.local import Graph
from runner.records.validation import is_number, similar
from runner.store.interface import Store

MAX_ID = 128  # characters; ids appear in keys, paths and log lines

MAX_PRIORITY = 9

ADAPTERS = {
    ("strands", "Agent"): ("runner.integrations.strands", "StrandsAgent"),
    ("pydantic_ai", "AbstractAgent"): ("runner.integrations.pydantic_ai", "PydanticAIAgent"),
}
"""The adapter for each framework's agent, by package and class; no framework is imported here."""


class InvocationCondition(Protocol):
    """A condition that also takes its run's invocation state."""

    def __call__(self, state: GraphState, /, *, invocation_state: dict[str, Any]) -> object:
        """Return a true value if the edge is taken."""


class GraphBuilder:
    """Collects nodes, edges and settings; the setters return the builder, so calls can be chained."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeSpec] = {}
        self._undos: dict[str, NodeSpec] = {}
        self._edges: list[EdgeSpec] = []
        self._entries: list[str] = []
        self._settings: dict[str, Any] = {}
        self._limits: tuple[Limit, ...] = ()
        self._id = "default_graph"
        self._store: Store | None = None

    if not TYPE_CHECKING:  # type checkers report a forgotten `build` themselves

        def __getattr__(self, name: str) -> Any:
            """Explain a missing attribute that a built graph has."""
            if hasattr(Graph, name):
                raise AttributeError(
                    f"a GraphBuilder has no {name!r}, a graph has: call .build() first."
                )
            raise AttributeError(f"a GraphBuilder has no {name!r}.")

        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            """Refuse the call: only the built graph can be called.

            Raises:
                UsageError: always.
            """
            del args, kwargs
            raise UsageError("a GraphBuilder can't be run, a graph can: call .build() first.")

    def add_node(
        self,
        executor: object,
        node_id: str | None = None,
        *,
        join: Literal["all", "any"] = "all",
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        queue: str | None = None,
        priority: int | None = None,
        resume: Literal["all", "each"] = "all",
        version: str = "",
        limits: Sequence[Limit] = (),
        task: Callable[..., object] | None = None,
        approval: Rule | ApprovalPolicy | None = None,
        undo: object = None,
    ) -> NodeSpec:
        """Add a node: an Agent, a Graph, a function, or an adapter.

        `timeout` is in seconds; `priority` goes from 0 (first) to 9; `resume="each"` resumes the
        node at every answer instead of at the last; `limits` bound its executions. Change `version`
        when runs that wait in this node must not continue with the new code. A Graph's task is the
        output of the node before it, or the returned value of the function `task`. With `approval`
        people are asked before the node runs, and see its task and inputs; a rejection fails the
        node. It is a Rule, or a function of `{"task": ..., "inputs": ...}` (and of a CallContext)
        that returns a Rule or None. `undo` is as in `add_undo`, with the node's retry, timeout,
        queue and priority.

        Raises:
            DefinitionError: the id or an option can't be used, or the executor can't be a node here.
        """
        name = node_id or _name(executor) or f"node_{len(self._nodes)}"
        _check_id(name, "node")
        if name in self._nodes:
            raise DefinitionError(
                f"Node {name!r} already exists; give the second one another node_id."
            )
        node_executor, kind = _executor(executor)
        if kind != "function" and any(
            node.executor is node_executor for node in self._nodes.values()
        ):
            raise DefinitionError(
                f"Duplicate node instance detected: the {kind} of node {name!r} is a node already. "
                "Each node must have a unique object; build a second one."
            )
        _check_options(name, join, resume, priority, retry)
        if queue is not None:
            _checked_queue(queue, f"node {name!r}: queue")
        if not isinstance(version, str):
            raise DefinitionError(f"node {name!r}: version must be a text, not {version!r}.")
        if timeout is not None:
            _positive(timeout, f"the timeout of node {name!r}")
        to_task = None if task is None else function_node(task)
        if task is not None and (kind != "graph" or to_task is None):
            raise DefinitionError(
                f"node {name!r}: `task` is for nested graphs: a function of a NodeContext that returns the "
                "inner run's task."
            )
        self._nodes[name] = NodeSpec(
            name,
            node_executor,
            kind,
            Join(join),
            retry,
            timeout,
            queue,
            priority,
            resume,
            version,
            limits=check_limits(f"node {name!r}", limits),
            task=to_task,
            approval=_gate(name, approval),
        )
        if undo is not None:
            options = {"retry": retry, "timeout": timeout, "queue": queue, "priority": priority}
            self.add_undo(name, undo, **options)
        return self._nodes[name]

    def add_undo(self, node: str | NodeSpec, executor: object, **options: Any) -> NodeSpec:
        """Undo a node by another one if its run fails or is cancelled after the node has completed.

        The undos run at the end, one after another, the node that completed last first. An undo's
        only input is the node's output. `executor` and `options` are as in `add_node`, but an undo
        can't be a Graph.

        Raises:
            DefinitionError: the node was not added, has an undo, or an option can't be used.
        """
        undone = self._added(node, "Undone")
        if undone in self._undos:
            raise DefinitionError(f"node {undone!r} has an undo already.")
        spec = GraphBuilder().add_node(executor, undone, **options)
        if spec.kind == "graph" or "undo" in options:
            raise DefinitionError(
                f"node {undone!r}: its undo can't be a Graph or have an undo."
            )
        self._undos[undone] = replace(spec, id=UNDO + undone)
        return self._undos[undone]

    def add_map(
        self,
        executor: object,
        node_id: str | None = None,
        *,
        over: object = None,
        concurrency: int | None = None,
        on_error: Literal["fail", "continue"] = "fail",
        **options: Any,
    ) -> NodeSpec:
        """Add a node that runs its executor once for each item of a list and outputs the list of results.

        `over` is the id of the node that outputs the list, or a function of a NodeContext that
        returns it; None means the map's only input, or the task. At most `concurrency` items run at
        once, by default 10,000. A failed item fails the map, or with `on_error="continue"` leaves
        None in its place. Other `options` are passed to `add_node`.

        Raises:
            DefinitionError: the id or an option can't be used, or the executor can't be a node here.
        """
        spec = map_nodes.mapped(
            self.add_node(executor, node_id, **options), over, concurrency, on_error
        )
        self._nodes[spec.id] = spec
        return spec

    def add_edge(
        self,
        source: str | NodeSpec,
        target: str | NodeSpec,
        condition: Callable[[GraphState], object] | InvocationCondition | None = None,
        *,
        back: bool = False,
        on_expire: bool = False,
    ) -> EdgeSpec:
        """Run `target` after `source` if the condition holds when the source completes.

        `back=True` declares that the edge repeats a loop; without it, the search for loops decides. An
        edge with `on_expire=True` is taken only when a question that names `target` as its route expires.

        Raises:
            DefinitionError: one of the nodes was not added, or the condition can't be used.
        """
        edge = EdgeSpec(
            self._added(source, "Source"),
            self._added(target, "Target"),
            condition,
            back,
            on_expire,
        )
        if on_expire and condition is not None:
            raise DefinitionError(
                f"the edge from {edge.source!r} to {edge.target!r} is for expired questions, which check no "
                "condition; leave the condition out."
            )
        if condition is not None and not _is_condition(condition):
            raise DefinitionError(
                f"the condition from {edge.source!r} to {edge.target!r} must be a sync function of the state."
            )
        self._edges.append(edge)
        return edge

    def _added(self, node: str | NodeSpec, role: str) -> str:
        name = node.id if isinstance(node, NodeSpec) else node
        if not isinstance(name, str):
            ids = [
                spec.id
                for spec in self._nodes.values()
                if name in (spec.executor, getattr(spec.executor, "function", None))
            ]
            advice = f"write {ids[0]!r}" if ids else "add it with add_node, and use the id"
            raise DefinitionError(f"an edge joins nodes by their ids, not {name!r}: {advice}.")
        known_node = self._nodes.get(name)
        if known_node is None or (isinstance(node, NodeSpec) and known_node is not node):
            advice = similar(name, self._nodes) or " Add it with add_node first."
            raise DefinitionError(f"{role} node {name!r} not found.{advice}")
        return name

    def set_entry_point(self, node_id: str) -> GraphBuilder:
        """Start at this node; several calls start at several nodes.

        Without a call, all nodes without an incoming edge start; in a graph with edges, a node
        without any must be named here.

        Raises:
            DefinitionError: the node was not added.
        """
        if node_id not in self._nodes:
            raise DefinitionError(
                f"Node {node_id!r} not found; add it before it becomes an entry point."
            )
        if node_id not in self._entries:
            self._entries.append(node_id)
        return self

    def set_max_node_executions(self, limit: int) -> GraphBuilder:
        """Fail a run that would start more node visits than this."""
        if not isinstance(limit, int):
            raise DefinitionError(f"max_node_executions must be a whole number, not {limit!r}.")
        return self._set("max_node_executions", _positive(limit, "max_node_executions"))

    def set_execution_timeout(self, seconds: float) -> GraphBuilder:
        """Fail a run that takes longer than this, including waits."""
        return self._set("execution_timeout", _positive(seconds, "execution_timeout"))

    def set_node_timeout(self, seconds: float) -> GraphBuilder:
        """Fail a node that runs longer than this, unless the node has its own timeout."""
        return self._set("node_timeout", _positive(seconds, "node_timeout"))

    def reset_on_revisit(self, enabled: bool = True) -> GraphBuilder:  # noqa: FBT001, FBT002 - its usual form
        """Clear the conversation of an agent when a loop visits it again."""
        return self._set("reset_on_revisit", enabled)

    def set_failure_policy(self, policy: Literal["fail_fast", "continue"]) -> GraphBuilder:
        """Choose "fail_fast" (the default: a failed node stops the run) or "continue".

        Raises:
            DefinitionError: it is another value.
        """
        if policy not in tuple(FailurePolicy):
            raise DefinitionError(
                f"the failure policy is 'fail_fast' or 'continue', not {policy!r}."
            )
        return self._set("policy", FailurePolicy(policy))

    def set_limits(self, limits: Sequence[Limit]) -> GraphBuilder:
        """Bound the executions of every node of the graph by these limits, besides the node's own.

        Raises:
            DefinitionError: an item isn't a Limit, or two are the same.
        """
        self._limits = check_limits("the graph", limits)
        return self

    def set_hook_providers(self, providers: Sequence[HookProvider | Callback]) -> GraphBuilder:
        """Let these objects register callbacks for the graph's events, replacing earlier providers.

        A function is the callback of the event in its annotation.

        Raises:
            DefinitionError: a provider has no `register_hooks`, and isn't such a function.
        """
        HookRegistry([hook for hook in providers if not isinstance(hook, HookProvider)])
        return self._set("hooks", tuple(providers))

    def set_graph_id(self, graph_id: str) -> GraphBuilder:
        """Name the graph; a registered graph has the name it is registered under.

        Raises:
            DefinitionError: the name can't be a graph's id.
        """
        _check_id(graph_id, "graph")
        self._id = graph_id
        return self

    def set_version(self, version: str) -> GraphBuilder:
        """Declare a version; runs record it as part of the graph's fingerprint."""
        return self._set("version", version)

    def set_queue(self, queue: str) -> GraphBuilder:
        """Set the queue of nodes that name none, including nodes of nested graphs.

        Raises:
            DefinitionError: it isn't a queue's name.
        """
        return self._set("queue", _checked_queue(queue, "queue"))

    def set_store(self, store: Store) -> GraphBuilder:
        """Run this graph in process on this store instead of in memory."""
        self._store = store
        return self

    def _set(self, name: str, value: object) -> GraphBuilder:
        self._settings[name] = value
        return self

    def build(self) -> Graph:
        """Check everything and build the graph.

        Raises:
            DefinitionError: no nodes, no entry point, unreachable nodes, overlapping loops, or a
                rule that excludes the answerers of a node that is missing or asks nothing.
        """
        if not self._nodes:
            raise DefinitionError("Graph must contain at least one node.")
        entries = tuple(self._entries) or self._without_incoming()
        edges = tuple(self._edges)
        following: dict[str, list[str]] = {node: [] for node in self._nodes}
        for edge in edges:
            following[edge.source].append(edge.target)
        map_nodes.check(self._nodes, edges)
        unreachable = set(self._nodes) - reach(entries, following)
        if unreachable:
            raise DefinitionError(
                f"no path from the entry points {list(entries)} reaches {sorted(unreachable)}; add edges to "
                "them, make them entry points or remove them."
            )
        undos = [(undo.id, undo) for undo in self._undos.values()]
        nodes = {
            name: replace(
                node, limits=check_limits(f"node {name!r}", (*self._limits, *node.limits))
            )
            for name, node in [*self._nodes.items(), *undos]
        }
        definition = Definition(self._id, nodes, edges, entries, **self._settings)
        loops = topology(definition).loops  # refuses loops that overlap
        if loops and not (definition.max_node_executions or definition.execution_timeout):
            warnings.warn(
                f"the loop that begins at node {loops[0].header!r} is unbounded: only a condition ends it. "
                "Call set_max_node_executions or set_execution_timeout, so that it ends in any case.",
                stacklevel=2,
            )
        check_rules(definition, definition.id or "this one")
        check_sums(definition)
        return Graph(with_events(definition), self._store)

    def _without_incoming(self) -> tuple[str, ...]:
        targets = {
            edge.target for edge in self._edges if not edge.back and edge.source != edge.target
        }
        entries = tuple(node for node in self._nodes if node not in targets)
        if not entries:
            raise DefinitionError(
                "No entry points found: all nodes have incoming edges. Name one with set_entry_point."
            )
        connected = {node for edge in self._edges for node in (edge.source, edge.target)}
        for node in entries:
            # Without this check, a forgotten edge would let a payment run before its approval.
            if connected and node not in connected:
                raise DefinitionError(
                    f"node {node!r} has no edges, while other nodes have some: it would run first. Add the "
                    f"missing edge, or call set_entry_point({node!r}) if it should start with the run."
                )
        return entries


def _name(executor: object) -> str | None:
    for attribute in ("id", "name", "__name__"):
        name = getattr(executor, attribute, None)
        if isinstance(name, str) and name and name != "<lambda>":
            return name
    return None


def _check_options(
    node: str, join: object, resume: object, priority: object, retry: object
) -> None:
    """Refuse option values that a node can't have.

    Raises:
        DefinitionError: a value can't be used.
    """
    allowed_values: Mapping[str, tuple[object, tuple[Any, ...]]] = {
        "join": (join, tuple(Join)),
        "resume": (resume, ("all", "each")),
        "priority": (priority, (None, *range(MAX_PRIORITY + 1))),
    }
    for option, (value, values) in allowed_values.items():
        if value not in values:
            raise DefinitionError(
                f"node {node!r}: {option} must be one of {sorted(map(str, values))}, not {value!r}."
            )
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise DefinitionError(f"node {node!r}: retry must be a RetryPolicy, not {retry!r}.")


def _gate(name: str, approval: object) -> Rule | Policy | None:
    """Return the rule or policy that approves a node; voters can't edit its task and inputs."""
    rule = policies.checked(approval, f"node {name!r}", {"task", "inputs"})
    if not isinstance(rule, Rule):
        return rule
    try:
        return policies.without_edits(rule)
    except UsageError as error:
        raise DefinitionError(f"node {name!r}: {error}") from None


def _executor(executor: object) -> tuple[Any, str]:
    if isinstance(executor, Graph):
        return executor, "graph"
    if isinstance(executor, Agent):
        refuse_overrides(executor)
    if isinstance(executor, GraphBuilder):
        raise DefinitionError(
            "a GraphBuilder can't be a node, a graph can: call .build() first."
        )
    # An agent is callable with one argument: taken for a function, it would lose its conversation.
    for cls in type(executor).__mro__:
        adapter = ADAPTERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if adapter is not None:
            module, name = adapter
            raise DefinitionError(
                f"an agent of {cls.__module__.partition('.')[0]} can't be a node itself: each execution "
                f"needs its own agent. Write a function that builds it, and add {name}(function); "
                f"{name} is in {module}."
            )
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


def _check_id(name: object, kind: str) -> None:
    """Refuse ids with characters used in paths (`review/approve`), keys or ids of map items."""
    fits = isinstance(name, str) and name.isprintable() and name.strip() and len(name) <= MAX_ID
    if (
        not fits
        or str(name).startswith(HIDDEN)
        or not set('"\\/' + BRACKETS).isdisjoint(str(name))
    ):
        raise DefinitionError(
            f"{name!r} can't be a {kind} id: use 1 to {MAX_ID} printable characters without quotes, "
            f"slashes, backslashes or brackets, not beginning with {HIDDEN!r}."
        )


def _checked_queue(value: object, name: str) -> str:
    # Celery's option --queues separates names by commas.
    if not isinstance(value, str) or not value or "," in value or not value.isprintable():
        raise DefinitionError(f"{name} must be a text without commas, not {value!r}.")
    return value


def _positive(value: float, name: str) -> float:
    if not (is_number(value) and 0 < value < math.inf):
        raise DefinitionError(f"{name} must be a number above 0, not {value!r}.")
    return value


def _is_condition(condition: object) -> bool:
    """Return whether a condition can be called with the state; a coroutine would always be true."""
    if isinstance(condition, type):
        return False
    try:
        signature = inspect.signature(condition)  # type: ignore[arg-type]
        extra = {"invocation_state": None} if "invocation_state" in signature.parameters else {}
        signature.bind(None, **extra)
    except (TypeError, ValueError):
        return False
    return not inspect.iscoroutinefunction(condition)
