"""What a deploy does to the runs that are under way: which of their nodes would be set aside, and why.

The store's runs are compared with the graphs of this process, by shape: nothing is run or changed. Runs
that began with one shape are judged together, so the cost grows with how many runs there are, not
with their graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.errors import NotFoundError
from runner.graph import HIDDEN, NodeTopology, Topology
from runner.listings import RunQuery, RunSummary
from runner.maps import BRACKETS
from runner.ports import Store
from runner.registry import Plan, Registry
from runner.run import NodeRecord, Status

UNDER_WAY = (Status.EXECUTING, Status.INTERRUPTED, Status.NEEDS_MIGRATION)

COMES_BACK = frozenset({Status.READY, Status.RUNNING, Status.WAITING, Status.RETRYING})
"""Nodes that are claimed again, unless their run stops."""

PAGE = 1_000
"""Runs that one page of a listing has."""

NO_SHAPE = "the shape that its run began with is gone"


@dataclass(frozen=True, slots=True)
class Held:
    """A node that would be set aside when it is claimed; `status` is where it stands now."""

    run_id: str
    graph_id: str
    node: str
    visit: int
    status: Status
    reason: str


def held(store: Store, registry: Registry, names: Sequence[str]) -> Iterator[Held]:
    """Name the nodes of runs under way that the graphs of this process would not run.

    A run is looked at where its shape is another one than the graph has here, and of its nodes only those
    that differ and may still be claimed.

    Raises:
        NotFoundError: this process does not have one of the graphs.
    """
    plans = plans_of(registry, names)
    known: dict[tuple[str, str], tuple[Topology | None, dict[str, str]]] = {}
    for run in (run for status in UNDER_WAY for run in runs_of(store, RunQuery(status))):
        plan, shape = plans.get(run.graph_id), (run.graph_id, run.fingerprint)
        if plan is None or run.fingerprint == plan.topology.fingerprint:
            continue
        if shape not in known:
            old = store.topology(*shape)
            known[shape] = old, changes(old, plan.topology) if old else {}
        yield from _held(store, run, *known[shape])


def plans_of(registry: Registry, names: Sequence[str]) -> dict[str, Plan]:
    """Give graphs and those inside them by their paths. All runs are looked at for these: a run that an
    older library began may be in no listing of its graph.
    """
    return {plan.topology.graph_id: plan for name in names for plan in registry.family(name)}


def runs_of(store: Store, query: RunQuery) -> Iterator[RunSummary]:
    """List all runs that are wanted, page by page."""
    cursor: str | None = ""
    while cursor is not None:
        page = store.runs(query, PAGE, cursor)
        yield from page
        cursor = page.next


def _held(store: Store, run: RunSummary, old: Topology | None, changed: Mapping[str, str]) -> Iterator[Held]:
    if old is None:
        yield Held(run.run_id, run.graph_id, "", 0, run.status, NO_SHAPE)
        return
    around = {name: set(old.nodes[name].loops) for name in changed}
    loops = set().union(*around.values())
    names = [name for name, node in old.nodes.items() if name in changed or loops.intersection(node.loops)]
    found = _records(store, run.run_id, [name for name in names if not name.endswith(BRACKETS)])
    going = {loop for name, at in found.items() if at.status in COMES_BACK for loop in old.nodes[name].loops}
    for name in sorted(
        changed.keys() & found.keys(), key=lambda name: (found[name].status not in COMES_BACK, name)
    ):
        at = found[name]
        if at.status in COMES_BACK or at.status is Status.PENDING or going & around[name]:
            yield Held(run.run_id, run.graph_id, name, at.visit, at.status, changed[name])


def _records(store: Store, run_id: str, names: Sequence[str]) -> dict[str, NodeRecord]:
    """Read nodes as they stand; none where the run is gone meanwhile."""
    try:
        found = store.fetch(run_id, names) if names else []
    except NotFoundError:
        return {}
    return {name: record for name, (record, _, _) in zip(names, found, strict=False)}


def changes(old: Topology, new: Topology) -> dict[str, str]:
    """Say of each node that can't go on in a new shape why, as one sentence part."""
    found = {}
    for name, node in old.nodes.items():
        today = new.nodes.get(name)
        if not name.endswith(BRACKETS) and (today is None or today.signature != node.signature):
            found[name] = difference(old, new, name)
    return found


def difference(old: Topology, new: Topology, name: str) -> str:
    """Say what differs between a node of an old shape and the one of this name in a new shape."""
    was, now = old.nodes[name], new.nodes.get(name)
    if now is None:
        return "the graph's hooks are gone" if name.startswith(HIDDEN) else "the graph has no such node now"
    told = [*_own(was, now), *_edges(old, new, name)]
    return "; ".join(told) or "its edges have other conditions or another order"


def _own(was: NodeTopology, now: NodeTopology) -> Iterator[str]:
    if was.kind and was.kind != now.kind:
        yield f"it was a {was.kind} and is a {now.kind} now"
    if was.kind and was.version != now.version:
        yield f'its version was "{was.version}" and is "{now.version}" now'
    if was.join != now.join:
        yield f"its join was {was.join} and is {now.join} now"
    if was.each != now.each:
        words = {True: "each", False: "all"}
        yield f"its resume was {words[was.each]} and is {words[now.each]} now"


def _edges(old: Topology, new: Topology, name: str) -> Iterator[str]:
    before, after = _touching(old, name), _touching(new, name)
    for source, target in sorted((before - after).keys()):
        yield f"the edge from {source} to {target} is gone"
    for source, target in sorted((after - before).keys()):
        yield f"the edge from {source} to {target} is new"


def _touching(shape: Topology, name: str) -> Counter[tuple[str, str]]:
    outgoing = Counter((name, edge.target) for edge in shape.outgoing[name])
    return outgoing + Counter((edge.source, name) for edge in shape.incoming[name])
