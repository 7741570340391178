"""Questions that accept any answer, and questions whose answer changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.agent import Agent
from runner.agent.subagent import SubagentTool
from runner.agent.tools import FunctionTool
from runner.authoring import sources
from runner.authoring.lint.problem import Problem, Severity
from runner.definition.cycles import reach
from runner.definition.model import HIDDEN
from runner.definition.registry import Plan
from runner.execution.functions import FunctionNode


def problems(plan: Plan) -> Iterator[Problem]:
    """Report the questions of a graph's functions and tools that accept any answer, or lead nowhere."""
    yield from _without_effect(plan)
    for node, spec in plan.definition.nodes.items():
        for owner, function in _functions(spec.executor):
            for question in _unchecked(function):
                yield Problem(
                    "question-without-schema",
                    Severity.WARNING,
                    plan.definition.id,
                    node,
                    f"The question {question}{owner} takes any answer, even one that the code can't use.",
                    "Give interrupt() a response_schema: an answer that does not fit is refused at the door.",
                )


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


def _unchecked(function: Callable[..., Any]) -> Iterator[str]:
    for call in _questions(function):
        options = {keyword.arg for keyword in call.keywords}
        if not options & {"response_schema", None}:  # None is **options, which may hold a schema
            yield repr(_name(call))


def _questions(function: Callable[..., Any]) -> Iterator[ast.Call]:
    code = sources.tree(function)
    for part in ast.walk(code) if code is not None else ():
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr == "interrupt"
        ):
            yield part


def _without_effect(plan: Plan) -> Iterator[Problem]:
    """Report a node that asks and has no edge, beside nodes that run whatever the answer is.

    Several reviewers at the end of a graph are no mistake, so nodes that ask are not counted as such others.
    """
    nodes = {node: spec for node, spec in plan.definition.nodes.items() if not node.startswith(HIDDEN)}
    asking = {
        node
        for node, spec in nodes.items()
        if any(any(_questions(function)) for _, function in _functions(spec.executor))
    }
    before: dict[str, list[str]] = {node: [] for node in plan.definition.nodes}
    for edge in plan.definition.edges:
        before[edge.target].append(edge.source)
    for node in asking:
        leads_on = any(not edge.on_expire for edge in plan.edges[node])
        others = [other for other in nodes if other not in asking | reach([node], before)]
        if others and not leads_on:
            yield Problem(
                "answer-without-effect",
                Severity.WARNING,
                plan.definition.id,
                node,
                f"This node asks a person, and no edge leads from it: {', '.join(map(repr, others))} "
                f"{'runs' if len(others) == 1 else 'run'} whatever the answer is.",
                "Add the edges from this node to those that depend on the answer.",
            )


def _name(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ast.unparse(first) if first else "…"
