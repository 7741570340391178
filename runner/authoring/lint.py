"""Static analysis of a graph: it reports likely mistakes without calling the graph's code, except
the functions that return the rules of approvals.

An error fails a run or lets it run forever, a warning may do so, a hint is a reminder. Problems
that the source doesn't show, as in a condition that calls other functions, are not reported: a
false alarm costs trust.
"""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.agent import Agent
from runner.agent.subagent import SubagentTool
from runner.agent.tools import AgentTool, FunctionTool, typed_arguments, whole_arguments
from runner.approvals import titles
from runner.approvals.policies import CallContext, Policy
from runner.authoring import sources
from runner.authoring.drawing.diagram import entries
from runner.authoring.drawing.layout import layers
from runner.definition.cycles import reach
from runner.definition.model import (
    BEFORE_GRAPH,
    HIDDEN,
    EdgeKind,
    EdgeSpec,
    FailurePolicy,
    Join,
)
from runner.definition.registry import CompiledGraph, tools_of
from runner.errors import UsageError
from runner.execution.functions import FunctionNode
from runner.immutable import immutable
from runner.records.codec import JSON, JSONMapping, JSONObject


class Severity(enum.StrEnum):
    """Severity of a problem, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


SEVERITIES = {
    "never-runs": Severity.ERROR,
    "endless-loop": Severity.ERROR,
    "unknown-node": Severity.ERROR,
    "never-taken": Severity.WARNING,
    "loop-fails": Severity.WARNING,
    "missing-result": Severity.WARNING,
    "missing-input": Severity.WARNING,
    "question-without-schema": Severity.WARNING,
    "answer-without-effect": Severity.WARNING,
    "policy-fails": Severity.WARNING,
    "task-without-timeout": Severity.WARNING,
    "loop-without-limit": Severity.HINT,
    "entry-in-loop": Severity.HINT,
    "entry-waits": Severity.HINT,
    "map-without-bound": Severity.HINT,
    "decision-unchecked": Severity.HINT,
    "rule-of-the-store": Severity.HINT,
    "id-by-position": Severity.HINT,
}
"""Severities by the problem's code, which is stable."""

Finding = tuple[str, str, str, str]
"""A problem's code, node, message and advice."""

Findings = Iterator[Finding]


@immutable
class LintProblem:
    """A mistake at a node, and how to fix it; `code` is stable, so scripts may rely on it."""

    code: str
    severity: Severity
    graph: str
    node: str
    message: str
    advice: str


def check(plan: CompiledGraph) -> list[LintProblem]:
    """List the problems of one graph, without the graphs inside it, the most severe first."""
    problems = [
        LintProblem(code, SEVERITIES[code], plan.definition.id, node, message, advice)
        for rule in RULES
        for code, node, message, advice in rule(plan)
        if not node.startswith(HIDDEN)
    ]
    order = list(Severity)
    return sorted(problems, key=lambda problem: order.index(problem.severity))


# -- nodes and edges ---------------------------------------------------------------------------------


def _numbered(plan: CompiledGraph) -> Findings:
    for node in plan.definition.nodes:
        if re.fullmatch(r"node_\d+", node):
            message = "Its function has no name, so it is called by its position."
            yield "id-by-position", node, message, "Give add_node an id."


def _never_taken(plan: CompiledGraph) -> Findings:
    for edge in plan.definition.edges:
        if _is_never(edge):
            message = f"The edge to {edge.target!r} is never taken: its condition never holds."
            yield "never-taken", edge.source, message, "Remove the edge, or fix the condition."


def _is_never(edge: EdgeSpec) -> bool:
    """Return whether a condition can only return a false value."""
    code = sources.tree(edge.condition) if edge.condition is not None else None
    if isinstance(code, ast.Lambda):
        return isinstance(code.body, ast.Constant) and not code.body.value
    if not isinstance(code, ast.FunctionDef):
        return False
    values = [
        statement.value for statement in ast.walk(code) if isinstance(statement, ast.Return)
    ]
    return all(
        value is None or (isinstance(value, ast.Constant) and not value.value)
        for value in values
    )


