"""A message that could not be used, or a node that killed every worker it met."""

from __future__ import annotations

from typing import Literal

from runner.immutable import immutable
from runner.records.payloads import Payload


@immutable
class DeadLetter:
    """One dead letter. `at` is in ms; nodes have a `run_id`, messages a `body`."""

    id: str
    kind: Literal["message", "node"]
    at: int
    reason: Payload[str]
    source: str = ""
    body: Payload[bytes] = b""
    run_id: str = ""
    node: str = ""
    visit: int = 0
