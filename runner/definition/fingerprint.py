"""Fingerprints: hashes of a graph's shape and of each node, and the differences of two shapes.

Only declared structure is hashed, never code: a changed function body doesn't change the graph
unless its `version=` changes too.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple

from runner.definition import model
from runner.definition.model import (
    BRACKETS,
    HIDDEN,
    Definition,
    EdgeSpec,
    NodeTopology,
    Topology,
)


def signatures(definition: Definition) -> dict[str, str]:
    """Hash the parts that a waiting node depends on, by node: kind, version, join and edges."""
    touching: dict[str, list[object]] = {node: [] for node in definition.nodes}
    for edge in definition.edges:
        shape = _edge(edge)
        for node in {edge.source, edge.target}:
            touching[node].append(shape)
    return {
        node: _hash([node, spec.kind, spec.version, spec.join, spec.resume, touching[node]])
        for node, spec in definition.nodes.items()
    }


def fingerprint(definition: Definition) -> str:
    """Hash the shape of a graph: ids, edges, kinds and declared versions, never code."""
    nodes = [
        [spec.id, spec.kind, spec.version, spec.join, spec.resume, spec.queue, spec.priority]
        + [astuple(limit) for limit in spec.limits]
        for spec in definition.nodes.values()
    ]
    edges = [_edge(edge) for edge in definition.edges]
    limits = [definition.policy, definition.max_node_executions, definition.execution_timeout]
    queue: list[object] = [definition.queue] if definition.queue else []
    queue += [astuple(definition.admission)] if definition.admission else []
    queue += [astuple(definition.fairness)] if definition.fairness else []
    return _hash(
        [
            definition.id,
            definition.version,
            nodes,
            edges,
            definition.entries,
            limits,
            *model.signature((spec.id, spec.map) for spec in definition.nodes.values()),
            *queue,
        ]
    )


def _edge(edge: EdgeSpec) -> list[object]:
    return [edge.source, edge.target, edge.condition is not None, edge.back, edge.on_expire]


def _hash(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2s(text.encode(), digest_size=10).hexdigest()


def changes(recorded_shape: Topology, present_shape: Topology) -> dict[str, str]:
    """Return the reasons, as clauses, why nodes can't continue in a new shape, by node."""
    reasons = {}
    for name, node in recorded_shape.nodes.items():
        today = present_shape.nodes.get(name)
        if not name.endswith(BRACKETS) and (today is None or today.signature != node.signature):
            reasons[name] = difference(recorded_shape, present_shape, name)
    return reasons


def difference(recorded_shape: Topology, present_shape: Topology, name: str) -> str:
    """Describe the differences of a node between an old shape and a new one."""
    was = recorded_shape.nodes[name]
    now = present_shape.nodes.get(name)
    if now is None:
        if name.startswith(HIDDEN):
            return "the graph's hooks are gone"
        return "the graph has no such node now"
    reasons = [*_own(was, now), *_edges(recorded_shape, present_shape, name)]
    return "; ".join(reasons) or "its edges have other conditions or another order"


def _own(was: NodeTopology, now: NodeTopology) -> Iterator[str]:
    if was.kind != now.kind:
        yield f"it was a {was.kind} and is a {now.kind} now"
    if was.version != now.version:
        yield f'its version was "{was.version}" and is "{now.version}" now'
    if was.join != now.join:
        yield f"its join was {was.join} and is {now.join} now"
    if was.each != now.each:
        resume_names = {True: "each", False: "all"}
        yield f"its resume was {resume_names[was.each]} and is {resume_names[now.each]} now"


def _edges(recorded_shape: Topology, present_shape: Topology, name: str) -> Iterator[str]:
    edges_then = _touching(recorded_shape, name)
    edges_now = _touching(present_shape, name)
    for source, target in sorted((edges_then - edges_now).keys()):
        yield f"the edge from {source} to {target} is gone"
    for source, target in sorted((edges_now - edges_then).keys()):
        yield f"the edge from {source} to {target} is new"


def _touching(shape: Topology, name: str) -> Counter[tuple[str, str]]:
    outgoing = Counter((name, edge.target) for edge in shape.outgoing[name])
    return outgoing + Counter((edge.source, name) for edge in shape.incoming[name])
