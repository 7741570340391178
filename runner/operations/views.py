"""Views of commands and pages: records with packed data made plain, and with derived values.

Tables, trees, lines and JSON are forms of these views. Times are ms of the store's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from runner.approvals.freezes import frozen
from runner.approvals.rules import plain_name
from runner.definition.model import UNDO, item_id, map_of, shape_name
from runner.definition.registry import registry
from runner.errors import NotFoundError
from runner.execution.results import sink_outputs, total_usage
from runner.immutable import immutable
from runner.limits.limit import input_key
from runner.limits.setting import LimitSetting
from runner.operations.decided import DecisionView, decisions_of
from runner.operations.exports import (
    NodeError,
    Question,
    RunHead,
    all_events,
    error_of,
    head_of,
    node_status,
    plain,
    question_view,
    undo_of,
    view_of,
)
from runner.records.budgets import MICROS, QUESTION, Sum
from runner.records.codec import JSONMapping
from runner.records.interrupts import Interrupt, InterruptStatus
from runner.records.json_form import JSON_NAMES, is_time, milliseconds, stamp
from runner.records.listings import grouped
from runner.records.payloads import Payload
from runner.records.run import EventKind, NodeRecord, Status, existing
from runner.records.workers import Worker
from runner.store.interface import Event, RunSnapshot, Store

if TYPE_CHECKING:
    from runner.store.shared import Shared

STATUS_EVENTS = {"node.started", "node.waiting", "node.retrying", "node.held"}
"""Events after which a node has a status that lasts."""

CHANGED = "its graph has changed since the run began; `runner runs migrate` moves the run"


@immutable
class WorkerView(Worker):
    """A worker with its state: alive, stopping, hangs or gone."""

    state: str = ""


@immutable
class NodeView:
    """A node's latest visit; `since` is when it got its status, `execution_ms` how long its code ran.

    A map has `total` items, and `items` holds those that have begun; its `execution_ms` is the time
    from the first of them to the end. `run` is the child run of a node that is a graph. `waits_for`
    is the id of another node's question, whose answer it waits for, or names the Celery task that
    it has sent: "task shop.charge on queue shop". `worker` is the worker that has run it last;
    `skipped` is the operator who gave its output, so that it didn't run, `hold` the one who holds it.
    """

    id: str
    status: Status
    visit: int
    attempts: int
    since: int = 0
    execution_ms: int = 0
    output: Payload[Any] = None
    error: NodeError | None = None
    progress: Payload[str] = ""
    waits_for: str = ""
    run: RunView | None = None
    total: int = 0
    items: tuple[NodeView, ...] = ()
    worker: str = ""
    skipped: str = ""
    hold: str = ""

    @property
    def wait(self) -> str:
        """The task or question that it waits for, as a phrase; "" for none."""
        answer = "" if self.waits_for.startswith("task ") else "the answer to "
        return self.waits_for and f"waits for {answer}{self.waits_for}"


@immutable
class RunView(RunHead):
    """A run with its nodes, in the graph's order if this program has it, otherwise as they began.

    `output` is a completed run's last node's output, or its last nodes' outputs by id; an archived
    run has none. `interrupts` are the open questions, `decided` the closed ones, and `size` is in
    bytes, all including child runs; an `archived` run, which the store no longer has, only has
    `decided`. `spent` is the agents' spending on budgets per run, counted for the outermost run; a cost
    is in millionths. `frozen` says why its nodes may not run, if they are frozen. `requester` is the
    principal who asked for it, `on_behalf_of` the principals for whom.
    """

    task: Payload[Any]
    nodes: tuple[NodeView, ...]
    interrupts: tuple[Question, ...]
    execution_order: tuple[str, ...]
    decided: tuple[DecisionView, ...] = ()
    output: Payload[Any] = None
    usage: dict[str, int] = field(default_factory=dict)
    size: int = 0
    archived: bool = False
    spent: dict[str, Sum] = field(default_factory=dict)
    frozen: str = ""
    requester: str = ""
    on_behalf_of: tuple[str, ...] = ()


@immutable
class StartedRun:
    """A run that was started."""

    run_id: str
    graph: str
    status: Status


@immutable
class RunStatus:
    """A run and its status; "removed" for a run that was removed."""

    run_id: str
    status: Status | Literal["removed"]


@immutable
class RetriedRun:
    """A run that was retried, and the nodes that run again."""

    run_id: str
    nodes: list[str]


@immutable
class BackfilledRun:
    """A run of a backfill."""

    run_id: str


# -- reading -----------------------------------------------------------------------------------------


def read_run(store: Store, run_id: str) -> RunView:
    """Read a run with its child runs.

    Raises:
        NotFoundError: the run doesn't exist.
    """
    snapshot = existing(store.read(run_id), run_id)
    requester = store.requester(run_id) or {}
    all_of_run = all_events(store, run_id)
    events = grouped(all_of_run, attrgetter("node"))
    graph = snapshot.record.graph_id, snapshot.record.fingerprint
    nodes = tuple(
        _node(store, snapshot, name, events)
        for name in _in_order(graph, snapshot.nodes, events)
    )
    head = head_of(snapshot)
    head["reason"] = head["reason"] or "; ".join(_reasons_held(nodes, events))
    return RunView(
        **head,
        task=plain(snapshot.task),
        nodes=nodes,
        interrupts=tuple(_open_questions(store, snapshot, nodes)),
        execution_order=tuple(snapshot.order),
        decided=(*decisions_of(snapshot.interrupts, all_of_run), *_decided_inside(nodes)),
        usage=total_usage(snapshot.entries.values()),
        output=plain(sink_outputs(snapshot))
        if snapshot.record.status is Status.COMPLETED
        else None,
        size=snapshot.size,
        spent=store.spent(run_id),
        frozen=""
        if snapshot.record.is_final
        else _frozen(store, snapshot.record.graph_id, events),
        requester=requester.get("principal", ""),
        on_behalf_of=tuple(requester.get("on_behalf_of", ())),
    )


def _frozen(store: Store, graph: str, events: Mapping[str, Sequence[Event]]) -> str:
    freezes = store.frozen()
    freeze = frozen(freezes, graph, names=registry.names_on(graph)) if freezes else None
    if freeze is not None or not freezes:
        return str(freeze or "")
    reasons = {_frozen_node(of_node) for of_node in events.values()}
    return next((text for text in map(str, freezes.values()) if text in reasons), "")


def _frozen_node(events: Sequence[Event]) -> object:
    """Return the reason of the freeze that a node met since its last start; None if it met none."""
    wait = _latest(events, "node.started", "node.frozen")
    return wait.data.get("reason") if wait is not None and isinstance(wait.data, dict) else None


def _latest(events: Sequence[Event], *kinds: str) -> Event | None:
    """Return the last event whose kind begins with one of `kinds`."""
    return next((event for event in reversed(events) if event.kind.startswith(kinds)), None)


def _reasons_held(
    nodes: Iterable[NodeView], events: Mapping[str, Sequence[Event]]
) -> Iterator[str]:
    """Describe which nodes are held, and why."""
    for node in with_items(nodes):
        if node.status == Status.HELD:
            hold = _latest(events.get(node.id, ()), "node.held")
            data = hold.data if hold and isinstance(hold.data, dict) else {}
            reason = (node.run and node.run.reason) or data.get(
                "error", data.get("reason", "" if node.hold else CHANGED)
            )
            by = f" by {plain_name(node.hold)}" if node.hold else ""
            by += f" since {stamp(hold.at)}" if by and hold else ""
            yield f"{node.id} is held{by}: {reason}".removesuffix(": ")


def read_workers(shared: Shared) -> list[WorkerView]:
    """Read the workers of a store."""
    now = shared.workers.now()
    return [
        view_of(WorkerView, worker, state=worker.state_at(now))
        for worker in shared.workers.all()
    ]


def spendings(spent: Mapping[str, Sum]) -> Iterator[tuple[str, str]]:
    """Describe the agents' spending: the counter, and the amount with its bound, if any."""
    for counter, total in spent.items():
        scale = MICROS if counter == "cost" else 1
        of = f" of {(total.bound + total.raised) / scale:,.9g}" if total.bound else ""
        yield counter, f"{total.spent / scale:,.9g}{of}"


