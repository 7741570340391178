"""The graph of a run on its page: the states of its nodes, the edges taken, and the opened inner graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from urllib.parse import urlencode

from fastapi import Request
from markupsafe import Markup, escape

from runner.authoring.drawing import draw_run
from runner.authoring.drawing.diagram import Progress, RunShown
from runner.authoring.drawing.svg import Links, fragment
from runner.definition.model import Definition, Topology
from runner.definition.registry import inner
from runner.immutable import immutable
from runner.operations.exports import plain
from runner.operations.views import NodeView, RunView
from runner.records.codec import JSONObject
from runner.records.run import PATH, RunRecord, Status
from runner.server.services import Services
from runner.store.interface import RunSnapshot

SMALL = 60
"""Nodes of a graph, including inner graphs, up to which all inner graphs are open by default."""

ACTIVE = {Status.READY, Status.RUNNING, Status.RETRYING}

GROUP = "#"

GRAPH = "graph"
"""The first tab of a run's page."""


@immutable
class Wiring:
    """A run as stored, with the shape of its graph."""

    snapshot: RunSnapshot | None
    topology: Topology | None

    def taken(self, node: str) -> dict[str, bool]:
        """Map each outgoing edge's target to whether the edge was taken, once that is decided."""
        if self.snapshot is None or self.topology is None:
            return {}
        record = self.snapshot.node(node)
        edges = record.edges or self.snapshot.entries.get((node, record.visit), {}).get(
            "edges", ""
        )
        outgoing = self.topology.outgoing.get(node, ())
        return {edge.target: mark == "1" for edge, mark in zip(outgoing, edges, strict=False)}

    def before(self, node: str) -> list[str]:
        """List the nodes that have edges to a node."""
        incoming = self.topology.incoming.get(node, ()) if self.topology is not None else ()
        return list(dict.fromkeys(edge.source for edge in incoming))

    def inputs(self, node: str) -> JSONObject:
        """Read the latest outputs of the nodes whose edges to this one were taken."""
        sources = [name for name in self.before(node) if self.taken(name).get(node)]
        if self.snapshot is None:
            return {}
        nodes = self.snapshot.nodes
        outputs = self.snapshot.outputs
        keys = {name: (name, nodes[name].visit) for name in sources}
        return {name: plain(outputs[key]) for name, key in keys.items() if key in outputs}


@immutable
class Level(Wiring):
    """One run of a page: the outermost or one inside it, whose nodes' paths begin with `path`."""

    path: str
    run: RunView


def levels(services: Services, run: RunView, path: str = "") -> Iterator[Level]:
    """Read a run and the runs inside it; an archived run has no snapshot."""
    snapshot = None if run.archived else services.store.read(run.run_id, messages=True)
    topology = shape_of(services, snapshot.record) if snapshot is not None else None
    yield Level(snapshot, topology, path, run)
    for node in run.nodes:
        for child in (node, *node.items):
            if child.run is not None:
                yield from levels(services, child.run, f"{path}{child.id}{PATH}")


def shape_of(services: Services, record: RunRecord) -> Topology | None:
    """Return the shape of a run's graph: from the code if its fingerprint is the same, else stored."""
    plan = services.plan(record.graph_id)
    if plan is not None and plan.topology.fingerprint == record.fingerprint:
        return plan.topology
    return services.store.topology(record.graph_id, record.fingerprint)


