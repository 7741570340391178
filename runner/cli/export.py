"""A run as one document: all that the store keeps of it, for archives, reports and bug reports.

Like the documents of `--json`, its keys only ever grow in number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from runner import failures
from runner.cli.documents import (
    ErrorDocument,
    EventDocument,
    InterruptDocument,
    RunLine,
    error_document,
    event_document,
    interrupt_document,
)
from runner.cli.output import stamp
from runner.cli.view import all_events, shown

if TYPE_CHECKING:
    from runner.ports import RunSnapshot, Store

VERSION = 1


class VisitDocument(TypedDict):
    """What one visit of a node left behind; a visit that goes on has neither output nor error.

    `attempts` is known of the latest visit only, else null.
    """

    node: str
    visit: int
    status: str
    attempts: int | None
    execution_ms: int
    usage: dict[str, int]
    output: Any
    error: ErrorDocument | None


class ExportDocument(RunLine):
    """Everything about a run; `runs` are the child runs, in the same form.

    `signatures` has for each node what a deploy must leave as it is.
    """

    v: int
    ended_at: str | None
    reason: str
    fingerprint: str
    signatures: dict[str, str]
    parent: str | None
    parent_node: str | None
    root: str
    task: Any
    invocation_state: Any
    visits: list[VisitDocument]
    execution_order: list[str]
    interrupts: list[InterruptDocument]
    messages: dict[str, list[Any]]
    events: list[EventDocument]
    runs: list[ExportDocument]


def export_document(store: Store, run_id: str) -> ExportDocument | None:
    """Write a run whole; None where it is gone."""
    found = store.read(run_id)
    if found is None:
        return None
    record = found.record
    shape = store.topology(record.graph_id, record.fingerprint)
    inside = [export_document(store, child) for child in store.children(run_id)]
    return ExportDocument(
        v=VERSION,
        run_id=run_id,
        graph=record.graph_id,
        status=str(record.status),
        created_at=stamp(found.created_at),
        tags=dict(found.tags),
        ended_at=stamp(found.ended_at),
        reason=record.reason,
        fingerprint=record.fingerprint,
        signatures={name: node.signature for name, node in shape.nodes.items()} if shape else {},
        parent=record.parent or None,
        parent_node=record.parent_node or None,
        root=record.root,
        task=shown(found.task),
        invocation_state=shown(found.given),
        visits=_visits(found),
        execution_order=list(found.order),
        interrupts=[interrupt_document(asked) for asked in found.interrupts],
        messages={node: [shown(message) for message in said] for node, said in found.messages.items()},
        events=[event_document(event) for event in all_events(store, run_id)],
        runs=[child for child in inside if child is not None],
    )


def _visits(found: RunSnapshot) -> list[VisitDocument]:
    latest = {(name, record.visit) for name, record in found.nodes.items() if record.visit}
    return [_visit(found, name, visit) for name, visit in sorted({*found.entries, *latest})]


def _visit(found: RunSnapshot, name: str, visit: int) -> VisitDocument:
    record, entry = found.nodes.get(name), found.entries.get((name, visit)) or {}
    is_latest = record is not None and record.visit == visit
    return VisitDocument(
        node=name,
        visit=visit,
        status=str(record.status) if record and is_latest else "completed",
        attempts=record.attempt if record and is_latest else None,
        execution_ms=entry.get("ms", 0),
        usage=dict(entry.get("usage") or {}),
        output=found.outputs.get((name, visit)),
        error=error_document(failures.load(entry["error"])) if entry.get("error") else None,
    )