def with_items(nodes: Iterable[NodeView]) -> Iterator[NodeView]:
    """List the nodes, each map followed by its items."""
    for node in nodes:
        yield node
        yield from node.items


def _in_order(record: tuple[str, str], names: Iterable[str], begun: Iterable[str]) -> list[str]:
    """Order nodes as the graph does, `record` being its name and fingerprint; else as they began."""
    # If this program has the graph, nodes that have not begun are shown as well.
    graph, fingerprint = record
    plan = registry.find(graph)
    if plan is not None and plan.topology.fingerprint == fingerprint:
        return list(plan.definition.nodes)
    outer = {name for name in names if not map_of(name) and name != UNDO}
    outer_names = [name for name in begun if name in outer]
    return [*outer_names, *sorted(outer - set(outer_names))]


def _node(
    store: Store, snapshot: RunSnapshot, name: str, events: Mapping[str, Sequence[Event]]
) -> NodeView:
    record = snapshot.nodes.get(name)
    if record is None:
        return NodeView(name, Status.PENDING, 0, 0)
    entry = snapshot.entries.get((name, record.visit)) or {}
    of_visit = [event for event in events.get(name, ()) if event.visit == record.visit]
    items = [
        item for item in _begun_items(snapshot, name, record.visit) if item in snapshot.nodes
    ]
    created_at = snapshot.created_at
    ran = entry.get("ms", 0)
    return NodeView(
        id=name,
        status=node_status(record),
        visit=record.visit,
        attempts=record.attempt,
        since=_since(of_visit, created_at),
        execution_ms=_took(of_visit, created_at, ran) if items else ran,
        output=snapshot.outputs.get((name, record.visit)),
        error=error_of(entry),
        progress=_limited(store, snapshot, name, of_visit)
        if record.status is Status.READY
        else _progress(of_visit),
        waits_for=_external_task(record, of_visit)
        or _awaited_question(store, snapshot, record),
        run=read_run(store, record.child) if record.child else None,
        total=snapshot.maps[name].total if items else 0,
        items=tuple(_node(store, snapshot, item, events) for item in items),
        worker=record.worker,
        skipped=entry.get("skipped", ""),
        hold=record.hold,
    )


