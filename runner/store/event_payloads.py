"""The data of events: small JSON, so that a run's stream stays small.

A longer value is left out; it is in the run itself.
"""

from __future__ import annotations

from runner.approvals.ballots import Use
from runner.records import codec
from runner.records.codec import JSON
from runner.records.interrupts import Decision, Interrupt
from runner.records.migration import Migration
from runner.records.run import EventKind, VisitEntry
from runner.records.size_limits import WIDEST
from runner.store.interface import Settlement

SHORT = 1000
"""Bytes of a value that an event has in full."""


def value(json_value: JSON) -> JSON:
    """Return a value that is short enough, otherwise None."""
    return json_value if len(codec.dump_json(json_value)) <= SHORT else None


def error(entry: VisitEntry | None) -> JSON:
    """Return the error of a visit's entry, cut where it is long; None where there is none."""
    record = (entry or {}).get("error")
    if not record:
        return None
    name = record["type"].rpartition(":")[2].rpartition(".")[2]
    text = f"{name}: {record['message']}"[:SHORT]
    while (over := len(codec.dump_json({"error": text})) - SHORT) > 0:
        text = text[: -max(1, over // WIDEST)]
    return {"error": text}


def settled(settlement: Settlement) -> dict[str, JSON]:
    return {
        EventKind.NODE_COMPLETED: value(settlement.output),
        EventKind.NODE_FAILED: error(settlement.entry),
        **{use.interrupt_id: effect(use) for use in settlement.effects},
    }


def effect(use: Use) -> JSON:
    """Return what came of something that was approved, by its digest."""
    return {"key": use.key, "effect": use.effect, "result": use.result, "status": use.status}


def retried(entry: VisitEntry | None) -> dict[str, JSON]:
    return {EventKind.NODE_RETRYING: error(entry)}


def question(interrupt: Interrupt) -> JSON:
    """Return what is asked and of whom; parts that are empty are left out."""
    data = {
        "name": interrupt.name,
        "assignees": interrupt.assignees or None,
        "reason": value(interrupt.reason),
        "replaces": interrupt.replaces or None,
    }
    return codec.without_none(data)


def answer(answer: Decision) -> JSON:
    """Return what was answered and by whom; parts that are missing or long are left out."""
    data = {"response": value(answer.response), "responder": answer.responder}
    return codec.without_none(data)


def migration(move: Migration) -> dict[str, JSON]:
    """Return what changed for a run, by kind, and its questions' older and newer names, by question."""
    renames = {new_question.id: {"from": old_id} for old_id, new_question in move.moved}
    questions: dict[str, JSON] = {
        interrupt.id: question(interrupt) for interrupt in move.replacements
    }
    return {EventKind.RUN_MIGRATED: move.event_data, **renames, **questions}
