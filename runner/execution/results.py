"""Results of a run for users: NodeResult and GraphResult, built from stored data."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import field, replace
from operator import attrgetter
from typing import Any

from runner.definition.model import HIDDEN, SWARM, UNDO, map_of
from runner.errors import CorruptDocument
from runner.immutable import immutable
from runner.records import codec, failures
from runner.records.executors import restorers
from runner.records.failures import ErrorRecord
from runner.records.interrupts import Interrupt, title_of
from runner.records.listings import grouped
from runner.records.run import NodeRecord, Status, VisitEntry
from runner.store.interface import RunSnapshot, Store

HARMLESS = frozenset({Status.READY, Status.RUNNING, Status.COMPLETED, Status.CANCELLED})

OTHER_TURN = frozenset({Status.PENDING, Status.SKIPPED, Status.CANCELLED})

AGENT = "agent"


@immutable
class NodeResult:
    """Result of a node's latest visit. `execution_time` is in milliseconds, without waits.

    `result` is the AgentResult, GraphResult or returned value, or the restored exception; `output`
    its JSON form.
    """

    status: Status
    result: Any = None
    output: Any = None
    interrupts: list[Interrupt] = field(default_factory=list)
    attempts: int = 0
    execution_time: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    error: ErrorRecord | None = None
    visit: int = 0


@immutable
class GraphResult:
    """Result of a run so far. `execution_time` is in milliseconds, without waits."""

    status: Status
    run_id: str
    results: dict[str, NodeResult]
    interrupts: list[Interrupt]
    execution_order: list[str]
    usage: dict[str, int]
    reason: str = ""
    execution_time: int = 0

    @property
    def completed_nodes(self) -> int:
        """Number of nodes that have completed their latest visit."""
        return self._count(Status.COMPLETED)

    @property
    def failed_nodes(self) -> int:
        """Number of nodes that have failed."""
        return self._count(Status.FAILED)

    @property
    def interrupted_nodes(self) -> int:
        """Number of nodes that wait for a person."""
        return sum(bool(result.interrupts) for result in self.results.values())

    def _count(self, status: Status) -> int:
        return sum(
            result.status is status for node, result in self.results.items() if not map_of(node)
        )


def node_result(
    record: NodeRecord,
    output: Any,
    entry: VisitEntry | None,
    interrupts: Iterable[Interrupt] = (),
) -> NodeResult:
    """Build a NodeResult from a record and the entry and output stored when it settled."""
    if record.status not in {Status.COMPLETED, Status.FAILED} and not record.held:
        # Data left by an older visit isn't the result of this one.
        entry, output = {}, None
    entry = entry or {}
    error = failures.load(entry["error"]) if entry.get("error") else None
    return NodeResult(
        status=Status.HELD if record.held else record.status,
        result=_result(entry, output, error),
        output=output,
        interrupts=list(interrupts),
        attempts=record.attempt,
        execution_time=entry.get("ms", 0),
        usage=dict(entry.get("usage") or {}),
        error=error,
        visit=record.visit,
    )


def _result(entry: VisitEntry, output: Any, error: ErrorRecord | None) -> Any:
    if error is not None:
        return failures.restore(error)
    json_value = entry.get("result", output)
    if entry.get("kind") == AGENT and AGENT not in restorers:
        # A program that only reads results may not have imported the agents' package.
        importlib.import_module("runner.agent")
    restore = restorers.get(entry.get("kind", ""), codec.unpack)
    try:
        return restore(json_value)
    except CorruptDocument:
        # A class has changed since: the run must still be readable, and the output is plain data.
        return output


def graph_result(store: Store, snapshot: RunSnapshot) -> GraphResult:
    """Build a GraphResult, with the interrupts and results of child runs."""
    waiting = grouped(
        (
            replace(interrupt, title=title_of(interrupt)) if interrupt.rule else interrupt
            for interrupt in snapshot.interrupts
            if interrupt.is_open
        ),
        attrgetter("node_id"),
    )
    results: dict[str, NodeResult] = {}
    for name, current in snapshot.nodes.items():
        record = current
        # The nodes of the graph's own events show only while they wait or when they failed.
        is_event = name.startswith(HIDDEN) and not name.startswith(UNDO)
        hidden = is_event and record.status in HARMLESS
        key = (name, record.visit)
        if SWARM in snapshot.nodes and record.status in OTHER_TURN and key in snapshot.entries:
            # Another agent's turn: an agent shows its last one.
            record = replace(record, status=Status.COMPLETED)
        unused = OTHER_TURN if SWARM in snapshot.nodes else {Status.PENDING}
        if record.status in unused or hidden or _is_old(snapshot, name, record):
            continue
        result = node_result(
            record, snapshot.outputs.get(key), snapshot.entries.get(key), waiting.get(name, ())
        )
        results[name] = _with_child(store, record, result) if record.child else result
    return GraphResult(
        status=snapshot.record.status,
        run_id=snapshot.record.run_id,
        results=results,
        interrupts=[question for result in results.values() for question in result.interrupts],
        execution_order=[node for node in snapshot.order if not node.startswith(HIDDEN)],
        usage=total_usage([*snapshot.entries.values(), *_unsettled(results.values())]),
        reason=snapshot.record.reason,
        execution_time=sum(entry.get("ms", 0) for entry in snapshot.entries.values()),
    )


def _is_old(snapshot: RunSnapshot, name: str, record: NodeRecord) -> bool:
    """Return whether a node is an item of an older visit of its map."""
    owner = map_of(name)
    return bool(owner) and record.visit != snapshot.nodes[owner].visit


def total_usage(entries: Iterable[VisitEntry]) -> dict[str, int]:
    """Add up the usage in stored entries of nodes; a nested graph's node includes its inner nodes."""
    total: dict[str, int] = {}
    for entry in entries:
        for key, number in (entry.get("usage") or {}).items():
            total[key] = total.get(key, 0) + number
    return total


def _unsettled(results: Iterable[NodeResult]) -> list[VisitEntry]:
    """Return the usage of nested graphs so far: their nodes' entries are written when they end."""
    final = {Status.COMPLETED, Status.FAILED}
    return [{"usage": result.usage} for result in results if result.status not in final]


def _with_child(store: Store, record: NodeRecord, result: NodeResult) -> NodeResult:
    child = store.read(record.child)
    if child is None:
        # It ended long ago and has been removed; its node's result is still here.
        return result
    inner = graph_result(store, child)
    return replace(
        result,
        result=result.result if result.error else inner,
        interrupts=[*result.interrupts, *inner.interrupts],
        execution_time=inner.execution_time,
        usage=inner.usage,
    )


def sink_outputs(child: RunSnapshot) -> Any:
    """Return a graph's output: its only sink's, possibly lazy, or all sinks' by node id.

    Sinks are completed nodes none of whose edges was taken.
    """
    outputs = {
        node: child.outputs.get((node, record.visit))
        for node, record in child.nodes.items()
        if record.status is Status.COMPLETED
        and "1" not in record.edges
        and not (node.startswith(HIDDEN) or map_of(node))
    }
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    return {node: codec.read(output) for node, output in outputs.items()}