def _never_run(plan: CompiledGraph) -> Findings:
    """Report nodes reached only by back edges and edges never taken: they get no first visit."""
    shape = plan.topology
    following: dict[str, list[str]] = {
        source: [
            out.target
            for edge, out in zip(edges, shape.outgoing[source], strict=True)
            if out.kind is not EdgeKind.BACK and not _is_never(edge)
        ]
        for source, edges in plan.edges.items()
    }
    reachable = reach(shape.entries, following)
    # The event after the graph and the undos become ready without an edge.
    for node in (
        node
        for node in plan.definition.nodes
        if node not in reachable and not node.startswith(HIDDEN)
    ):
        message = "This node never runs: every edge to it is never taken, or leads back."
        advice = "Give it an edge that can be taken, make it an entry point, or remove it."
        yield "never-runs", node, message, advice


def is_endless(plan: CompiledGraph) -> bool:
    """Return whether a loop has neither an exit nor a limit, so that only an error or a cancel ends it."""
    return any(code == "endless-loop" for code, *_ in _loops(plan))


def _loops(plan: CompiledGraph) -> Findings:
    definition = plan.definition
    limit = definition.max_node_executions or definition.execution_timeout
    no_exit = "The loop that begins here has no exit: no condition can end it"
    for number, loop in enumerate(plan.topology.loops):
        if not _always_repeats(plan, number, loop.header):
            if not limit:
                message = "The loop that begins here ends only when a condition ends it."
                advice = "Call set_max_node_executions or set_execution_timeout, so that it ends in any case."
                yield "loop-without-limit", loop.header, message, advice
        elif limit:
            advice = "Put a condition on the edge that leads back, or on one before it."
            yield (
                "loop-fails",
                loop.header,
                f"{no_exit}, so a run that reaches it fails.",
                advice,
            )
        else:
            advice = (
                "Put a condition on the edge that leads back, and call set_max_node_executions."
            )
            yield "endless-loop", loop.header, f"{no_exit}, and no limit.", advice


def _always_repeats(plan: CompiledGraph, number: int, header: str) -> bool:
    """Return whether edges without a condition lead all the way around a loop."""
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


def _starts_inside(plan: CompiledGraph) -> Findings:
    shape = plan.topology
    headers = {loop.header for loop in shape.loops}
    for node in entries(plan.definition):
        spec = shape.nodes[node]
        edges = [
            edge
            for edge in shape.incoming[node]
            if edge.kind is not EdgeKind.BACK and edge.source != BEFORE_GRAPH
        ]
        if spec.loops and node not in headers:
            message = (
                "The run starts in the middle of the loop that begins at "
                f"{shape.loops[spec.loops[0]].header!r}, which every further round begins with."
            )
            yield (
                "entry-in-loop",
                node,
                message,
                "Start at the beginning of the loop, unless this is intended.",
            )
        elif edges and spec.join == "all":
            message = f"This entry point does not run at the start: it also waits for {edges[0].source!r}."
            yield (
                "entry-waits",
                node,
                message,
                'Give it join="any", or remove it from the entry points.',
            )


def _unbounded_maps(plan: CompiledGraph) -> Findings:
    for node, spec in plan.definition.nodes.items():
        if spec.map is not None and spec.map.concurrency is None:
            message = "All items of this map run at once, however long its list is."
            advice = "Set `concurrency` in add_map, unless the services that items call can take that."
            yield "map-without-bound", node, message, advice


def _endless_tasks(plan: CompiledGraph) -> Findings:
    for node, spec in plan.definition.nodes.items():
        if spec.kind == "celery" and not (spec.timeout or plan.definition.node_timeout):
            message = "This Celery task has no timeout: if no worker serves its queue, it waits forever."
            yield "task-without-timeout", node, message, "Set `timeout` in add_node."


# -- reads of conditions and functions: `results["x"]` and `inputs["x"]` may be missing
# ----------------

READ = ("results", "inputs")

GUARDS = (*READ, "completed_nodes", "failed_nodes")


