"""`runner graphs`: list, show, check and draw the graphs of the workers and of this folder."""

from __future__ import annotations

import sys
from dataclasses import astuple
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from runner.cli.arguments import flag, graph_argument, option
from runner.cli.context import CommandContext, command, group
from runner.cli.exits import CommandError, Exit
from runner.immutable import immutable
from runner.records.shown_text import shown

if TYPE_CHECKING:
    from runner.definition.registry import CompiledGraph
    from runner.operations.deploys import GraphCheck


@group
def graphs() -> None:
    """List, check and draw graphs."""


@immutable
class GraphLine:
    """A graph of the list; `fingerprint` is the store's, `fingerprint_here` this folder's."""

    name: str
    place: str
    fingerprint: str | None
    fingerprint_here: str | None


@command(graphs, "list")
def list_graphs(context: CommandContext) -> None:
    """List the graphs in the store and in this folder.

    Workers publish their graphs in the store. RUNNER_GRAPHS names the modules of this folder's graphs. The
    place is "same" if both are equal, "differs" if only the names are, "store" or "here" if the graph is
    only there. A fingerprint is a hash of a graph's nodes and edges. Without a terminal: name, place,
    fingerprint in the store, fingerprint here, separated by tabs.
    """
    registry = context.load_graphs()
    here = {name: registry.get(name).topology.fingerprint for name in registry.names()}
    graphs_of_store = context.installation.graphs()
    lines = [
        _line(name, here.get(name), graphs_of_store.get(name))
        for name in sorted(here.keys() | graphs_of_store.keys())
    ]
    rows = [tuple(cell or "" for cell in astuple(line)) for line in lines]
    nothing = "No graphs. Start a worker that has some in RUNNER_GRAPHS, or name their modules with --graphs."
    context.output.listing(
        {"graphs": lines}, ("NAME", "PLACE", "IN THE STORE", "HERE"), rows, nothing
    )


def _line(name: str, here: str | None, fingerprint: str | None) -> GraphLine:
    location = "here" if here else "store"
    if here and fingerprint:
        location = "same" if here == fingerprint else "differs"
    return GraphLine(name, location, fingerprint=fingerprint, fingerprint_here=here)


# -- show --------------------------------------------------------------------------------------------


@immutable
class GraphNode:
    """A node of a graph; `entry` is true if a run starts there."""

    id: str
    kind: str
    join: str
    queue: str
    priority: int
    entry: bool


@immutable
class GraphEdge:
    """An edge of a graph; `kind` is forward, exit (of a loop) or back.

    `condition` is true if it has one; `on_expire` if it is taken when a question expires.
    """

    source: str
    target: str
    kind: str
    condition: bool
    on_expire: bool


@immutable
class GraphView:
    """A graph of this folder."""

    name: str
    fingerprint: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]


@command(graphs)
@graph_argument
def show(context: CommandContext, name: str) -> None:
    """Show the nodes and edges of a graph.

    It is a graph of RUNNER_GRAPHS, as this folder has it; `runner graphs draw` draws it. Tab-separated
    lines: each node (node, id, kind, join, queue), then each edge (edge, source, target, kind). Join is
    "all" if a node waits for all its incoming edges, "any" if the first one is enough. The Celery workers
    of the queue run the node. An edge of the kind "back" closes a loop.
    """
    view = _view(context.load_graphs().get(name))
    nodes = [("node", node.id, node.kind, node.join, node.queue) for node in view.nodes]
    edges = [("edge", edge.source, edge.target, edge.kind) for edge in view.edges]
    context.output.write(view, [*nodes, *edges])


def _view(plan: CompiledGraph) -> GraphView:
    shape = plan.topology
    nodes = (
        GraphNode(
            id=name,
            kind=spec.kind,
            join=str(spec.join),
            queue=shape.nodes[name].queue,
            priority=shape.nodes[name].priority,
            entry=name in shape.entries,
        )
        for name, spec in plan.definition.nodes.items()
    )
    edges = (
        GraphEdge(source, out.target, str(out.kind), spec.condition is not None, spec.on_expire)
        for source, specs in plan.edges.items()
        for spec, out in zip(specs, shape.outgoing[source], strict=True)
    )
    return GraphView(shape.graph_id, shape.fingerprint, tuple(nodes), tuple(edges))


