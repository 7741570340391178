"""How a deploy is noticed: hashes of a graph's shape and of what each node needs to go on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from typing import TYPE_CHECKING

from runner.maps import signature

if TYPE_CHECKING:
    from runner.graph import Definition, EdgeSpec


def signatures(definition: Definition) -> dict[str, str]:
    """Hash what each waiting node needs to go on: kind, version, join and its own edges."""
    # The node that chooses the next batch looks at every edge: see `graph.BATCH`.
    chooser = "@batch"
    touching: dict[str, list[object]] = {node: [] for node in definition.nodes}
    for edge in definition.edges:
        shape = _edge(edge)
        for node in {edge.source, edge.target, chooser} & touching.keys():
            touching[node].append(shape)
    return {
        node: _hash([node, spec.kind, spec.version, spec.join, spec.resume, touching[node]])
        for node, spec in definition.nodes.items()
    }


def fingerprint(definition: Definition) -> str:
    """Hash the shape of a graph: ids, edges, kinds and declared versions, never code."""
    nodes = [
        [spec.id, spec.kind, spec.version, spec.join, spec.resume, spec.queue, spec.priority]
        for spec in definition.nodes.values()
    ]
    edges = [_edge(edge) for edge in definition.edges]
    limits = [definition.policy, definition.max_node_executions, definition.execution_timeout]
    more: list[object] = [definition.compat] if definition.compat else []
    more += signature((spec.id, spec.map) for spec in definition.nodes.values())
    # Left out where there are none: what was stored before there were limits keeps its name.
    more += [[spec.id, *map(astuple, spec.limits)] for spec in definition.nodes.values() if spec.limits]
    return _hash([definition.id, definition.version, nodes, edges, definition.entries, limits, *more])


def _edge(edge: EdgeSpec) -> list[object]:
    # What was stored before edges could be for expired questions keeps its name.
    later = [True] if edge.on_expire else []
    return [edge.source, edge.target, edge.condition is not None, edge.back, *later]


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2s(text.encode(), digest_size=10).hexdigest()
