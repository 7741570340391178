"""What the nodes and edges alone tell: nodes that never run, loops that never end, starts inside loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from runner import sources
from runner.cycles import reach
from runner.findings.finding import Finding, Severity
from runner.graph import AFTER_GRAPH, BATCH, BEFORE_GRAPH, Definition, EdgeKind, EdgeSpec, InEdge
from runner.registry import Plan

UNLINKED = {AFTER_GRAPH, BATCH}
"""Hidden nodes that become ready without an edge."""


def findings(plan: Plan) -> Iterator[Finding]:
    """Look at the shape of a graph."""
    yield from _never_taken(plan)
    yield from _never_run(plan)
    if not plan.topology.batches:
        yield from _loops(plan)
        yield from _starts_inside(plan)
    yield from _unbounded_maps(plan)


def _never_taken(plan: Plan) -> Iterator[Finding]:
    for edge in plan.definition.edges:
        if _is_never(edge):
            yield Finding(
                "never-taken",
                Severity.WARNING,
                plan.definition.id,
                edge.source,
                f"The edge to {edge.target!r} is never taken: its condition never holds.",
                "Remove the edge, or let the condition return something else.",
            )


def _is_never(edge: EdgeSpec) -> bool:
    """Tell whether a condition's code can only say no."""
    code = sources.tree(edge.condition) if edge.condition is not None else None
    if isinstance(code, ast.Lambda):
        return isinstance(code.body, ast.Constant) and not code.body.value
    if not isinstance(code, ast.FunctionDef):
        return False
    said = [each.value for each in ast.walk(code) if isinstance(each, ast.Return)]
    return all(each is None or (isinstance(each, ast.Constant) and not each.value) for each in said)


def _never_run(plan: Plan) -> Iterator[Finding]:
    """A node runs when something leads to it; edges that are never taken, or lead back, do not."""
    shape = plan.topology
    following: dict[str, list[str]] = {
        source: [
            out.target
            for edge, out in zip(edges, shape.outgoing[source], strict=True)
            if out.kind is not EdgeKind.BACK and not _is_never(edge)
        ]
        for source, edges in plan.edges.items()
    }
    reached = reach(shape.entries, following)
    for node in (node for node in plan.definition.nodes if node not in reached and node not in UNLINKED):
        yield Finding(
            "never-runs",
            Severity.ERROR,
            plan.definition.id,
            node,
            "This node never runs: every way to it is an edge that is never taken, or one that leads back.",
            "Give it an edge that can be taken, make it an entry point, or remove it.",
        )


def _loops(plan: Plan) -> Iterator[Finding]:
    definition, shape = plan.definition, plan.topology
    limit = definition.max_node_executions or definition.execution_timeout
    for number, loop in enumerate(shape.loops):
        if _always_repeats(plan, number, loop.header):
            yield _endless(definition, loop.header, has_limit=bool(limit))
        elif not limit:
            yield Finding(
                "loop-without-limit",
                Severity.HINT,
                definition.id,
                loop.header,
                "The loop that begins here ends only when a condition ends it.",
                "Call set_max_node_executions or set_execution_timeout, so that it ends in any case.",
            )


def _endless(definition: Definition, header: str, *, has_limit: bool) -> Finding:
    said = "The loop that begins here has no way out: no condition can end it"
    if has_limit:
        advice = "Put a condition on the edge that leads back, or on one before it."
        return Finding(
            "loop-fails",
            Severity.WARNING,
            definition.id,
            header,
            f"{said}, so a run that comes to it fails.",
            advice,
        )
    advice = "Put a condition on the edge that leads back, and call set_max_node_executions."
    return Finding("endless-loop", Severity.ERROR, definition.id, header, f"{said}, and no limit.", advice)


def _always_repeats(plan: Plan, number: int, header: str) -> bool:
    """Follow the edges without a condition: does a way of them lead around the loop?"""
    shape = plan.topology
    body = [node for node in plan.definition.nodes if number in shape.nodes[node].loops]
    following: dict[str, list[str]] = {node: [] for node in body}
    back = set()
    for node in body:
        for edge, out in zip(plan.edges[node], shape.outgoing[node], strict=True):
            if edge.condition is None and out.kind is EdgeKind.BACK and out.loop == number:
                back.add(node)
            elif edge.condition is None and out.kind is EdgeKind.FORWARD and out.target in body:
                following[node].append(out.target)
    return bool(back & reach([header], following))


def _starts_inside(plan: Plan) -> Iterator[Finding]:
    shape = plan.topology
    headers = {loop.header for loop in shape.loops}
    for node in _entries(plan.definition):
        spec = shape.nodes[node]
        others = [edge for edge in shape.incoming[node] if _counts(edge)]
        if spec.loops and node not in headers:
            yield Finding(
                "entry-in-loop",
                Severity.HINT,
                plan.definition.id,
                node,
                f"The run starts in the middle of the loop that begins at "
                f"{shape.loops[spec.loops[0]].header!r}, which every further round begins with.",
                "Start at the beginning of the loop, if this is not meant.",
            )
        elif others and spec.join == "all":
            yield Finding(
                "entry-waits",
                Severity.HINT,
                plan.definition.id,
                node,
                f"This entry point does not run at the start: it waits for {others[0].source!r}, too.",
                'Give it join="any", or make it no entry point.',
            )


def _unbounded_maps(plan: Plan) -> Iterator[Finding]:
    for node, spec in plan.definition.nodes.items():
        if spec.map is not None and spec.map.concurrency is None:
            yield Finding(
                "map-without-bound",
                Severity.HINT,
                plan.definition.id,
                node,
                "All items of this map are at work at once, however long its list is.",
                "Give add_map a concurrency, if what the items call can't take that.",
            )


def _counts(edge: InEdge) -> bool:
    return edge.kind is not EdgeKind.BACK and edge.source != BEFORE_GRAPH


def _entries(definition: Definition) -> list[str]:
    first = [edge.target for edge in definition.edges if edge.source == BEFORE_GRAPH]
    return first or list(definition.entries)
