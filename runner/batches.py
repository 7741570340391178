"""Graphs that run as Strands runs them: in batches, each chosen when the one before has ended.

See docs/decisions/0022-strands-compat.md. A node is ready when the batch that has just ended holds
a source of one of its edges and that edge's condition is true. Its inputs are those of all edges
from completed sources whose condition is true at that moment; they stay the same however often the
node starts. Nothing else runs then, so whatever conditions read can't change under them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from runner import codec, failures, inputs
from runner.conditions import GraphState, Results, holds
from runner.errors import NodeFailed, StoreError
from runner.graph import BATCH, HIDDEN, Definition, NodeSpec
from runner.node_documents import load_document
from runner.outcomes import Failed, Input, NextBatch, Outcome, Saved, Succeeded
from runner.ports import RunSnapshot, Store
from runner.registry import Plan
from runner.results import NodeResult
from runner.run import Status
from runner.visits import ClaimedVisit

STRANDS = "strands"
KIND = "batch"
PLAIN = frozenset({"function", "graph", KIND})
"""Kinds of nodes that are no agents: their output is shown as it is, without a line's end."""


def with_batches(definition: Definition) -> Definition:
    """Add the hidden node that opens the next batch."""
    if not definition.compat:
        return definition
    return replace(definition, nodes={**definition.nodes, BATCH: NodeSpec(BATCH, None, KIND)})


# -- the next batch --------------------------------------------------------------------------------------


class NodeName(str):
    """A node's id that also has it as `node_id`, as the nodes have that conditions of Strands look at."""

    __slots__ = ()

    @property
    def node_id(self) -> str:
        """The id."""
        return str(self)


@dataclass(frozen=True, slots=True)
class BatchState(GraphState):
    """What a condition sees between two batches: every result, and the names that Strands uses."""

    status: Status
    entry_points: Sequence[NodeName]
    total_nodes: int
    order: Callable[[], Sequence[str]]

    @property
    def completed_nodes(self) -> set[str]:
        """The nodes whose latest visit completed."""
        return {NodeName(name) for name, found in self.results.items() if found.status is Status.COMPLETED}

    @property
    def failed_nodes(self) -> set[str]:
        """The nodes that failed."""
        return {NodeName(name) for name, found in self.results.items() if found.status is Status.FAILED}

    @property
    def interrupted_nodes(self) -> set[str]:
        """Always empty: a batch with a node that waits has not ended."""
        return set()

    @property
    def execution_order(self) -> list[NodeName]:
        """The completed visits so far; reading it reads the whole run."""
        return [NodeName(name) for name in self.order() if not name.startswith(HIDDEN)]