@immutable
class Reads:
    """The node ids in code: those `needed` without a check for a result, and all `named`."""

    needed: frozenset[str]
    named: frozenset[str]


def _missing_results(plan: CompiledGraph) -> Findings:
    conditional = [
        (edge, _reads(edge.condition)) for edge in plan.definition.edges if edge.condition
    ]
    if not any(reads.named for _, reads in conditional):
        return
    earlier = _always_before(plan)
    nodes = {node for node in plan.definition.nodes if not node.startswith(HIDDEN)}
    for edge, reads in conditional:
        condition = f"The condition of the edge to {edge.target!r} reads"
        for node in sorted(reads.named - nodes):
            message = f"{condition} the result of {node!r}, which isn't a node of this graph."
            names = f"{', '.join(sorted(nodes)[:8])}{' …' if len(nodes) > 8 else ''}"
            yield "unknown-node", edge.source, message, f"Use one of its nodes: {names}."
        certain = earlier.get(edge.source, nodes) - _running_again(plan, edge.source) | {
            edge.source
        }
        for node in sorted(reads.needed & nodes - certain):
            message = (
                f"{condition} results[{node!r}], and {node!r} may not have completed when {edge.source!r} "
                "has. Then the branch fails with a KeyError."
            )
            advice = (
                f"Check `{node!r} in state.results` first, or add an edge from {node!r} to "
                f"{edge.source!r}."
            )
            yield "missing-result", edge.source, message, advice


def _missing_inputs(plan: CompiledGraph) -> Findings:
    for node, spec in plan.definition.nodes.items():
        if not isinstance(spec.executor, FunctionNode) or spec.map:
            continue
        upstream = {edge.source for edge in plan.definition.edges if edge.target == node}
        for name in sorted(_reads(spec.executor.function).needed - upstream):
            message = f"This node reads inputs[{name!r}], and no edge leads to it from {name!r}: it fails."
            advice = f"Add the edge from {name!r} to {node!r}, or correct the name."
            yield "missing-input", node, message, advice


def _running_again(plan: CompiledGraph, source: str) -> set[str]:
    """Return nodes of loops that may repeat while a later `source` runs: they lose their result.

    If both the exit and the back edge have conditions, these are assumed to exclude each other.
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
    for syntax_node in ast.walk(code):
        role, key = _role(syntax_node, state)
        node = _text(key, outside) if key is not None else None
        if node is not None:
            roles[role].add(node)
    catches = any(isinstance(syntax_node, ast.Try) for syntax_node in ast.walk(code))
    needed_keys = set() if catches else roles["needed"] - roles["guarded"]
    return Reads(frozenset(needed_keys), frozenset(set().union(*roles.values())))


def _role(syntax_node: ast.AST, state: str) -> tuple[str, ast.expr | None]:
    """Classify code as a read that needs the result, a read that doesn't, or a check for it."""
    match syntax_node:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id=name), attr=attribute), slice=key
        ) if attribute in READ:
            return "needed", key if name == state else None
        case ast.Call(
            func=ast.Attribute(
                value=ast.Attribute(value=ast.Name(id=name), attr=attribute), attr="get"
            ),
            args=[key, *_],
        ) if attribute in READ:
            return "named", key if name == state else None
        case ast.Compare(
            left=key, comparators=[ast.Attribute(value=ast.Name(id=name), attr=attribute)]
        ):
            return "guarded", key if name == state and attribute in GUARDS else None
    return "", None


def _text(key: ast.expr, outside: Mapping[str, object]) -> str | None:
    """Return a text constant, or the text that a name holds outside the condition."""
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