@immutable
class _Keys:
    """The values of a run by which limits count; not for the items of a map."""

    store: Store
    snapshot: RunSnapshot

    def limit_setting(self, name: str) -> LimitSetting | None:
        setting = self.store.limit_settings().get(name)
        clock = self.store.clock
        now = clock() if clock else time.time_ns() // 1_000_000
        return setting.at_time(now) if setting else None

    def tag(self, name: str) -> str:
        return (self.store.read(self.snapshot.record.root) or self.snapshot).tags.get(name, "")

    def input_key(self, node: str, visit: int, path: str) -> str | None:  # noqa: ARG002 - as a claim does
        return None if map_of(node) else input_key(self.snapshot.task, path)


def _since(events: Sequence[Event], created_at: int) -> int:
    """Return when a visit got its status; without its events, when the run was created."""
    return max(
        (event.at for event in events if event.kind in STATUS_EVENTS), default=created_at
    )


def _took(events: Sequence[Event], created_at: int, execution_ms: int) -> int:
    """Return the time in ms from the beginning of a map's items to its end."""
    begin = _latest(events, "node.expanded")
    end = _latest(events, "node.completed", "node.failed")
    return end.at - (begin.at if begin else created_at) if end else execution_ms


def _limited(store: Store, snapshot: RunSnapshot, name: str, events: Sequence[Event]) -> str:
    """Describe the limits that a ready node waits for, and when their pause ends; "" if it doesn't wait."""
    latest = _latest(events, "node.")
    record = snapshot.record
    topology = store.topology(record.graph_id, record.fingerprint)
    if latest is None or latest.kind != EventKind.NODE_LIMITED or topology is None:
        return ""
    keys = _Keys(store, snapshot)
    limits = topology.nodes[shape_name(name)].limits
    for limit in limits:
        setting = keys.limit_setting(limit.name)
        key = limit.key(keys, name, latest.visit)
        pause = setting.pause_of(limit.name if key is None else key) if setting else None
        if pause is not None:
            owner = "" if pause.key == limit.name else "its key of "
            end = f"until {stamp(pause.ends_at)}" if pause.ends_at else "until it is resumed"
            why = f": {pause.reason}" if pause.reason else ""
            return f"{owner}the limit {limit.name!r} is paused {end}{why}"
    return f"waits for the limit {' or '.join(repr(limit.name) for limit in limits)}"


def _external_task(record: NodeRecord, events: Sequence[Event]) -> str:
    if not record.handed or record.status is not Status.WAITING:
        return ""
    sent = _latest(events, "node.")
    return sent.detail if sent and sent.kind == "node.waiting" else ""


def _awaited_question(store: Store, snapshot: RunSnapshot, record: NodeRecord) -> str:
    """Find another visit's open question about a budget that this node uses, too."""
    if not record.awaits or record.status is not Status.WAITING:
        return ""
    run_id, visit, node = record.awaits.split(" ", 2)
    questions: Iterable[Interrupt | None] = snapshot.interrupts
    if run_id != snapshot.record.run_id:
        try:
            ((asker, _, _),) = store.fetch(run_id, [node])
        except NotFoundError:
            return ""
        questions = store.interrupts(asker.questions)
    return next(
        (
            question.id
            for question in questions
            if question is not None and question.is_open and question.name.startswith(QUESTION)
            if (question.node_id, question.visit) == (node, int(visit))
        ),
        "",
    )


