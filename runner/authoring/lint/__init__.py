"""Static analysis of a graph: what may go wrong, reported without calling any of the graph's code.

An error fails a run or never ends it, a warning may, a hint is a reminder. What the source doesn't
show, as in a condition that calls other functions, is not reported: a false alarm costs trust.
"""

from __future__ import annotations

from runner.authoring.lint import conditions, questions, shape
from runner.authoring.lint.problem import Problem, Severity
from runner.definition.model import HIDDEN
from runner.definition.registry import Plan

__all__ = ["Problem", "Severity", "check"]


def check(plan: Plan) -> list[Problem]:
    """List the problems of one graph, without the graphs inside it, the most severe first."""
    reported = [*shape.problems(plan), *conditions.problems(plan), *questions.problems(plan)]
    order = list(Severity)
    visible = [problem for problem in reported if not problem.node.startswith(HIDDEN)]
    return sorted(visible, key=lambda problem: order.index(problem.severity))
