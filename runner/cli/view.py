"""A run as people look at it: nodes in order, what each does, since when, and whom it waits for.

Read from the store in one go and then never changed; the tree, the plain lines and the JSON are
three forms of it. Times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runner import codec, failures
from runner.cli.exits import CommandError, Exit
from runner.maps import item_id, map_of

if TYPE_CHECKING:
    from runner.failures import ErrorRecord
    from runner.interrupts import Interrupt
    from runner.ports import Event, RunSnapshot, Store
    from runner.run import NodeRecord

BEGINS = {"node.started", "node.waiting", "node.retrying"}


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node's latest visit; `since` is when it got into its status, `ms` how long its code ran.

    A map has `total` items, those that have begun in `items`.
    """

    id: str
    status: str
    visit: int
    attempts: int
    since: int = 0
    ms: int = 0
    output: Any = None
    error: ErrorRecord | None = None
    progress: str = ""
    questions: tuple[Interrupt, ...] = ()
    inner: RunView | None = None
    total: int = 0
    items: tuple[NodeView, ...] = ()

    def family(self) -> Iterator[NodeView]:
        """Give the node, and a map's items after it."""
        yield self
        yield from self.items


@dataclass(frozen=True, slots=True)
class RunView:
    """A run and its nodes, in the order of the graph where it is known, else as they began."""

    id: str
    graph: str
    status: str
    reason: str
    created_at: int
    ended_at: int
    task: Any
    tags: dict[str, str]
    order: tuple[str, ...]
    nodes: tuple[NodeView, ...]
    usage: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def questions(self) -> Iterator[Interrupt]:
        """Give the open questions, those of graphs inside this one included."""
        for node in (each for one in self.nodes for each in one.family()):
            yield from node.questions
            if node.inner is not None:
                yield from node.inner.questions()


def read_run(store: Store, run_id: str) -> RunView:
    """Look at a run.

    Raises:
        CommandError: there is no such run.
    """
    snapshot = store.read(run_id)
    if snapshot is None:
        raise CommandError(
            Exit.NOT_FOUND,
            f"There is no run {run_id!r} in this store; finished runs are removed after RUNNER_RETENTION.",
            "`runner runs list` shows the runs that are kept.",
        )
    history = all_events(store, run_id)
    own: dict[str, list[Event]] = {}
    for event in history:
        own.setdefault(event.node, []).append(event)
    return RunView(
        id=run_id,
        graph=snapshot.record.graph_id,
        status=str(snapshot.record.status),
        reason=snapshot.record.reason,
        created_at=snapshot.created_at,
        ended_at=snapshot.ended_at,
        task=shown(snapshot.task),
        tags=dict(snapshot.tags),
        order=tuple(snapshot.order),
        nodes=tuple(_node(store, snapshot, name, own) for name in _in_order(snapshot, own)),
        usage=_usage(snapshot),
        size=snapshot.size,
    )


def all_events(store: Store, run_id: str) -> list[Event]:
    """Read the events of a run that are kept, in order."""
    found = store.events(run_id)
    history = list(found)
    while found and (found := store.events(run_id, found[-1].position)):
        history += found
    return history


def _in_order(snapshot: RunSnapshot, seen: Iterable[str]) -> list[str]:
    """The graph's own order where this program has the graph: then nodes still to come show, too."""
    from runner.registry import registry

    plan = registry.find(snapshot.record.graph_id)
    if plan is not None and plan.topology.fingerprint == snapshot.record.fingerprint:
        return list(plan.definition.nodes)
    nodes = {name for name in snapshot.nodes if not map_of(name)}
    begun = [name for name in seen if name in nodes]
    return [*begun, *sorted(nodes - set(begun))]


def _node(store: Store, snapshot: RunSnapshot, name: str, events: Mapping[str, Sequence[Event]]) -> NodeView:
    record = snapshot.nodes.get(name)
    if record is None:
        return NodeView(name, "pending", 0, 0)
    entry = snapshot.entries.get((name, record.visit)) or {}
    error = failures.load(entry["error"]) if entry.get("error") else None
    own = [event for event in events.get(name, ()) if event.visit == record.visit]
    items = [item for item in _begun(snapshot, name, record.visit) if item in snapshot.nodes]
    return NodeView(
        id=name,
        status=str(record.status),
        visit=record.visit,
        attempts=record.attempt,
        since=max((event.at for event in own if event.kind in BEGINS), default=snapshot.created_at),
        ms=entry.get("ms", 0),
        output=snapshot.outputs.get((name, record.visit)),
        error=error,
        progress=_progress(own),
        questions=tuple(asked for asked in snapshot.interrupts if asked.node_id == name and asked.is_open),
        inner=_inner(store, record),
        total=snapshot.maps[name].total if items else 0,
        items=tuple(_node(store, snapshot, item, events) for item in items),
    )


def _begun(snapshot: RunSnapshot, name: str, visit: int) -> Iterator[str]:
    """Name the items of a map's visit that have begun."""
    found = snapshot.maps.get(name)
    if found is not None and found.visit == visit:
        yield from (item_id(name, index) for index in range(found.next))


def _inner(store: Store, record: NodeRecord) -> RunView | None:
    return read_run(store, record.child) if record.child else None


def _progress(own: Sequence[Event]) -> str:
    last = next((event for event in reversed(own) if event.kind == "progress"), None)
    if last is None or not isinstance(last.data, dict):
        return ""
    return f"{last.data.get('fraction', 0):.0%} {last.data.get('note', '')}".strip()


def _usage(snapshot: RunSnapshot) -> dict[str, int]:
    total: dict[str, int] = {}
    for entry in snapshot.entries.values():
        for key, number in (entry.get("usage") or {}).items():
            total[key] = total.get(key, 0) + number
    return total


def shown(packed: Any) -> Any:
    """Turn a packed value into the plain JSON that people read: models as data, bytes as base64."""
    return codec.plain(codec.unpack(packed))
