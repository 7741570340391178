"""What commands show: records of the library with packed data made plain, and with what follows from them.

Tables, trees, lines and JSON are forms of these views. Times are ms of the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from runner.cli.exits import CommandError, Exit
from runner.definition.model import item_id, map_of
from runner.execution.results import total_usage
from runner.records import codec, failures
from runner.records.interrupts import Interrupt
from runner.records.run import VisitEntry
from runner.store.interface import Event
from runner.store.redis.workers import Worker, WorkerRegistry

if TYPE_CHECKING:
    from runner.records.run import NodeRecord
    from runner.settings import Settings
    from runner.store.interface import RunSnapshot, Store

View = TypeVar("View")

STATUS_EVENTS = {"node.started", "node.waiting", "node.retrying"}
"""Events after which a node has a status that lasts."""

EXPORT_VERSION = 1


def view_of(kind: type[View], record: Any, **more: Any) -> View:
    """Make a view that has the fields of a record, and those in `more` besides or instead."""
    return kind(**{item.name: getattr(record, item.name) for item in fields(record)} | more)


def plain(packed: Any) -> Any:
    """Turn packed data into the plain JSON that people read: models as data, bytes as base64."""
    return codec.plain(codec.unpack(packed))


@dataclass(frozen=True, slots=True)
class Question(Interrupt):
    """An interrupt with plain data, and the time at which it expires (0: never)."""

    expires_at: int = 0


def question_of(interrupt: Interrupt) -> Question:
    """Make the view of an interrupt."""
    return view_of(
        Question,
        interrupt,
        reason=plain(interrupt.reason),
        response=plain(interrupt.response),
        on_expire=plain(interrupt.on_expire),
        expires_at=interrupt.asked_at + round(interrupt.expires_in * 1000) if interrupt.expires_in else 0,
    )


def event_of(event: Event) -> Event:
    """Make an event's data plain."""
    return replace(event, data=plain(event.data))


@dataclass(frozen=True, slots=True)
class WorkerView(Worker):
    """A worker with its state: alive, stopping, hangs or gone."""

    state: str = ""


