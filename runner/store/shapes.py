"""Reading a graph's shape back from the fields that `layout.shape_fields` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.graph import EdgeKind, FailurePolicy, InEdge, Join, LoopTopology, NodeTopology, OutEdge, Topology
from runner.limits import LimitShape
from runner.maps import MapTopology
from runner.store.layout import load

JSON = Any


def topology_of(graph_id: str, fingerprint: str, found: Mapping[bytes, bytes]) -> Topology:
    """Put a shape together."""
    meta = load(found[b"meta"])
    names = [field[2:].decode() for field in found if field.startswith(b"n:")]
    loops = sorted(int(field[2:]) for field in found if field.startswith(b"l:"))
    return Topology(
        graph_id=graph_id,
        fingerprint=fingerprint,
        entries=tuple(meta["entries"]),
        policy=FailurePolicy(meta["policy"]),
        limit=meta["limit"],
        timeout_ms=meta["timeout"],
        nodes={name: _node(load(found[f"n:{name}".encode()])) for name in names},
        outgoing={name: tuple(_out(edge) for edge in _edges(found, "o", name)) for name in names},
        incoming={name: tuple(_in(edge) for edge in _edges(found, "i", name)) for name in names},
        loops=tuple(_loop(load(found[b"l:%d" % number])) for number in loops),
        batches=meta.get("batches", False),
    )


def _edges(found: Mapping[bytes, bytes], kind: str, name: str) -> list[list[JSON]]:
    edges: list[list[JSON]] = load(found.get(f"{kind}:{name}".encode(), b"[]"))
    return edges


def _node(at: dict[str, JSON]) -> NodeTopology:
    items = MapTopology(*at["map"]) if "map" in at else None
    limits = tuple(LimitShape(*each) for each in at.get("limits", ()))
    more = {"join": Join(at["join"]), "loops": tuple(at["loops"]), "map": items, "limits": limits}
    return NodeTopology(**{**at, **more})


def _out(edge: list[JSON]) -> OutEdge:
    target, kind, scope, loop, *on_expire = edge
    return OutEdge(target, EdgeKind(kind), scope, loop, bool(on_expire))


def _in(edge: list[JSON]) -> InEdge:
    source, position, kind, loop = edge
    return InEdge(source, position, EdgeKind(kind), loop)


def _loop(at: dict[str, JSON]) -> LoopTopology:
    exits = tuple((source, position) for source, position in at["exits"])
    return LoopTopology(at["header"], at["size"], tuple(at["inner"]), tuple(at["outer"]), exits)
