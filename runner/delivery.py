"""What became of a doorbell, for whoever heard it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.failures import ErrorRecord
from runner.interrupts import Interrupt


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a doorbell: the store's word, and why the node waits or failed, when it does.

    `child` is the run that a node which is a graph waits for, `reference` names the work of another system
    that a node waits for, or that may stop; `retry_in` is in seconds.
    """

    word: str
    graph_id: str = ""
    interrupts: Sequence[Interrupt] = ()
    child: str = ""
    reference: str = ""
    error: ErrorRecord | None = None
    retry_in: float = 0.0
