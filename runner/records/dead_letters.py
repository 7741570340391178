"""A message that could not be used, or a node that killed every worker it met."""

from __future__ import annotations

from typing import Literal

from runner.immutable import immutable


@immutable
class DeadLetter:
    """One dead letter. `at` is in ms; nodes have a `run_id`, messages a `body`."""

    id: str
    kind: Literal["message", "node"]
    at: int
    reason: str
    source: str = ""
    body: bytes = b""
    run_id: str = ""
    node: str = ""
    visit: int = 0
