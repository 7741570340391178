"""`runner graphs check`: what may go wrong in graphs, before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.exits import CommandError, Exit
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.cli.documents import FindingDocument
    from runner.cli.forms import HeldForm
    from runner.cli.output import Output
    from runner.findings import Finding


@click.command()
@click.argument("names", metavar="[GRAPH]...", nargs=-1)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@click.option(
    "--against-waiting", "against", is_flag=True, help="Also ask the store whose runs would be held."
)
@shared
@pass_session
def check(session: Session, names: tuple[str, ...], *, strict: bool, against: bool) -> int:
    """Look for mistakes in graphs before they run.

    It looks at the graphs of RUNNER_GRAPHS as this folder has them: at all, or at those that are named.
    Nothing is run. With --against-waiting the runs of the store that wait or run are compared with the
    graphs here: which of their nodes would this code set aside, were it deployed now, and why? Without
    it, no store is needed.

    Without a terminal, lines of tab-separated cells: severity, code, graph, node, message, advice; for
    a node that would be set aside: held, run, graph, node, visit, status, reason. Exit codes: 1 there are
    errors; 2 there is no graph; 5 there are no errors, but a node would be set aside.
    """
    from runner.registry import registry

    session.load_graphs()
    wanted = names or tuple(registry.names())
    if not wanted:
        # A deploy must not pass because its settings are missing.
        raise CommandError(
            Exit.USAGE,
            "There is no graph here, so nothing was checked.",
            "Name the modules that have your graphs, with --graphs or in RUNNER_GRAPHS.",
        )
    found = [finding for name in wanted for finding in _look(name)]
    held = _held(session, wanted) if against else None
    _write(session.output, [_document(finding) for finding in found], held)
    bad = {"error", "warning"} if strict else {"error"}
    if any(str(finding.severity) in bad for finding in found):
        return Exit.RUN_FAILED
    return Exit.CONFLICT if held else Exit.DONE


def _write(output: Output, found: list[FindingDocument], held: list[HeldForm] | None) -> None:
    if output.as_json:
        output.data({"findings": found} if held is None else {"findings": found, "held": held})
        return
    headings = ("SEVERITY", "CODE", "GRAPH", "NODE", "WHAT", "WHAT TO DO")
    output.table(headings, [tuple(each.values()) for each in found], "Nothing was found.")
    if held is not None:
        rows = [("held", *each.values()) for each in held]
        named = ("", "RUN", "GRAPH", "NODE", "VISIT", "STATUS", "WHY")
        output.table(named, rows, "No node of a run would be set aside.")


def _held(session: Session, names: Sequence[str]) -> list[HeldForm]:
    """List what the graphs here would set aside; a graph that can't be built is told as a finding."""
    from runner.deploys import held
    from runner.registry import registry

    built = [name for name in names if not any(each.code == "not-built" for each in _look(name))]
    return [
        {
            "run_id": each.run_id,
            "graph": each.graph_id,
            "node": each.node,
            "visit": each.visit,
            "status": str(each.status),
            "reason": each.reason,
        }
        for each in held(session.client.engine.store, registry, built)
    ]


def _look(name: str) -> list[Finding]:
    """Check a graph and the graphs inside it; one that can't be built is a finding, too."""
    from runner.errors import DefinitionError
    from runner.findings import Finding, Severity, check
    from runner.registry import registry

    try:
        return [finding for plan in registry.family(name) for finding in check(plan)]
    except DefinitionError as error:
        advice = "Mend what the message names; no worker can run this graph."
        return [Finding("not-built", Severity.ERROR, name, "", str(error), advice)]


def _document(finding: Finding) -> FindingDocument:
    return {
        "severity": str(finding.severity),
        "code": finding.code,
        "graph": finding.graph,
        "node": finding.node,
        "message": finding.message,
        "advice": finding.advice,
    }
