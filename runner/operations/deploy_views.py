"""Views of `runner graphs check` and `runner runs migrate`.

Apart from `operations/views.py`: its records come from the linter, which imports agents, and from
migrations; the commands that list and show things need neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.authoring.lint import LintProblem, Severity, check
from runner.definition.registry import Registry
from runner.errors import DefinitionError
from runner.operations.deploys import AffectedNode, held
from runner.operations.migration_plan import NodeOutcome
from runner.store.interface import Store


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """The problems of `runner graphs check`, and with --against-waiting the nodes that would be held."""

    problems: tuple[LintProblem, ...]
    held: tuple[AffectedNode, ...] | None


def problems_of(registry: Registry, name: str) -> list[LintProblem]:
    """Check a graph and its inner graphs; a graph that can't be built is a problem, too."""
    try:
        return [problem for plan in registry.family(name) for problem in check(plan)]
    except DefinitionError as error:
        advice = "Fix what the message names; no worker can run this graph."
        return [LintProblem("not-built", Severity.ERROR, name, "", str(error), advice)]


def check_graphs(registry: Registry, names: Sequence[str], store: Store | None) -> GraphCheck:
    """Check graphs; with a store also the nodes that they would hold there."""
    problems = tuple(problem for name in names for problem in problems_of(registry, name))
    if store is None:
        return GraphCheck(problems, None)
    broken = {problem.graph for problem in problems if problem.code == "not-built"}
    built = [name for name in names if name not in broken]
    return GraphCheck(problems, tuple(held(store, registry, built)))


@dataclass(frozen=True, slots=True)
class MigratedRun:
    """A run and what became of its nodes; `error` says why it could not be moved, "" where it could."""

    run_id: str
    moved: bool
    error: str
    nodes: tuple[NodeOutcome, ...]
