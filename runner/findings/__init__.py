"""What may go wrong in a graph, found before it runs: nothing of the graph's own code is called.

A finding is a value. An error will fail or never end; a warning may; a hint is worth a thought. What
can't be seen in the source, as where a condition calls other functions, is not reported.
"""

from __future__ import annotations

from runner.findings import questions, reading, shape
from runner.findings.finding import Finding, Severity
from runner.graph import HIDDEN
from runner.registry import Plan

__all__ = ["Finding", "Severity", "check"]


def check(plan: Plan) -> list[Finding]:
    """Look at one graph, without the graphs inside it; the worst findings come first."""
    found = [*shape.findings(plan), *reading.findings(plan), *questions.findings(plan)]
    order = list(Severity)
    visible = [finding for finding in found if not finding.node.startswith(HIDDEN)]
    return sorted(visible, key=lambda finding: order.index(finding.severity))
