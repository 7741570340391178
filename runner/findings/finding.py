"""One thing that was found in a graph."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found at a node, and what to do about it. `code` never changes its meaning."""

    code: str
    severity: Severity
    graph: str
    node: str
    message: str
    advice: str
