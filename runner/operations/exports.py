"""Exports: all that the store keeps about a run, as one document for people and programs.

Packed data are made plain: models as data, bytes as base64. Times are ms of the store's clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, TypeVar

from runner.approvals.ballots import Standing
from runner.immutable import immutable
from runner.records import codec, failures
from runner.records.codec import JSONObject
from runner.records.interrupts import Interrupt, title_of
from runner.records.payloads import Hidden, Payload
from runner.records.run import SETTLED, NodeRecord, Status, VisitEntry, existing
from runner.store.interface import Event, RunSnapshot, Store

View = TypeVar("View")

EXPORT_VERSION = 1

Title = Annotated[str, Hidden(attrgetter("name"))]
"""The action in a sentence; without payloads, the name of the question."""


def view_of(kind: type[View], record: Any, **extra_fields: Any) -> View:
    """Make a view with the fields of a record, and with `extra_fields` in addition or instead."""
    return kind(
        **{name: getattr(record, name) for name in _names(record.__class__)} | extra_fields
    )


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def plain(packed_value: Any) -> Any:
    """Turn packed data into the plain JSON that people read: models as data, bytes as base64."""
    return codec.plain(codec.unpack(packed_value))


@immutable
class Undo:
    """A decision that the principal `by` may take back until `ends_at` (ms): its effect begins only then."""

    decision: str
    by: str
    ends_at: int


def undo_of(standing: Standing) -> Undo | None:
    """Return the decision of a question that can still be taken back; None if there is none."""
    pending = standing.pending
    return Undo(pending.answer.decision, pending.by, pending.until) if pending else None


@immutable
class Question(Interrupt):
    """An interrupt with plain data, its subject in a sentence, and its expiry time (0: never).

    `undo` is the decision of an open question, while it can be taken back.
    """

    title: Title = ""
    expires_at: int = 0
    undo: Undo | None = None


def question_of(interrupt: Interrupt) -> Question:
    """Make the view of an interrupt."""
    return question_view(Question, interrupt)


def question_view(kind: type[View], interrupt: Interrupt, **extra_fields: Any) -> View:
    """Make a view with all fields of `Question`, and more."""
    return view_of(
        kind,
        interrupt,
        reason=plain(interrupt.reason),
        response=plain(interrupt.response),
        on_expire=plain(interrupt.on_expire),
        title=title_of(interrupt),
        expires_at=interrupt.ends_at,
        **extra_fields,
    )


def event_of(event: Event) -> Event:
    """Make an event's data plain."""
    return replace(event, data=plain(event.data))