@immutable
class PageState:
    """State in the address of a run's page: its tab, the node shown, and the nodes opened or closed.

    `zoom` is "yes" if the graph is fitted into the width of the page, "half", or "" for its full size.
    """

    tab: str = GRAPH
    node: str = ""
    opened: frozenset[str] = field(default_factory=frozenset)
    closed: frozenset[str] = field(default_factory=frozenset)
    zoom: str = ""

    @classmethod
    def of(cls, request: Request) -> PageState:
        """Read the state from the address."""
        query = request.query_params
        return cls(
            query.get("tab", "") or GRAPH,
            query.get("node", ""),
            frozenset(query.getlist("open")),
            frozenset(query.getlist("close")),
            query.get("fit", ""),
        )

    def link(
        self, node: str, target: str, opened: frozenset[str], closed: frozenset[str]
    ) -> str:
        """Return the address of the same page with another node and target."""
        pairs = [("tab", self.tab)] * (self.tab != GRAPH)
        pairs += [("node", node)] * bool(node) + [("fit", self.zoom)] * bool(self.zoom)
        pairs += [("open", name) for name in sorted(opened)] + [
            ("close", name) for name in sorted(closed)
        ]
        return f"?{urlencode(pairs)}#{target}"

    def at(self, node: str) -> str:
        """Return the address that shows a node; "" for none."""
        return self.link(node, "node" if node else self.tab, self.opened, self.closed)

    def on(self, tab: str) -> str:
        """Return the address of another tab."""
        return replace(self, tab=tab).link(self.node, "tabs", self.opened, self.closed)

    def resized(self, zoom: str) -> str:
        """Return the address that shows the graph in another size."""
        return replace(self, zoom=zoom).link(self.node, "graph", self.opened, self.closed)

    def toggled(self, node: str, *, is_open: bool) -> str:
        """Return the address that opens a closed node, or closes an open one."""
        single = frozenset({node})
        if is_open:
            return self.link(self.node, "graph", self.opened - single, self.closed | single)
        return self.link(self.node, "graph", self.opened | single, self.closed - single)


class Opened:
    """The nodes whose inside is drawn."""

    def __init__(self, page_state: PageState, *, by_default: bool) -> None:
        self._state, self._by_default = page_state, by_default

    def __contains__(self, node: object) -> bool:
        default = self._by_default and not str(node).startswith(GROUP)
        return node in self._state.opened or (default and node not in self._state.closed)


def activity(node: NodeView) -> Status:
    """Return a node's status; of a node that waits for a map or graph in which something runs, "running"."""
    inside = node.run.nodes if node.run is not None else node.items
    runs = any(activity(child) in ACTIVE for child in inside)
    return Status.RUNNING if runs and node.status == Status.WAITING else node.status


def drawing(services: Services, shown: list[Level], page_state: PageState) -> Markup:
    """Draw a run from its code, or from its shape in the store."""
    outer = shown[0]
    plan = services.plan(outer.run.graph)
    fits = plan is not None and (outer.snapshot is None or plan.topology is outer.topology)
    graph = plan.definition if plan is not None and fits else outer.topology
    if graph is None:
        return Markup("")
    is_small = not isinstance(graph, Definition) or _size(graph) <= SMALL
    open_groups = Opened(page_state, by_default=is_small)
    links = Links(
        page_state.at,
        lambda node: page_state.toggled(node, is_open=node in open_groups),
        page_state.node,
    )
    states = {
        level.path + node.id: activity(node) for level in shown for node in level.run.nodes
    }
    text = draw_run(graph, RunShown(states, dict(_progress(shown)), open_groups), links)
    return Markup(text)  # noqa: S704 - our own, escaped


def waiting_in(drawing: str, paths: Iterable[str]) -> str:
    """Return the fragment of the first of these nodes that is drawn, itself or as part of an outer node."""
    for path in paths:
        while path:
            if f'<a id="{escape(fragment(path))}"' in drawing:
                return fragment(path)
            path = path.rpartition(PATH)[0]  # noqa: PLW2901 - the next one around it
    return ""


def _size(graph: Definition) -> int:
    within = [child for spec in graph.nodes.values() if (child := inner(spec)) is not None]
    return len(graph.nodes) + sum(map(_size, within))


def _progress(shown: list[Level]) -> Iterator[tuple[str, Progress]]:
    for level in shown:
        for node in level.run.nodes:
            completed_items = sum(item.status == "completed" for item in node.items)
            yield (
                level.path + node.id,
                Progress(node.visit, completed_items, node.total, level.taken(node.id)),
            )


def find(shown: list[Level], path: str) -> tuple[Level, NodeView] | None:
    """Find a node, or an item of a map, by its path; None if it doesn't exist."""
    for level in shown:
        for node in level.run.nodes:
            for item in (node, *node.items):
                if level.path + item.id == path:
                    return level, item
    return None