def _always_before(plan: CompiledGraph) -> dict[str, set[str]]:
    """Work out, for each node, which nodes have certainly completed when it starts.

    An edge is certain if it is taken in every run: it has no condition, its source always runs, and
    a failed source ends the run. After join="all", the nodes before any certain edge have
    completed, and the nodes that are before all edges; after join="any", only the latter.
    """
    shape = plan.topology
    nodes = list(plan.definition.nodes)
    stops = plan.definition.policy is FailurePolicy.FAIL_FAST
    forward = {
        node: [edge for edge in incoming if edge.kind is not EdgeKind.BACK]
        for node, incoming in shape.incoming.items()
    }
    pairs = dict.fromkeys((edge.source, node) for node in forward for edge in forward[node])
    earlier: dict[str, set[str]] = {}
    always = set(shape.entries)
    for node in itertools.chain(*layers(nodes, list(pairs))):
        brings = [earlier[edge.source] | {edge.source} for edge in forward[node]]
        certain = [
            stops
            and edge.source in always
            and plan.edges[edge.source][edge.position].condition is None
            for edge in forward[node]
        ]
        if any(certain):
            always.add(node)
        is_shared = brings and node not in shape.entries
        earlier[node] = set.intersection(*brings) if is_shared else set()
        if shape.nodes[node].join is not Join.ANY:
            earlier[node].update(*itertools.compress(brings, certain))
    return earlier


# -- questions ---------------------------------------------------------------------------------------


def _without_effect(plan: CompiledGraph) -> Findings:
    """Report a node that asks and has no edge, beside nodes that run whatever the answer is.

    Several reviewers at the end of a graph are fine, so nodes that ask don't count as others.
    """
    nodes = {
        node: spec
        for node, spec in plan.definition.nodes.items()
        if not node.startswith(HIDDEN)
    }
    asking = {
        node for node, spec in nodes.items() if any(_calls_in(spec.executor, "interrupt"))
    }
    feeders: dict[str, list[str]] = {node: [] for node in plan.definition.nodes}
    for edge in plan.definition.edges:
        feeders[edge.target].append(edge.source)
    for node in asking:
        leads_on = any(not edge.on_expire for edge in plan.edges[node])
        other_nodes = [
            candidate for candidate in nodes if candidate not in asking | reach([node], feeders)
        ]
        if other_nodes and not leads_on:
            message = (
                f"This node asks a person, and no edge leads from it: {', '.join(map(repr, other_nodes))} "
                f"{'runs' if len(other_nodes) == 1 else 'run'} whatever the answer is."
            )
            advice = "Add the edges from this node to those that depend on the answer."
            yield "answer-without-effect", node, message, advice


def _unchecked_answers(plan: CompiledGraph) -> Findings:
    for node, spec in plan.definition.nodes.items():
        for owner, call in _calls_in(spec.executor, "interrupt"):
            if _keywords(call) & {"response_schema", "rule", None}:
                continue  # None is **options, which may hold a schema; a rule defines the decisions
            message = (
                f"The question {_name(call)!r}{owner} takes any answer, even an answer that the code "
                "can't use."
            )
            advice = (
                "Give interrupt() a response_schema: an answer that does not fit is refused."
            )
            yield "question-without-schema", node, message, advice


def _unchecked_decisions(plan: CompiledGraph) -> Findings:
    """Report functions after a question with a rule that rely only on its recorded output."""
    nodes = plan.definition.nodes
    for edge in plan.definition.edges:
        target = nodes[edge.target]
        names = [
            _name(call)
            for _, call in _calls_in(nodes[edge.source].executor, "interrupt")
            if "rule" in _keywords(call)
        ]
        checks = target.approval is not None or any(_calls_in(target.executor, "approved"))
        if not names or checks or not any(_functions(target.executor)):
            continue
        message = (
            f"This node relies on {edge.source!r}'s output for the decision on {names[0]!r}, and does not "
            "check the decision itself: anyone who can write to the store can change that output."
        )
        advice = (
            f"Before the approved action, call ctx.approved({names[0]!r}, action, rule=...)."
        )
        yield "decision-unchecked", edge.target, message, advice


def _believed_rules(plan: CompiledGraph) -> Findings:
    """Report functions that check a decision without a rule: their nodes are held."""
    for node, spec in plan.definition.nodes.items():
        for owner, call in _calls_in(spec.executor, "approved"):
            if _keywords(call) & {"rule", None}:
                continue  # None is **options, which may hold a rule
            approved_node = plan.definition.nodes.get(_name(call))
            if approved_node is not None and approved_node.approval is not None:
                continue
            message = (
                f"ctx.approved({_name(call)!r}){owner} names no rule: its node is held, since anyone who can "
                "write to the store can weaken the stored rule."
            )
            advice = "Pass rule=, the same as to the interrupt() that asked."
            yield "rule-of-the-store", node, message, advice


