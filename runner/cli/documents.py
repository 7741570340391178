"""The documents of `--json`: their keys are part of the public interface and only ever grow.

docs/reference/cli.md lists them, and a test holds the two equal. Times are RFC 3339 in UTC, null
when they have not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from runner.cli.output import stamp
from runner.cli.view import shown

if TYPE_CHECKING:
    from runner.cli.view import NodeView, RunView
    from runner.failures import ErrorRecord
    from runner.interrupts import Interrupt, Receipt
    from runner.listings import RunSummary
    from runner.ports import Event


class RunLine(TypedDict):
    """One run of a listing."""

    run_id: str
    graph: str
    status: str
    created_at: str | None
    tags: dict[str, str]


class ErrorDocument(TypedDict):
    """Why a node failed."""

    type: str
    message: str
    traceback: str


class InterruptDocument(TypedDict):
    """A question, and its answer when it has one."""

    id: str
    run_id: str
    node: str
    visit: int
    name: str
    scope: str
    reason: Any
    response_schema: dict[str, Any] | None
    assignees: list[str]
    status: str
    digest: str
    asked_at: str | None
    expires_at: str | None
    answered_at: str | None
    responder: str | None
    response: Any
    withdrawal: dict[str, Any] | None
    replaces: str
    on_expire: Any
    reminded: int


class NodeDocument(TypedDict):
    """One node's latest visit; `run` is the run of the graph that the node is, else null."""

    id: str
    status: str
    visit: int
    attempts: int
    execution_ms: int
    output: Any
    error: ErrorDocument | None
    run: RunDocument | None


class RunDocument(RunLine):
    """A whole run; `interrupts` are open, `size` is in bytes: both with the runs inside it."""

    ended_at: str | None
    reason: str
    task: Any
    nodes: list[NodeDocument]
    interrupts: list[InterruptDocument]
    execution_order: list[str]
    usage: dict[str, int]
    size: int


class ReceiptDocument(TypedDict):
    """What became of an answer."""

    status: str
    interrupt_id: str
    run_id: str | None
    detail: str


class WorkerDocument(TypedDict):
    """One worker; `state` is alive, stopping, hangs or gone, `graphs` are fingerprints by name."""

    name: str
    pid: int
    state: str
    busy: int
    slots: int
    pool: str
    queues: list[str]
    graphs: dict[str, str]
    events: bool
    version: str
    started_at: str | None
    seen_at: str | None


class LetterDocument(TypedDict):
    """One dead letter; a message has a source and a body, a node has a run."""

    id: str
    kind: str
    at: str | None
    reason: str
    source: str
    body: str
    run_id: str | None
    node: str | None
    visit: int | None


class EventDocument(TypedDict):
    """Something that happened in a run; `position` is what `--after` takes."""

    position: str
    kind: str
    at: str | None
    node: str
    visit: int
    detail: str
    data: Any


class GraphLine(TypedDict):
    """One graph of a listing: the fingerprint in the store, and the one of this folder."""

    name: str
    place: str
    fingerprint: str | None
    fingerprint_here: str | None


class GraphNode(TypedDict):
    """One node of a graph."""

    id: str
    kind: str
    join: str
    queue: str
    priority: int
    entry: bool


class GraphEdge(TypedDict):
    """One edge of a graph; `kind` is forward, exit (of a loop) or back."""

    source: str
    target: str
    kind: str
    condition: bool
    on_expire: bool


class GraphDocument(TypedDict):
    """A graph as this folder has it."""

    name: str
    fingerprint: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]


class FindingDocument(TypedDict):
    """One thing that `graphs check` found; `severity` is error, warning or hint."""

    severity: str
    code: str
    graph: str
    node: str
    message: str
    advice: str


class DrawingDocument(TypedDict):
    """A graph drawn in one of the formats; `run_id` is null where no run's states are shown."""

    name: str
    run_id: str | None
    format: str
    drawing: str


def event_document(event: Event) -> EventDocument:
    """Write an event."""
    return EventDocument(
        position=event.position,
        kind=str(event.kind),
        at=stamp(event.at),
        node=event.node,
        visit=event.visit,
        detail=event.detail,
        data=shown(event.data),
    )


def run_line(run: RunSummary) -> RunLine:
    """Write one run of a listing."""
    return RunLine(
        run_id=run.run_id,
        graph=run.graph_id,
        status=str(run.status),
        created_at=stamp(run.created_at),
        tags=dict(run.tags),
    )


def run_document(run: RunView) -> RunDocument:
    """Write a whole run."""
    return RunDocument(
        run_id=run.id,
        graph=run.graph,
        status=run.status,
        created_at=stamp(run.created_at),
        tags=run.tags,
        ended_at=stamp(run.ended_at),
        reason=run.reason,
        task=run.task,
        nodes=[node_document(node) for one in run.nodes for node in one.family()],
        interrupts=[interrupt_document(asked) for asked in run.questions()],
        execution_order=list(run.order),
        usage=run.usage,
        size=run.size,
    )


def node_document(node: NodeView) -> NodeDocument:
    """Write a node."""
    return NodeDocument(
        id=node.id,
        status=node.status,
        visit=node.visit,
        attempts=node.attempts,
        execution_ms=node.ms,
        output=node.output,
        error=error_document(node.error) if node.error else None,
        run=run_document(node.inner) if node.inner else None,
    )


def error_document(error: ErrorRecord) -> ErrorDocument:
    """Write why a node failed."""
    return ErrorDocument(type=error.name, message=error.message, traceback=error.traceback)


def interrupt_document(asked: Interrupt) -> InterruptDocument:
    """Write a question."""
    expires = asked.asked_at + round(asked.expires_in * 1000) if asked.expires_in else 0
    return InterruptDocument(
        id=asked.id,
        run_id=asked.run_id,
        node=asked.node_id,
        visit=asked.visit,
        name=asked.name,
        scope=asked.scope,
        reason=shown(asked.reason),
        response_schema=asked.response_schema,
        assignees=list(asked.assignees),
        status=str(asked.status),
        digest=asked.digest,
        asked_at=stamp(asked.asked_at),
        expires_at=stamp(expires),
        answered_at=stamp(asked.answered_at),
        responder=asked.responder,
        response=shown(asked.response),
        withdrawal=asked.withdrawal,
        replaces=asked.replaces,
        on_expire=shown(asked.on_expire),
        reminded=asked.reminded,
    )


def receipt_document(receipt: Receipt) -> ReceiptDocument:
    """Write a receipt."""
    return ReceiptDocument(
        status=str(receipt.status),
        interrupt_id=receipt.interrupt_id,
        run_id=receipt.run_id,
        detail=receipt.detail,
    )