# -- remove ------------------------------------------------------------------------------------------


@immutable
class RemovedGraph:
    """A graph that was removed."""

    name: str
    status: str


@command(graphs)
@graph_argument
def remove(context: CommandContext, name: str) -> None:
    """Remove a graph that no worker uses from the store.

    It is refused while a worker has the graph, a schedule names it, or its runs are in the store, even
    ended ones: no list would show them. A worker or a program that has the graph publishes it again.
    Exit codes: 0 it was removed; 4 no such graph; 5 refused.
    """
    context.installation.remove_graph(name)
    context.output.write(RemovedGraph(name, "removed"), [("removed", name)])


# -- check -------------------------------------------------------------------------------------------


@command(graphs)
@click.argument("names", metavar="[GRAPH]...", nargs=-1)
@flag("--strict", "Exit with 1 for warnings, too.")
@flag("--against-waiting", "Also list the nodes of stored runs that this code can't resume.")
def check(
    context: CommandContext, names: tuple[str, ...], *, strict: bool, against_waiting: bool
) -> int:
    """Check graphs for mistakes before they run.

    It checks the named graphs of RUNNER_GRAPHS as this folder has them (default: all of them). Nothing
    is run. With --against-waiting, the unfinished runs of the store are compared with these graphs: a
    node that this code can't resume would be held for migration after a deploy. Otherwise no store is
    needed.

    Without a terminal, tab-separated lines: severity, code, graph, node, message, advice; for a node that
    would be held: held, run, graph, node, visit, status, reason. Exit codes: 1 there are errors; 2 no
    graph was found; 5 there are no errors, but a node would be held.
    """
    from runner.operations.deploys import check_graphs

    registry = context.load_graphs()
    graph_names = names or tuple(registry.names())
    if not graph_names:
        # A deploy must not pass because its settings are missing.
        raise CommandError(
            Exit.USAGE,
            "There is no graph here, so nothing was checked.",
            "Name the modules that register your graphs, with --graphs or in RUNNER_GRAPHS.",
        )
    result = check_graphs(registry, graph_names, context.store if against_waiting else None)
    if context.output.as_json:
        context.output.data(result)
    else:
        _write_check(context, result)
    failing = {"error", "warning"} if strict else {"error"}
    if any(str(problem.severity) in failing for problem in result.problems):
        return Exit.RUN_FAILED
    return Exit.CONFLICT if result.held else Exit.DONE


def _write_check(context: CommandContext, result: GraphCheck) -> None:
    cells_of = attrgetter("severity", "code", "graph", "node", "message", "advice")
    context.output.table(
        ("SEVERITY", "CODE", "GRAPH", "NODE", "MESSAGE", "ADVICE"),
        list(map(cells_of, result.problems)),
        "No problems.",
    )
    if result.held is not None:
        cells = attrgetter("run_id", "graph_id", "node", "visit", "status", "reason")
        context.output.table(
            ("", "RUN", "GRAPH", "NODE", "VISIT", "STATUS", "REASON"),
            [("held", *cells(node)) for node in result.held],
            "No node would be held.",
        )


# -- draw --------------------------------------------------------------------------------------------


@immutable
class GraphDrawing:
    """A drawing of a graph."""

    name: str
    format: str
    drawing: str


@command(graphs)
@graph_argument
@option(
    "-o",
    "--output",
    "format_",
    "The format.",
    type=click.Choice(("text", "svg", "mermaid")),
    default="text",
)
def draw(context: CommandContext, name: str, format_: str) -> None:
    """Draw a graph: its nodes, edges, conditions and loops.

    It is a graph of RUNNER_GRAPHS, as this folder has it. The drawing goes to stdout: redirect it into
    a file, such as `-o svg > refund.svg`.
    """
    from runner.authoring.drawing import draw as draw_graph

    text = draw_graph(context.load_graphs().get(name).definition, format_)
    if context.output.as_json:
        context.output.data(GraphDrawing(name, format_, text))
    else:
        sys.stdout.write(shown(text))