def _failing_policies(plan: CompiledGraph) -> Findings:
    """Report policies that fail for arguments that their tool's schema gives as examples."""
    for node, spec in plan.definition.nodes.items():
        for tool in tools_of(spec.executor):
            policy = getattr(tool, "approval", None)
            if not isinstance(policy, Policy):
                continue
            for args in _examples(tool):
                try:
                    rule = policy.rule(args, CallContext(tool.tool_name, "", node, 1))
                    titles.check_names(rule.title if rule else "", args, tool.tool_name)
                except Exception as error:  # noqa: BLE001 - a user's policy may raise anything
                    message = (
                        f"The policy {policy.name} of the tool {tool.tool_name!r} fails for "
                        f"{dict(args)!r:.200}: {type(error).__name__}: {error}. A call for which it fails is "
                        "not made."
                    )
                    advice = "Return a Rule or None for all arguments that the schema allows."
                    yield "policy-fails", node, message, advice
                    break


SAMPLES: JSONObject = {"string": "text", "integer": 1, "number": 1.5, "boolean": True}
"""A value of each plain type, for arguments without an example, default or enumeration."""


def _sample(schema: JSONMapping) -> JSON:
    kinds = (schema_part.get("type") for schema_part in (schema, *schema.get("anyOf", ())))
    return next((SAMPLES[kind] for kind in kinds if kind in SAMPLES), None)


def _examples(tool: AgentTool) -> Iterator[JSONMapping]:
    """Yield example arguments from a tool's schema, as a policy gets them."""
    schema: JSONMapping = tool.tool_spec.get("inputSchema", {}).get("json", {})
    properties = schema.get("properties", {})
    choices = {
        name: [
            *argument_schema.get("examples", ()),
            *argument_schema.get("enum", ()),
            *([argument_schema["default"]] if "default" in argument_schema else ()),
        ]
        or [_sample(argument_schema)]
        for name, argument_schema in properties.items()
    }
    longest = max((len(values) for values in choices.values()), default=1)
    columns = (
        itertools.islice(itertools.cycle(values), longest) for values in choices.values()
    )
    rows = (dict(zip(choices, row, strict=True)) for row in zip(*columns, strict=True))
    for args in (*schema.get("examples", ()), *rows):
        try:
            yield typed_arguments(tool, whole_arguments(tool, args))
        except (ValueError, UsageError):
            continue  # not a valid call


def _keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}


def _functions(executor: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    if isinstance(executor, FunctionNode):
        yield "", executor.function
    elif isinstance(executor, Agent):
        yield from _of_tools(executor.config.tools)


def _of_tools(tools: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, tool in tools.items():
        if isinstance(tool, FunctionTool):
            yield f" of the tool {name!r}", tool.function
        elif isinstance(tool, SubagentTool):
            yield from _of_tools(tool.config.tools)


def _calls_in(executor: object, name: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield a method's calls in an executor's functions, each with its owner (" of the tool …")."""
    for owner, function in _functions(executor):
        code = sources.tree(function)
        for syntax_node in ast.walk(code) if code is not None else ():
            match syntax_node:
                case ast.Call(func=ast.Attribute(attr=called)) if called == name:
                    yield owner, syntax_node


def _name(call: ast.Call) -> str:
    argument = call.args[0] if call.args else None
    return (
        str(argument.value)
        if isinstance(argument, ast.Constant)
        else ast.unparse(argument)
        if argument
        else "…"
    )


RULES: tuple[Callable[[CompiledGraph], Findings], ...] = (
    _numbered,
    _never_taken,
    _never_run,
    _loops,
    _starts_inside,
    _unbounded_maps,
    _endless_tasks,
    _missing_results,
    _missing_inputs,
    _without_effect,
    _unchecked_answers,
    _unchecked_decisions,
    _believed_rules,
    _failing_policies,
)
