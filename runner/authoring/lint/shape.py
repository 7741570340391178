"""What nodes and edges alone show: nodes that never run, loops that never end, entries inside loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from runner.authoring import sources
from runner.authoring.lint.problem import Problem, Severity
from runner.definition.cycles import reach
from runner.definition.model import AFTER_GRAPH, BEFORE_GRAPH, Definition, EdgeKind, EdgeSpec, InEdge
from runner.definition.registry import Plan


def problems(plan: Plan) -> Iterator[Problem]:
    """Report what is wrong whatever the results of the nodes are."""
    yield from _never_taken(plan)
    yield from _never_run(plan)
    yield from _loops(plan)
    yield from _starts_inside(plan)
    yield from _unbounded_maps(plan)


def _never_taken(plan: Plan) -> Iterator[Problem]:
    for edge in plan.definition.edges:
        if _is_never(edge):
            yield Problem(
                "never-taken",
                Severity.WARNING,
                plan.definition.id,
                edge.source,
                f"The edge to {edge.target!r} is never taken: its condition never holds.",
                "Remove the edge, or fix the condition.",
            )


def _is_never(edge: EdgeSpec) -> bool:
    """Tell whether a condition can only return something false."""
    code = sources.tree(edge.condition) if edge.condition is not None else None
    if isinstance(code, ast.Lambda):
        return isinstance(code.body, ast.Constant) and not code.body.value
    if not isinstance(code, ast.FunctionDef):
        return False
    values = [part.value for part in ast.walk(code) if isinstance(part, ast.Return)]
    return all(value is None or (isinstance(value, ast.Constant) and not value.value) for value in values)


def _never_run(plan: Plan) -> Iterator[Problem]:
    """A back edge can't bring a node its first visit, nor can an edge that is never taken."""
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
    # The event after the graph becomes ready without an edge.
    for node in (node for node in plan.definition.nodes if node not in reached and node != AFTER_GRAPH):
        yield Problem(
            "never-runs",
            Severity.ERROR,
            plan.definition.id,
            node,
            "This node never runs: every edge to it is never taken, or leads back.",
            "Give it an edge that can be taken, make it an entry point, or remove it.",
        )


def _loops(plan: Plan) -> Iterator[Problem]:
    definition, shape = plan.definition, plan.topology
    limit = definition.max_node_executions or definition.execution_timeout
    for number, loop in enumerate(shape.loops):
        if _always_repeats(plan, number, loop.header):
            yield _endless(definition, loop.header, has_limit=bool(limit))
        elif not limit:
            yield Problem(
                "loop-without-limit",
                Severity.HINT,
                definition.id,
                loop.header,
                "The loop that begins here ends only when a condition ends it.",
                "Call set_max_node_executions or set_execution_timeout, so that it ends in any case.",
            )


def _endless(definition: Definition, header: str, *, has_limit: bool) -> Problem:
    message = "The loop that begins here has no exit: no condition can end it"
    if has_limit:
        advice = "Put a condition on the edge that leads back, or on one before it."
        return Problem(
            "loop-fails",
            Severity.WARNING,
            definition.id,
            header,
            f"{message}, so a run that reaches it fails.",
            advice,
        )
    advice = "Put a condition on the edge that leads back, and call set_max_node_executions."
    return Problem("endless-loop", Severity.ERROR, definition.id, header, f"{message}, and no limit.", advice)


def _always_repeats(plan: Plan, number: int, header: str) -> bool:
    """Tell whether edges without a condition lead all the way around a loop."""
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


def _starts_inside(plan: Plan) -> Iterator[Problem]:
    shape = plan.topology
    headers = {loop.header for loop in shape.loops}
    for node in _entries(plan.definition):
        spec = shape.nodes[node]
        others = [edge for edge in shape.incoming[node] if _counts(edge)]
        if spec.loops and node not in headers:
            yield Problem(
                "entry-in-loop",
                Severity.HINT,
                plan.definition.id,
                node,
                f"The run starts in the middle of the loop that begins at "
                f"{shape.loops[spec.loops[0]].header!r}, which every further round begins with.",
                "Start at the beginning of the loop, unless this is intended.",
            )
        elif others and spec.join == "all":
            yield Problem(
                "entry-waits",
                Severity.HINT,
                plan.definition.id,
                node,
                f"This entry point does not run at the start: it also waits for {others[0].source!r}.",
                'Give it join="any", or remove it from the entry points.',
            )


def _unbounded_maps(plan: Plan) -> Iterator[Problem]:
    for node, spec in plan.definition.nodes.items():
        if spec.map is not None and spec.map.concurrency is None:
            yield Problem(
                "map-without-bound",
                Severity.HINT,
                plan.definition.id,
                node,
                "All items of this map run at once, however long its list is.",
                "Set `concurrency` in add_map, unless what the items call can take that.",
            )


def _counts(edge: InEdge) -> bool:
    return edge.kind is not EdgeKind.BACK and edge.source != BEFORE_GRAPH


def _entries(definition: Definition) -> list[str]:
    first = [edge.target for edge in definition.edges if edge.source == BEFORE_GRAPH]
    return first or list(definition.entries)
