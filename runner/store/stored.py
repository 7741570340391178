"""What both stores give out alike: copies in stored form, never the caller's own object, and replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pydantic_core

from runner.ports import Doorbell, Reply


def pack_copy(value: Any) -> Any:
    """Copy packed JSON data by writing and reading it, as a real store would."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return pydantic_core.from_json(pydantic_core.to_json(value))


def replied(word: str, doorbells: Sequence[Doorbell]) -> Reply:
    """Read a reply; a claim that is put off says by how many ms, a revoked one what may stop."""
    said, _, rest = word.partition(" ")
    if said == "revoked":
        return Reply(said, doorbells, reference=rest)
    return Reply(said, doorbells, delay_ms=int(rest or 0))


def reply_of(said: list[Any]) -> Reply:
    """Read what a script said: its word, then its doorbells."""
    return replied(said[0].decode(), doorbells_of(said))


def doorbells_of(said: list[Any]) -> list[Doorbell]:
    """Read the doorbells behind a script's word."""
    return [
        Doorbell(
            run.decode(), node.decode(), int(visit), int(attempt), queue.decode(), priority, graph.decode()
        )
        for run, node, visit, attempt, queue, priority, graph in said[1:]
    ]