def _begun_items(snapshot: RunSnapshot, name: str, visit: int) -> Iterator[str]:
    record = snapshot.maps.get(name)
    if record is not None and record.visit == visit:
        yield from (item_id(name, index) for index in range(record.next))


def _open_questions(
    store: Store, snapshot: RunSnapshot, nodes: Iterable[NodeView]
) -> Iterator[Question]:
    interrupts = [interrupt for interrupt in snapshot.interrupts if interrupt.is_open]
    ids = [interrupt.id for interrupt in interrupts if (interrupt.rule or {}).get("undo")]
    undos = dict(zip(ids, map(undo_of, store.standings(ids) if ids else ()), strict=True))
    questions = grouped(
        (
            question_view(Question, interrupt, undo=undos.get(interrupt.id))
            for interrupt in interrupts
        ),
        attrgetter("node_id"),
    )
    for node in with_items(nodes):
        yield from questions.get(node.id, ())
        if node.run is not None:
            yield from node.run.interrupts


def _decided_inside(nodes: Iterable[NodeView]) -> Iterator[DecisionView]:
    for node in with_items(nodes):
        if node.run is not None:
            yield from node.run.decided


def _progress(events: Sequence[Event]) -> str:
    latest = _latest(events, "node.")
    if latest and latest.kind == "node.retrying" and "reason" in (latest.data or {}):
        due = stamp(latest.at + int(latest.detail))
        return f"waits until {due}: {latest.data['reason']}"
    progress = _latest(events, "progress")
    if progress is None or not isinstance(progress.data, dict):
        return ""
    return f"{progress.data.get('fraction', 0):.0%} {progress.data.get('note', '')}".strip()


# -- archived runs -----------------------------------------------------------------------------------


def archived_run(document: JSONMapping) -> RunView:
    """Make the view of a run from its archived export (JSON)."""
    every = [Event(**event | {"at": milliseconds(event["at"])}) for event in document["events"]]
    events = grouped(every, attrgetter("node"))
    names = _in_order((document["graph"], document["fingerprint"]), document["nodes"], events)
    nodes = tuple(_archived_node(document, name, events) for name in names)
    questions = map(_archived_question, document["interrupts"])
    return RunView(
        run_id=document["run_id"],
        graph=document["graph"],
        status=Status(document["status"]),
        created_at=milliseconds(document["created_at"]),
        tags=document["tags"],
        ended_at=milliseconds(document["ended_at"]),
        reason=document["reason"],
        task=document["task"],
        nodes=nodes,
        interrupts=(),
        execution_order=tuple(document["execution_order"]),
        decided=(*decisions_of(questions, every), *_decided_inside(nodes)),
        usage=total_usage(document["visits"]),
        archived=True,
    )


def _archived_question(saved: JSONMapping) -> Question:
    values: dict[str, Any] = {"status": InterruptStatus(saved["status"])}
    for name in (item.name for item in fields(Question)):
        value = saved.get(JSON_NAMES.get(name, name))
        if name != "status":
            values[name] = milliseconds(value) if is_time(name) else value
    return Question(**values)


def _archived_node(
    document: JSONMapping, name: str, events: Mapping[str, Sequence[Event]]
) -> NodeView:
    state = document["nodes"].get(name)
    if state is None:
        return NodeView(name, Status.PENDING, 0, 0)
    number = state["visit"]
    visits = [
        visit
        for visit in document["visits"]
        if (visit["node"], visit["visit"]) == (name, number)
    ]
    visit: JSONMapping = (
        visits[0] if visits else {"execution_ms": 0, "output": None, "error": None}
    )
    of_visit = [event for event in events.get(name, ()) if event.visit == number]
    children = {run["run_id"]: run for run in document["runs"]}
    items = [
        item
        for item in map(partial(item_id, name), range(state["items"]))
        if item in document["nodes"]
    ]
    created_at = milliseconds(document["created_at"])
    ran = visit["execution_ms"]
    return NodeView(
        id=name,
        status=Status(state["status"]),
        visit=number,
        attempts=state["attempts"],
        since=_since(of_visit, created_at),
        execution_ms=_took(of_visit, created_at, ran) if items else ran,
        output=visit["output"],
        error=NodeError(**visit["error"]) if visit["error"] else None,
        progress=_progress(of_visit),
        run=archived_run(children[state["run"]]) if state["run"] in children else None,
        total=state["items"],
        items=tuple(_archived_node(document, item, events) for item in items),
        worker=state.get("worker", ""),
        skipped=visit.get("skipped", ""),
    )
