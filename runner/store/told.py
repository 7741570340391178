"""What events tell besides their kind: small JSON data, so that a stream stays small.

A longer value is left out; it is in the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner import codec
from runner.events import EventKind
from runner.interrupts import Answer, Interrupt
from runner.migrating import Migration
from runner.ports import Settlement
from runner.sizes import WIDEST

JSON = Any

SHORT = 1000
"""Bytes of a value that is told whole."""


def value(packed: JSON) -> JSON:
    """Give a value that is short enough, else None."""
    return packed if len(codec.dump_json(packed)) <= SHORT else None


def error(entry: Mapping[str, JSON] | None) -> JSON:
    """Tell why a visit failed, from its entry, cut where it is long; None where it says nothing."""
    found = (entry or {}).get("error")
    if not found:
        return None
    name = found["type"].rpartition(":")[2].rpartition(".")[2]
    text = f"{name}: {found['message']}"[:SHORT]
    while (over := len(codec.dump_json({"error": text})) - SHORT) > 0:
        text = text[: -max(1, over // WIDEST)]
    return {"error": text}


def settled(settlement: Settlement) -> dict[str, JSON]:
    """Tell how a visit ended, by the kind of event."""
    return {
        EventKind.NODE_COMPLETED: value(settlement.output),
        EventKind.NODE_FAILED: error(settlement.entry),
    }


def retried(entry: Mapping[str, JSON] | None) -> dict[str, JSON]:
    """Tell why a visit is tried again, by the kind of event."""
    return {EventKind.NODE_RETRYING: error(entry)}


def question(asked: Interrupt) -> JSON:
    """Tell what is asked and of whom."""
    said = {"name": asked.name, "assignees": asked.assignees, "reason": value(asked.reason)}
    return _whole({**said, "replaces": asked.replaces or None})


def answer(given: Answer) -> JSON:
    """Tell what was answered and by whom."""
    return _whole({"response": value(given.response), "responder": given.responder})


def migration(move: Migration) -> dict[str, JSON]:
    """Tell what a run was moved by, and its questions' older and newer names, by kind and by question."""
    moved = {new.id: {"from": old} for old, new in move.moved}
    asked: dict[str, JSON] = {each.id: question(each) for each in move.asked}
    return {EventKind.RUN_MIGRATED: move.told, **moved, **asked}


def _whole(data: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: part for name, part in data.items() if part is not None and part != []}
