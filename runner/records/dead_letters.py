"""A message that could not be used, or a node that killed every worker it met."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `at` is in ms of the store's clock; a node's has a run, a message's a body."""

    id: str
    kind: str
    at: int
    reason: str
    source: str = ""
    body: bytes = b""
    run_id: str = ""
    node: str = ""
    visit: int = 0