FRAME = re.compile(r'^[ |]*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
"""A frame of a traceback: file, line, function."""

INSTALLED = re.compile(r"[/\\](?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*)[/\\]|^<frozen")
"""The files of packages and of Python itself, which are not the user's code."""


@immutable
class NodeError:
    """Why a node failed; `location` is the line of the user's code that raised, or called code that did."""

    type: str
    message: Payload[str]
    traceback: Payload[str]
    summary: Annotated[str, Hidden(attrgetter("type"))]
    location: Payload[str] = ""


@immutable
class RunHead:
    """First fields of every view of a run."""

    run_id: str
    graph: str
    status: Status
    created_at: int
    tags: dict[str, str]
    ended_at: int
    reason: Payload[str]


@immutable
class VisitView:
    """One visit of a node. `attempts` is known only for the latest visit; for `skipped` see `NodeView`."""

    node: str
    visit: int
    status: Status
    attempts: int | None
    execution_ms: int
    usage: dict[str, int]
    output: Any
    error: NodeError | None
    skipped: str = ""


@immutable
class NodeState:
    """State of a node: its latest visit, the number of a map's `items`, a graph's child run, its worker."""

    status: Status
    visit: int
    attempts: int
    items: int
    run: str | None
    worker: str = ""


@immutable
class Export(RunHead):
    """All that the store keeps about a run; `runs` are the child runs in the same form.

    `nodes` has each node that began, was skipped or cancelled; `signatures` has for each node the
    declaration that a deploy must not change if the node is to resume.
    """

    v: int
    fingerprint: str
    signatures: dict[str, str]
    parent: str | None
    parent_node: str | None
    root: str
    task: Any
    invocation_state: Any
    nodes: dict[str, NodeState]
    visits: tuple[VisitView, ...]
    execution_order: tuple[str, ...]
    interrupts: tuple[Question, ...]
    messages: dict[str, list[Any]]
    events: tuple[Event, ...]
    runs: tuple[Export, ...]


def read_export(store: Store, run_id: str) -> Export:
    """Read all that the store keeps about a run and its child runs.

    Raises:
        NotFoundError: the run doesn't exist.
    """
    snapshot = existing(store.read(run_id, messages=True), run_id)
    record = snapshot.record
    topology = store.topology(record.graph_id, record.fingerprint)
    return Export(
        v=EXPORT_VERSION,
        **head_of(snapshot),
        fingerprint=record.fingerprint,
        signatures={name: node.signature for name, node in topology.nodes.items()}
        if topology
        else {},
        parent=record.parent or None,
        parent_node=record.parent_node or None,
        root=record.root,
        task=plain(snapshot.task),
        invocation_state=plain(snapshot.invocation_state),
        nodes=_states(snapshot),
        visits=tuple(_visits(snapshot)),
        execution_order=tuple(snapshot.order),
        interrupts=tuple(question_of(interrupt) for interrupt in snapshot.interrupts),
        messages={
            node: [plain(message) for message in messages]
            for node, messages in snapshot.messages.items()
        },
        events=tuple(event_of(event) for event in all_events(store, run_id)),
        runs=tuple(
            read_export(store, child) for child in store.children(run_id) if store.peek(child)
        ),
    )


def node_status(record: NodeRecord) -> Status:
    """Return a node's status as people see it: "held" from an operator's hold until the node settles."""
    is_held = record.held or (record.hold and record.status not in SETTLED)
    return Status.HELD if is_held else record.status


def _states(snapshot: RunSnapshot) -> dict[str, NodeState]:
    return {
        name: NodeState(
            node_status(record),
            record.visit,
            record.attempt,
            snapshot.maps[name].total if name in snapshot.maps else 0,
            record.child or None,
            record.worker,
        )
        for name, record in snapshot.nodes.items()
    }


def _visits(snapshot: RunSnapshot) -> Iterator[VisitView]:
    latest = {(name, record.visit) for name, record in snapshot.nodes.items() if record.visit}
    for name, visit in sorted({*snapshot.entries, *latest}):
        record: NodeRecord | None = snapshot.nodes.get(name)
        entry = snapshot.entries.get((name, visit)) or {}
        is_latest = record is not None and record.visit == visit
        yield VisitView(
            node=name,
            visit=visit,
            status=node_status(record) if record and is_latest else Status.COMPLETED,
            attempts=record.attempt if record and is_latest else None,
            execution_ms=entry.get("ms", 0),
            usage=dict(entry.get("usage") or {}),
            output=snapshot.outputs.get((name, visit)),
            error=error_of(entry),
            skipped=entry.get("skipped", ""),
        )


def head_of(snapshot: RunSnapshot) -> JSONObject:
    record = snapshot.record
    return {
        "run_id": record.run_id,
        "graph": record.graph_id,
        "status": record.status.shown,
        "created_at": snapshot.created_at,
        "tags": dict(snapshot.tags),
        "ended_at": snapshot.ended_at,
        "reason": record.reason,
    }


def error_of(entry: VisitEntry) -> NodeError | None:
    if not entry.get("error"):
        return None
    error = failures.load(entry["error"])
    frames = [
        frame for frame in FRAME.findall(error.traceback) if not INSTALLED.search(frame[0])
    ]
    location = "{}:{} in {}".format(*frames[-1]) if frames else ""
    return NodeError(error.name, error.message, error.traceback, str(error), location)


def all_events(store: Store, run_id: str) -> list[Event]:
    """Read all events of a run that are still stored, in order."""
    batch = store.events(run_id)
    events = list(batch)
    while batch and (batch := store.events(run_id, batch[-1].position)):
        events += batch
    return events