@dataclass(frozen=True, slots=True)
class NodeError:
    """Why a node failed."""

    type: str
    message: str
    traceback: str
    summary: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node's latest visit; `since` is when it got its status, `execution_ms` how long its code ran.

    A map has `total` items, of which those that have begun are in `items`. `run` is the child run of a
    node that is a graph.
    """

    id: str
    status: str
    visit: int
    attempts: int
    since: int = 0
    execution_ms: int = 0
    output: Any = None
    error: NodeError | None = None
    progress: str = ""
    run: RunView | None = None
    total: int = 0
    items: tuple[NodeView, ...] = ()


@dataclass(frozen=True, slots=True)
class RunHead:
    """What every view of a run begins with."""

    run_id: str
    graph: str
    status: str
    created_at: int
    tags: dict[str, str]
    ended_at: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunView(RunHead):
    """A run with its nodes: in the order of the graph where this program has it, otherwise as they began.

    `interrupts` are the open ones and `size` is in bytes, both including child runs.
    """

    task: Any
    nodes: tuple[NodeView, ...]
    interrupts: tuple[Question, ...]
    execution_order: tuple[str, ...]
    usage: dict[str, int] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True, slots=True)
class VisitView:
    """One visit of a node. `attempts` is known of the latest visit only."""

    node: str
    visit: int
    status: str
    attempts: int | None
    execution_ms: int
    usage: dict[str, int]
    output: Any
    error: NodeError | None


@dataclass(frozen=True, slots=True)
class Export(RunHead):
    """Everything that the store keeps of a run; `runs` are the child runs in the same form.

    `signatures` has for each node what a deploy must leave unchanged for the node to resume.
    """

    v: int
    fingerprint: str
    signatures: dict[str, str]
    parent: str | None
    parent_node: str | None
    root: str
    task: Any
    invocation_state: Any
    visits: tuple[VisitView, ...]
    execution_order: tuple[str, ...]
    interrupts: tuple[Question, ...]
    messages: dict[str, list[Any]]
    events: tuple[Event, ...]
    runs: tuple[Export, ...]


# -- reading -----------------------------------------------------------------------------------------


def read_run(store: Store, run_id: str) -> RunView:
    """Read a run with its child runs.

    Raises:
        CommandError: there is no such run.
    """
    snapshot = _snapshot(store, run_id)
    events: dict[str, list[Event]] = {}
    for event in all_events(store, run_id):
        events.setdefault(event.node, []).append(event)
    nodes = tuple(_node(store, snapshot, name, events) for name in _in_order(snapshot, events))
    return RunView(
        **_head(snapshot),
        task=plain(snapshot.task),
        nodes=nodes,
        interrupts=tuple(_open_questions(snapshot, nodes)),
        execution_order=tuple(snapshot.order),
        usage=total_usage(snapshot.entries.values()),
        size=snapshot.size,
    )


def read_workers(settings: Settings) -> list[WorkerView]:
    """Read the workers of a store."""
    roster = WorkerRegistry(settings.redis_url, settings.namespace)
    now = roster.now()
    return [view_of(WorkerView, worker, state=worker.state_at(now)) for worker in roster.all()]


def all_events(store: Store, run_id: str) -> list[Event]:
    """Read all events of a run that are still stored, in order."""
    batch = store.events(run_id)
    events = list(batch)
    while batch and (batch := store.events(run_id, batch[-1].position)):
        events += batch
    return events


def with_items(nodes: Iterable[NodeView]) -> Iterator[NodeView]:
    """List the nodes, each map followed by its items."""
    for node in nodes:
        yield node
        yield from node.items


def _snapshot(store: Store, run_id: str) -> RunSnapshot:
    snapshot = store.read(run_id)
    if snapshot is None:
        raise CommandError(
            Exit.NOT_FOUND,
            f"There is no run {run_id!r} in this store; finished runs are deleted after RUNNER_RETENTION.",
            "`runner runs list` lists the runs of this store.",
        )
    return snapshot


def _head(snapshot: RunSnapshot) -> dict[str, Any]:
    record = snapshot.record
    return {
        "run_id": record.run_id,
        "graph": record.graph_id,
        "status": str(record.status),
        "created_at": snapshot.created_at,
        "tags": dict(snapshot.tags),
        "ended_at": snapshot.ended_at,
        "reason": record.reason,
    }


def _in_order(snapshot: RunSnapshot, begun: Iterable[str]) -> list[str]:
    # Where this program has the graph, nodes that have not begun are shown as well.
    from runner.definition.registry import registry

    plan = registry.find(snapshot.record.graph_id)
    if plan is not None and plan.topology.fingerprint == snapshot.record.fingerprint:
        return list(plan.definition.nodes)
    names = {name for name in snapshot.nodes if not map_of(name)}
    first = [name for name in begun if name in names]
    return [*first, *sorted(names - set(first))]


def _node(store: Store, snapshot: RunSnapshot, name: str, events: Mapping[str, Sequence[Event]]) -> NodeView:
    record = snapshot.nodes.get(name)
    if record is None:
        return NodeView(name, "pending", 0, 0)
    entry = snapshot.entries.get((name, record.visit)) or {}
    of_visit = [event for event in events.get(name, ()) if event.visit == record.visit]
    items = [item for item in _begun_items(snapshot, name, record.visit) if item in snapshot.nodes]
    return NodeView(
        id=name,
        status=str(record.status),
        visit=record.visit,
        attempts=record.attempt,
        since=max(
            (event.at for event in of_visit if event.kind in STATUS_EVENTS), default=snapshot.created_at
        ),
        execution_ms=entry.get("ms", 0),
        output=snapshot.outputs.get((name, record.visit)),
        error=_error(entry),
        progress=_progress(of_visit),
        run=read_run(store, record.child) if record.child else None,
        total=snapshot.maps[name].total if items else 0,
        items=tuple(_node(store, snapshot, item, events) for item in items),
    )


def _begun_items(snapshot: RunSnapshot, name: str, visit: int) -> Iterator[str]:
    record = snapshot.maps.get(name)
    if record is not None and record.visit == visit:
        yield from (item_id(name, index) for index in range(record.next))


def _open_questions(snapshot: RunSnapshot, nodes: Iterable[NodeView]) -> Iterator[Question]:
    questions: dict[str, list[Question]] = {}
    for interrupt in snapshot.interrupts:
        if interrupt.is_open:
            questions.setdefault(interrupt.node_id, []).append(question_of(interrupt))
    for node in with_items(nodes):
        yield from questions.get(node.id, ())
        if node.run is not None:
            yield from node.run.interrupts


def _error(entry: VisitEntry) -> NodeError | None:
    if not entry.get("error"):
        return None
    error = failures.load(entry["error"])
    return NodeError(error.name, error.message, error.traceback, str(error))


def _progress(events: Sequence[Event]) -> str:
    last = next((event for event in reversed(events) if event.kind == "progress"), None)
    if last is None or not isinstance(last.data, dict):
        return ""
    return f"{last.data.get('fraction', 0):.0%} {last.data.get('note', '')}".strip()


# -- export ------------------------------------------------------------------------------------------


def read_export(store: Store, run_id: str) -> Export:
    """Read everything that the store keeps of a run and its child runs.

    Raises:
        CommandError: there is no such run.
    """
    snapshot = _snapshot(store, run_id)
    record = snapshot.record
    topology = store.topology(record.graph_id, record.fingerprint)
    return Export(
        v=EXPORT_VERSION,
        **_head(snapshot),
        fingerprint=record.fingerprint,
        signatures={name: node.signature for name, node in topology.nodes.items()} if topology else {},
        parent=record.parent or None,
        parent_node=record.parent_node or None,
        root=record.root,
        task=plain(snapshot.task),
        invocation_state=plain(snapshot.invocation_state),
        visits=tuple(_visits(snapshot)),
        execution_order=tuple(snapshot.order),
        interrupts=tuple(question_of(interrupt) for interrupt in snapshot.interrupts),
        messages={node: [plain(message) for message in own] for node, own in snapshot.messages.items()},
        events=tuple(event_of(event) for event in all_events(store, run_id)),
        runs=tuple(read_export(store, child) for child in store.children(run_id) if store.peek(child)),
    )


def _visits(snapshot: RunSnapshot) -> Iterator[VisitView]:
    latest = {(name, record.visit) for name, record in snapshot.nodes.items() if record.visit}
    for name, visit in sorted({*snapshot.entries, *latest}):
        record: NodeRecord | None = snapshot.nodes.get(name)
        entry = snapshot.entries.get((name, visit)) or {}
        is_latest = record is not None and record.visit == visit
        yield VisitView(
            node=name,
            visit=visit,
            status=str(record.status) if record and is_latest else "completed",
            attempts=record.attempt if record and is_latest else None,
            execution_ms=entry.get("ms", 0),
            usage=dict(entry.get("usage") or {}),
            output=snapshot.outputs.get((name, visit)),
            error=_error(entry),
        )
