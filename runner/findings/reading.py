"""What conditions read: `results["x"]` where there may be no such result when the condition is asked."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner import sources
from runner.drawing.layout import layers
from runner.findings.finding import Finding, Severity
from runner.graph import HIDDEN, EdgeKind, EdgeSpec, FailurePolicy, Join
from runner.registry import Plan

GUARDS = ("results", "completed_nodes", "failed_nodes")


@dataclass(frozen=True, slots=True)
class Reads:
    """The node ids in a condition's code: those whose result must be there, and all of them."""

    needed: frozenset[str]
    named: frozenset[str]


def findings(plan: Plan) -> Iterator[Finding]:
    """Look at the conditions of a graph."""
    conditional = [(edge, _reads(edge.condition)) for edge in plan.definition.edges if edge.condition]
    if not any(reads.named for _, reads in conditional):
        return
    before = {} if plan.topology.batches else _always_before(plan)
    for edge, reads in conditional:
        yield from _of(plan, edge, reads, before)


def _of(plan: Plan, edge: EdgeSpec, reads: Reads, before: Mapping[str, set[str]]) -> Iterator[Finding]:
    nodes = {node for node in plan.definition.nodes if not node.startswith(HIDDEN)}
    for node in sorted(reads.named - nodes):
        yield Finding(
            "unknown-node",
            Severity.ERROR,
            plan.definition.id,
            edge.source,
            f"The condition of the edge to {edge.target!r} reads the result of {node!r}, which is no node "
            "of this graph.",
            f"Use one of its nodes: {', '.join(sorted(nodes)[:8])}{' …' if len(nodes) > 8 else ''}.",
        )
    known = before.get(edge.source, nodes) - _running_again(plan, edge.source) | {edge.source}
    for node in sorted(reads.needed & nodes - known):
        yield Finding(
            "missing-result",
            Severity.WARNING,
            plan.definition.id,
            edge.source,
            f"The condition of the edge to {edge.target!r} reads results[{node!r}], and {node!r} may not "
            f"have completed when {edge.source!r} has. Then the branch fails with a KeyError.",
            f"Ask `{node!r} in state.results` first, or let an edge lead from {node!r} to {edge.source!r}.",
        )


def _running_again(plan: Plan, source: str) -> set[str]:
    """Name the nodes of loops that may go on while `source` runs behind them: these have no result then.

    Where both the way out and the way back have conditions, these are taken to exclude each other.
    """
    shape = plan.topology
    found: set[str] = set()
    for number in range(len(shape.loops)):
        around = {node for node in plan.definition.nodes if number in shape.nodes[node].loops}
        leaves_anyway = any(
            edge.condition is None and out.loop == number
            for node in around
            for edge, out in zip(plan.edges[node], shape.outgoing[node], strict=True)
        )
        if source not in around and leaves_anyway:
            found |= around
    return found


def _reads(condition: Callable[..., Any] | None) -> Reads:
    code = sources.tree(condition)
    if code is None or not code.args.args:
        return Reads(frozenset(), frozenset())
    parameters = [each.arg for each in code.args.args]
    state = parameters[1] if parameters[0] == "self" and len(parameters) > 1 else parameters[0]
    outside = _outside(condition)
    found: dict[str, set[str]] = {"needed": set(), "guarded": set(), "named": set()}
    for part in ast.walk(code):
        role, key = _role(part, state)
        node = _text(key, outside) if key is not None else None
        if node is not None:
            found[role].add(node)
    catches = any(isinstance(part, ast.Try) for part in ast.walk(code))
    needed = set() if catches else found["needed"] - found["guarded"]
    return Reads(frozenset(needed), frozenset(set().union(*found.values())))


def _role(part: ast.AST, state: str) -> tuple[str, ast.expr | None]:
    """Tell whether a piece of code reads a result that must be there, one that need not, or asks."""
    match part:
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="results"), slice=key):
            return "needed", key if name == state else None
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="results"), attr="get"),
            args=[key, *_],
        ):
            return "named", key if name == state else None
        case ast.Compare(left=key, comparators=[ast.Attribute(value=ast.Name(id=name), attr=attribute)]):
            return "guarded", key if name == state and attribute in GUARDS else None
    return "", None


def _text(key: ast.expr, outside: Mapping[str, object]) -> str | None:
    """Read a constant, or a name that stands for one outside the condition."""
    found: object = key.value if isinstance(key, ast.Constant) else None
    if isinstance(key, ast.Name):
        found = outside.get(key.id)
    return found if isinstance(found, str) else None


def _outside(condition: object) -> Mapping[str, object]:
    try:
        found = inspect.getclosurevars(sources.bare(condition))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    return {**found.globals, **found.nonlocals}


def _always_before(plan: Plan) -> dict[str, set[str]]:
    """Work out, for each node, which nodes have certainly completed when it starts.

    An edge is certain when it is taken in every run: no condition, a source that always runs, and no
    way for the run to go on when the source fails. A join of all knows what every certain edge
    brings, and what all its edges have in common; a join of any only the latter.
    """
    shape, nodes = plan.topology, list(plan.definition.nodes)
    bit = {node: 1 << number for number, node in enumerate(nodes)}
    stops = plan.definition.policy is FailurePolicy.FAIL_FAST
    pairs = [
        (edge.source, node)
        for node, incoming in shape.incoming.items()
        for edge in incoming
        if edge.kind is not EdgeKind.BACK
    ]
    known: dict[str, int] = {}
    always: dict[str, bool] = {}
    for node in (node for row in layers(nodes, list(dict.fromkeys(pairs))) for node in row):
        is_entry = node in shape.entries
        shared, sure = 0 if is_entry else -1, 0
        always[node] = is_entry
        for edge in (edge for edge in shape.incoming[node] if edge.kind is not EdgeKind.BACK):
            brings = known[edge.source] | bit[edge.source]
            shared &= brings
            unasked = plan.edges[edge.source][edge.position].condition is None
            if stops and unasked and always[edge.source]:
                always[node], sure = True, sure | brings
        shared = max(shared, 0)
        known[node] = shared if shape.nodes[node].join is Join.ANY else shared | sure
    return {node: {other for other in nodes if known[node] & bit[other]} for node in nodes}
