"""A problem as a value: what the terminal and the JSON of `graphs check` show."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """How bad a problem is, the most severe first."""

    ERROR = "error"
    WARNING = "warning"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at a node, and how to fix it; `code` is stable, so scripts may rely on it."""

    code: str
    severity: Severity
    graph: str
    node: str
    message: str
    advice: str
