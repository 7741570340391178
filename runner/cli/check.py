"""`runner graphs check`: what may go wrong in graphs, before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.exits import Exit
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.cli.documents import FindingDocument
    from runner.findings import Finding


@click.command()
@click.argument("names", metavar="[GRAPH]...", nargs=-1)
@click.option("--strict", is_flag=True, help="Warnings count like errors.")
@shared
@pass_session
def check(session: Session, names: tuple[str, ...], strict: bool) -> int:  # noqa: FBT001 - click gives flags so
    """Look for mistakes in graphs of RUNNER_GRAPHS here, in all of them by default.

    Nothing is run, and no store is needed. The exit code is 1 when there are errors. Without a terminal,
    lines of tab-separated cells: severity, code, graph, node, message, advice.
    """
    from runner.registry import registry

    session.load_graphs()
    found = [finding for name in names or registry.names() for finding in _look(name)]
    if session.output.as_json:
        session.output.data({"findings": [_document(finding) for finding in found]})
    else:
        cells = [tuple(_document(finding).values()) for finding in found]
        headings = ("SEVERITY", "CODE", "GRAPH", "NODE", "WHAT", "WHAT TO DO")
        session.output.table(headings, cells, "Nothing was found.")
    bad = {"error", "warning"} if strict else {"error"}
    return Exit.RUN_FAILED if any(str(finding.severity) in bad for finding in found) else Exit.DONE


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
