"""What conditions read: `results["x"]` may be missing when the condition is evaluated."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.authoring import sources
from runner.authoring.drawing.layout import layers
from runner.authoring.lint.problem import Problem, Severity
from runner.definition.model import HIDDEN, EdgeKind, EdgeSpec, FailurePolicy, Join
from runner.definition.registry import Plan

GUARDS = ("results", "completed_nodes", "failed_nodes")


@dataclass(frozen=True, slots=True)
class Reads:
    """The node ids in a condition's code: `needed` without a check for their result, `named` at all."""

    needed: frozenset[str]
    named: frozenset[str]


def problems(plan: Plan) -> Iterator[Problem]:
    """Report results that a condition reads and that no node gives, or not in every run."""
    conditional = [(edge, _reads(edge.condition)) for edge in plan.definition.edges if edge.condition]
    if not any(reads.named for _, reads in conditional):
        return
    before = _always_before(plan)
    for edge, reads in conditional:
        yield from _of(plan, edge, reads, before)


def _of(plan: Plan, edge: EdgeSpec, reads: Reads, before: Mapping[str, set[str]]) -> Iterator[Problem]:
    nodes = {node for node in plan.definition.nodes if not node.startswith(HIDDEN)}
    for node in sorted(reads.named - nodes):
        yield Problem(
            "unknown-node",
            Severity.ERROR,
            plan.definition.id,
            edge.source,
            f"The condition of the edge to {edge.target!r} reads the result of {node!r}, which is no node "
            "of this graph.",
            f"Use one of its nodes: {', '.join(sorted(nodes)[:8])}{' …' if len(nodes) > 8 else ''}.",
        )
    certain = before.get(edge.source, nodes) - _running_again(plan, edge.source) | {edge.source}
    for node in sorted(reads.needed & nodes - certain):
        yield Problem(
            "missing-result",
            Severity.WARNING,
            plan.definition.id,
            edge.source,
            f"The condition of the edge to {edge.target!r} reads results[{node!r}], and {node!r} may not "
            f"have completed when {edge.source!r} has. Then the branch fails with a KeyError.",
            f"Check `{node!r} in state.results` first, or add an edge from {node!r} to {edge.source!r}.",
        )


def _running_again(plan: Plan, source: str) -> set[str]:
    """Return the nodes of loops that may repeat while `source`, behind them, runs: they lose their result.

    Where both the exit and the back edge have conditions, these are assumed to exclude each other.
    """
    shape = plan.topology
    repeating: set[str] = set()
    for number in range(len(shape.loops)):
        around = {node for node in plan.definition.nodes if number in shape.nodes[node].loops}
        leaves_anyway = any(
            edge.condition is None and out.loop == number
            for node in around
            for edge, out in zip(plan.edges[node], shape.outgoing[node], strict=True)
        )
        if source not in around and leaves_anyway:
            repeating |= around
    return repeating


def _reads(condition: Callable[..., Any] | None) -> Reads:
    code = sources.tree(condition)
    if code is None or not code.args.args:
        return Reads(frozenset(), frozenset())
    parameters = [parameter.arg for parameter in code.args.args]
    state = parameters[1] if parameters[0] == "self" and len(parameters) > 1 else parameters[0]
    outside = _outside(condition)
    roles: dict[str, set[str]] = {"needed": set(), "guarded": set(), "named": set()}
    for part in ast.walk(code):
        role, key = _role(part, state)
        node = _text(key, outside) if key is not None else None
        if node is not None:
            roles[role].add(node)
    catches = any(isinstance(part, ast.Try) for part in ast.walk(code))
    needed = set() if catches else roles["needed"] - roles["guarded"]
    return Reads(frozenset(needed), frozenset(set().union(*roles.values())))


def _role(part: ast.AST, state: str) -> tuple[str, ast.expr | None]:
    """Classify a piece of code: a read that needs the result, one that doesn't, or a check for it."""
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
    """Return a text constant, or the value of a name that holds one outside the condition."""
    value: object = key.value if isinstance(key, ast.Constant) else None
    if isinstance(key, ast.Name):
        value = outside.get(key.id)
    return value if isinstance(value, str) else None


def _outside(condition: object) -> Mapping[str, object]:
    try:
        variables = inspect.getclosurevars(sources.bare(condition))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    return {**variables.globals, **variables.nonlocals}


def _always_before(plan: Plan) -> dict[str, set[str]]:
    """Work out, for each node, which nodes have certainly completed when it starts.

    An edge is certain when it is taken in every run: it has no condition, its source always runs, and
    a failed source ends the run. Behind join="all" has completed what stands before any certain edge
    and what all edges have in common; behind join="any" only the latter.
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
    before: dict[str, int] = {}
    always: dict[str, bool] = {}
    for node in (node for row in layers(nodes, list(dict.fromkeys(pairs))) for node in row):
        is_entry = node in shape.entries
        shared, sure = 0 if is_entry else -1, 0
        always[node] = is_entry
        for edge in (edge for edge in shape.incoming[node] if edge.kind is not EdgeKind.BACK):
            brings = before[edge.source] | bit[edge.source]
            shared &= brings
            unasked = plan.edges[edge.source][edge.position].condition is None
            if stops and unasked and always[edge.source]:
                always[node], sure = True, sure | brings
        shared = max(shared, 0)
        before[node] = shared if shape.nodes[node].join is Join.ANY else shared | sure
    return {node: {other for other in nodes if before[node] & bit[other]} for node in nodes}
