"""What `runner graphs check` and `runner runs migrate` show.

Apart from `operations/views.py`: its records come from the linter, which imports agents, and from
migrations; the commands that list and show things need neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.authoring.lint import Problem
from runner.operations.deploys import AffectedNode
from runner.operations.migration_plan import NodeOutcome


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """The problems of `runner graphs check`, and with --against-waiting the nodes that would be held."""

    problems: tuple[Problem, ...]
    held: tuple[AffectedNode, ...] | None


@dataclass(frozen=True, slots=True)
class MigratedRun:
    """A run and what became of its nodes; `error` says why it could not be moved, "" where it could."""

    run_id: str
    moved: bool
    error: str
    nodes: tuple[NodeOutcome, ...]
