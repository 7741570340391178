"""Questions without a response schema: any answer would wake the node, also one it can't use."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner import sources
from runner.agent import Agent
from runner.agent.inner import InnerAgent
from runner.agent.tools import FunctionTool
from runner.findings.finding import Finding, Severity
from runner.functions import FunctionNode
from runner.registry import Plan


def findings(plan: Plan) -> Iterator[Finding]:
    """Look at the functions and tools of a graph."""
    for node, spec in plan.definition.nodes.items():
        for owner, function in _functions(spec.executor):
            for question in _unchecked(function):
                yield Finding(
                    "question-without-schema",
                    Severity.WARNING,
                    plan.definition.id,
                    node,
                    f"The question {question}{owner} takes any answer, also one that the code can't use.",
                    "Give interrupt() a response_schema: an answer that does not fit is refused at the door.",
                )


def _functions(executor: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    if isinstance(executor, FunctionNode):
        yield "", executor.function
    elif isinstance(executor, Agent):
        yield from _of_tools(executor.recipe.tools)


def _of_tools(tools: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, tool in tools.items():
        if isinstance(tool, FunctionTool):
            yield f" of the tool {name!r}", tool.function
        elif isinstance(tool, InnerAgent):
            yield from _of_tools(tool.recipe.tools)


def _unchecked(function: Callable[..., Any]) -> Iterator[str]:
    code = sources.tree(function)
    for part in ast.walk(code) if code is not None else ():
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr == "interrupt"
        ):
            given = {keyword.arg for keyword in part.keywords}
            if not given & {"response_schema", None}:  # None stands for **options, which may hold one
                yield repr(_name(part))


def _name(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ast.unparse(first) if first else "…"