class Crossroads:
    """The moment between two batches: the results, and which edges hold, each asked once."""

    def __init__(self, plan: Plan, visit: ClaimedVisit) -> None:
        """Read nothing yet."""
        store, run_id = visit.store, visit.address.run_id
        shown = [name for name in plan.definition.nodes if not name.startswith(HIDDEN)]
        self._plan, self._visit, self._asked = plan, visit, dict[tuple[str, int], bool]()
        self.results = Results(
            BATCH, NodeResult(Status.RUNNING), shown, lambda nodes: store.fetch(run_id, nodes)
        )
        self._order = cache(lambda: _order(visit.run_snapshot()))
        self._shown = len(shown)

    def taken(self, nodes: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Give the completed ones of some nodes with a bit per edge out of each."""
        for node in nodes:
            if self._completed(node):
                edges = range(len(self._plan.edges[node]))
                yield node, "".join("1" if self._holds(node, place) else "0" for place in edges)

    def inputs(self, node: str) -> tuple[tuple[str, int], ...]:
        """List the (node, visit) whose results reach a node now, in the order of its edges, each once."""
        edges = self._plan.topology.incoming[node]
        live = [
            edge.source
            for edge in edges
            if not edge.source.startswith(HIDDEN)
            and self._completed(edge.source)
            and self._holds(edge.source, edge.position)
        ]
        return tuple((source, self.results[source].visit) for source in dict.fromkeys(live))

    def _completed(self, node: str) -> bool:
        if node.startswith(HIDDEN):
            return True
        found = self.results.get(node)
        return found is not None and found.status is Status.COMPLETED

    def _holds(self, node: str, place: int) -> bool:
        if (node, place) not in self._asked:
            edge = self._plan.edges[node][place]
            self._asked[node, place] = edge.condition is None or holds(edge, self._state(node))
        return self._asked[node, place]

    def _state(self, node: str) -> BatchState:
        definition, visit = self._plan.definition, self._visit
        return BatchState(
            visit.task,
            node,
            self.results[node].visit,
            self.results,
            visit.invocation_state,
            Status.EXECUTING,
            [NodeName(name) for name in definition.entries],
            self._shown,
            self._order,
        )


def _order(snapshot: RunSnapshot | None) -> Sequence[str]:
    return snapshot.order if snapshot else ()


def choose(plan: Plan, visit: ClaimedVisit) -> Outcome:
    """Ask the conditions of all edges that leave the batch which has ended, and choose the next one."""
    ended = [name for name, _ in visit.claim.record.via]
    here = Crossroads(plan, visit)
    try:
        here.results.load([name for name in ended if not name.startswith(HIDDEN)])
        taken = list(here.taken(ended))
        following = dict.fromkeys(
            edge.target
            for name, bits in taken
            for edge, bit in zip(plan.edges[name], bits, strict=True)
            if bit == "1"
        )
        sources = {edge.source for name in following for edge in plan.topology.incoming[name]}
        here.results.load([name for name in sources if not name.startswith(HIDDEN)])
        chosen = [(name, here.inputs(name)) for name in following]
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a user's condition raises fails the run
        return Failed(failures.record(error))
    reason, saved = _time(plan.definition, visit, here.results, ended)
    return NextBatch(taken, chosen, reason, saved)


def _time(
    definition: Definition, visit: ClaimedVisit, results: Results, ended: Sequence[str]
) -> tuple[str, Saved | None]:
    """Add up what the slowest node of each batch took; waits for people are not in it."""
    limit = definition.execution_timeout
    if limit is None:
        return "", None
    kept = load_document(visit.claim.document)
    before = (kept.executor or {}).get("ms", 0) if kept else 0
    spent = before + max((results[name].execution_time for name in ended if name in results), default=0)
    saved = visit.wrap(Saved({"v": 1, "ms": spent}))
    return (f"execution timeout of {limit:g} s reached" if spent > limit * 1000 else ""), saved


# -- failures that don't stop the run -------------------------------------------------------------------


def judged(plan: Plan, spec: NodeSpec, outcome: Outcome) -> Outcome:
    """An agent that was cancelled has failed, and its branch ends with it; elsewhere no failure is alone."""
    if not plan.topology.batches:
        return replace(outcome, alone=False) if isinstance(outcome, Failed) else outcome
    if spec.kind != "agent" or not isinstance(outcome, Succeeded):
        return outcome
    if outcome.result.get("stop_reason") != "cancelled":
        return outcome
    error = failures.record(NodeFailed(f"the agent was cancelled. {outcome.output}".strip()))
    return Failed(error, outcome.saved, outcome.usage, final=True, alone=True)


def ended_by_itself(child: RunSnapshot) -> bool:
    """Tell whether a graph inside failed of no error that stopped it: of a limit, or of branches alone."""
    failed = [name for name, record in child.nodes.items() if record.status is Status.FAILED]
    stopped = {f'node "{name}" failed' for name in failed}
    return child.record.status is Status.FAILED and child.record.reason not in stopped


# -- what nodes are told ---------------------------------------------------------------------------------


def told(plan: Plan, visit: ClaimedVisit) -> list[Input]:
    """Give a visit's inputs with the lines in which Strands shows them to an agent."""
    return [replace(item, lines=_lines(plan, visit, item)) for item in visit.inputs]


def _lines(plan: Plan, visit: ClaimedVisit, item: Input) -> Sequence[str]:
    spec = plan.definition.nodes.get(item.node_id)
    if spec is None or spec.kind != "graph":
        return [_line(spec.kind if spec else KIND, item.output)]
    (record, _, _) = visit.store.fetch(visit.address.run_id, [item.node_id])[0]
    child = visit.store.read(record.child) if record.child else None
    return list(_flat(visit.store, child)) if child else [inputs.as_text(item.output)]


def _line(kind: str, output: Any) -> str:
    """An agent's text ends its line, as the text of its result does."""
    text = inputs.as_text(output)
    return f"{text}\n" if isinstance(output, str) and kind not in PLAIN else text


def _flat(store: Store, run: RunSnapshot) -> Iterator[str]:
    """Give a line per completed node of a graph inside, depth first."""
    for name in dict.fromkeys(run.order):
        record = run.nodes[name]
        if name.startswith(HIDDEN) or record.status is not Status.COMPLETED:
            continue
        child = store.read(record.child) if record.child else None
        if child is not None:
            yield from _flat(store, child)
        else:
            at = (name, record.visit)
            yield _line(run.entries[at].get("kind", KIND), codec.unpack(run.outputs[at]))
