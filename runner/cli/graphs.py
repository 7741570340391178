"""`runner graphs`: which graphs the workers have, and which this folder has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.check import check
from runner.cli.draw import draw
from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.cli.documents import GraphDocument, GraphEdge, GraphLine, GraphNode
    from runner.registry import Plan


@click.group()
@shared
def graphs() -> None:
    """Look at the graphs of the workers and of this folder."""


graphs.add_command(check)
graphs.add_command(draw)


@graphs.command("list")
@shared
@pass_session
def list_graphs(session: Session) -> None:
    """List the graphs that workers have told the store, and those here.

    Those here are the graphs of RUNNER_GRAPHS, as this folder has them. The place is "same" where both
    are equal, "differs" where they only have the name in common, else "store" or "here". A fingerprint
    is a short code for a graph's nodes and edges. Without a terminal: name, place, fingerprint in the
    store, fingerprint here, separated by tabs.
    """
    from runner.registry import registry

    session.load_graphs()
    here = {name: registry.get(name).topology.fingerprint for name in registry.names()}
    stored = {name: known for name, known in session.client.engine.store.graphs().items() if "/" not in name}
    names = sorted(here.keys() | stored.keys())
    found = [_line(name, here.get(name), stored.get(name)) for name in names]
    if session.output.as_json:
        session.output.data({"graphs": found})
        return
    rows = [tuple(cell or "" for cell in graph.values()) for graph in found]
    nothing = "No graphs. Start a worker that has some in RUNNER_GRAPHS, or name them with --graphs."
    session.output.table(("NAME", "PLACE", "IN THE STORE", "HERE"), rows, nothing)


def _line(name: str, here: str | None, stored: str | None) -> GraphLine:
    return {"name": name, "place": _place(here, stored), "fingerprint": stored, "fingerprint_here": here}


def _place(here: str | None, stored: str | None) -> str:
    if here and stored:
        return "same" if here == stored else "differs"
    return "here" if here else "store"


@graphs.command()
@click.argument("name", metavar="GRAPH")
@shared
@pass_session
def show(session: Session, name: str) -> None:
    """Show the nodes and edges of a graph.

    It is a graph of RUNNER_GRAPHS, as this folder has it. Without a terminal, lines of tab-separated
    cells: each node (node, id, kind, join, queue), then each edge (edge, source, target, kind). Join is
    "all" where a node waits for all edges that lead to it, "any" where the first one is enough; the
    queue is that of the Celery workers that run it; an edge of the kind "back" closes a loop.
    """
    from runner.registry import registry

    session.load_graphs()
    found = _document(registry.get(name))
    if session.output.as_json:
        session.output.data(found)
    elif session.output.is_terminal:
        _draw(session, found)
    else:
        nodes = [("node", each["id"], each["kind"], each["join"], each["queue"]) for each in found["nodes"]]
        edges = [("edge", each["source"], each["target"], each["kind"]) for each in found["edges"]]
        session.output.lines([*nodes, *edges])


def _document(plan: Plan) -> GraphDocument:
    shape, definition = plan.topology, plan.definition
    nodes: list[GraphNode] = [
        {
            "id": name,
            "kind": spec.kind,
            "join": str(spec.join),
            "queue": shape.nodes[name].queue,
            "priority": shape.nodes[name].priority,
            "entry": name in shape.entries,
        }
        for name, spec in definition.nodes.items()
    ]
    edges: list[GraphEdge] = [
        {
            "source": source,
            "target": out.target,
            "kind": str(out.kind),
            "condition": spec.condition is not None,
            "on_expire": spec.on_expire,
        }
        for source, specs in plan.edges.items()
        for spec, out in zip(specs, shape.outgoing[source], strict=True)
    ]
    return {"name": shape.graph_id, "fingerprint": shape.fingerprint, "nodes": nodes, "edges": edges}


def _draw(session: Session, found: GraphDocument) -> None:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text.assemble((found["name"], "bold"), f"  {found['fingerprint']}"), guide_style="dim")
    for node in found["nodes"]:
        start = "  starts here" if node["entry"] else ""
        branch = tree.add(Text(f"{node['id']}  {node['kind']}{start}"))
        for edge in (edge for edge in found["edges"] if edge["source"] == node["id"]):
            condition = "  if its condition holds" if edge["condition"] else ""
            condition = "  if nobody answers" if edge["on_expire"] else condition
            again = "  again" if edge["kind"] == "back" else ""
            branch.add(Text(f"→ {edge['target']}{condition}{again}"))
    session.output.show(tree)
