"""Conditions on edges: evaluated when their source completes, on a view that records its reads.

The record is sent with the settle, which is refused if a node that was read has changed since. Then
the conditions are evaluated again, but not the node. So two sources that finish together can't both
miss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from runner import async_loop
from runner.definition.model import HIDDEN, EdgeSpec, NodeTopology
from runner.execution.context import ClaimedVisit
from runner.execution.results import NodeResult, node_result
from runner.immutable import immutable
from runner.records import codec
from runner.records.outcomes import Succeeded
from runner.records.run import Status, VisitEntry, existing
from runner.store.interface import Fetched


class Results(Mapping[str, NodeResult]):
    """The results so far, by node id; a node that has neither completed nor failed is absent."""

    def __init__(
        self,
        source: str,
        result: NodeResult,
        nodes: Sequence[str],
        fetch: Callable[[Sequence[str]], list[Fetched]],
        order: Callable[[], Sequence[str]],
    ) -> None:
        """Start with the result of `source`, the node that has just completed, without asking the store.

        `order` reads the nodes of all completed visits, with that of `source`.
        """
        self._known: dict[str, NodeResult] = {source: result}
        self._own = source
        self._nodes = nodes
        self._fetch = fetch
        self._order = order

    def __getitem__(self, node: str) -> NodeResult:
        """Return a node's result, reading it from the store the first time."""
        if node not in self._nodes and node != self._own:
            raise KeyError(f"{node!r} is not a node of this graph")
        self.load([node])
        if not _has_result(self._known[node]):
            raise KeyError(node)
        return self._known[node]

    def __iter__(self) -> Iterator[str]:
        self.load(self._nodes)
        return iter([node for node in self._nodes if _has_result(self._known[node])])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def load(self, nodes: Sequence[str]) -> None:
        """Read the nodes that are not known yet, all at once."""
        missing = [node for node in nodes if node not in self._known]
        if missing:
            for node, (record, output, entry) in zip(
                missing, self._fetch(missing), strict=True
            ):
                self._known[node] = node_result(record, output, entry)

    def order(self) -> list[str]:
        """Read the order of completed visits: every result counts as read, as each may change it."""
        self.load(self._nodes)
        return [node for node in self._order() if node in self._nodes]

    def reads(self) -> list[tuple[str, int, str]]:
        """Return the results that were read, except the source's: (node, visit, status), or (node, 0, "")."""
        return [
            (node, result.visit, result.status) if _has_result(result) else (node, 0, "")
            for node, result in self._known.items()
            if node != self._own
        ]


def _has_result(result: NodeResult) -> bool:
    return result.status in (Status.COMPLETED, Status.FAILED)


@immutable
class GraphState:
    """State for a condition: the task, the node that just completed, and the results so far."""

    task: Any
    node_id: str
    visit: int
    results: Results
    invocation_state: dict[str, Any]

    @property
    def completed_nodes(self) -> set[str]:
        """The ids of the nodes whose latest visit completed."""
        return {
            node for node, result in self.results.items() if result.status is Status.COMPLETED
        }

    @property
    def execution_order(self) -> list[str]:
        """The ids of the nodes by completed visit, as in the run's result; this reads the whole run."""
        return self.results.order()

    @property
    def execution_count(self) -> int:
        """The number of completed visits, whose nodes are in `execution_order`."""
        return len(self.execution_order)

    @property
    def failed_nodes(self) -> set[str]:
        """The ids of the nodes that failed."""
        return {node for node, result in self.results.items() if result.status is Status.FAILED}


@lru_cache(maxsize=1024)
def _wants_state(condition: Callable[..., object]) -> bool:
    return "invocation_state" in inspect.signature(condition).parameters


def bits(
    visit: ClaimedVisit, outcome: Succeeded, entry: VisitEntry
) -> tuple[str, list[tuple[str, int, str]]]:
    """Evaluate the condition of each edge after a visit; return one bit per edge, and the reads.

    Errors of conditions pass.
    """
    plan = visit.plan
    node = visit.address.node_id
    if node not in plan.conditional:
        return plan.bits.get(node, ""), []
    state = _state_after(visit, outcome, entry)
    edge_bits = "".join("1" if holds(edge, state) else "0" for edge in plan.edges[node])
    return edge_bits, state.results.reads()


def decided(
    edges: str, reads: Sequence[tuple[str, int, str]], shape: NodeTopology | None
) -> VisitEntry:
    """Return the part of the decisions that an entry must keep, so that a replay can leave out some visits.

    Outside of loops a node's record keeps its edges, since no later visit comes.
    """
    kept_decisions: VisitEntry = {"edges": edges} if shape is not None and shape.loops else {}
    visits_read = [[node, visit] for node, visit, _ in reads if visit] if reads else []
    return {**kept_decisions, "reads": visits_read} if visits_read else kept_decisions


def holds(edge: EdgeSpec, state: GraphState) -> bool:
    """Evaluate an edge's condition; without one the edge holds. An error gets a note that names the edge.

    An edge for expired questions does not hold after a node that completed on its own.
    """
    condition = edge.condition
    if condition is None:
        return not edge.on_expire
    try:
        if _wants_state(condition):
            condition = partial(condition, invocation_state=state.invocation_state)
        return bool(async_loop.call_blocking(condition, state))
    except Exception as error:
        error.add_note(
            f"raised by the condition of the edge from {edge.source!r} to {edge.target!r}"
        )
        raise


def _state_after(visit: ClaimedVisit, outcome: Succeeded, entry: VisitEntry) -> GraphState:
    """Build the state that conditions see after a visit: its own result, and a view of the others."""
    node = visit.address.node_id
    run_id = visit.address.run_id
    record = replace(visit.claim.record, status=Status.COMPLETED)
    source_result = node_result(record, codec.read(outcome.output), entry)
    results = Results(
        node,
        source_result,
        [name for name in visit.plan.definition.nodes if not name.startswith(HIDDEN)],
        lambda nodes: visit.store.fetch(run_id, nodes),
        lambda: [*existing(visit.store.read(run_id), run_id).order, node],
    )
    return GraphState(visit.task, node, visit.address.visit, results, visit.invocation_state)
