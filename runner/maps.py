"""Maps: one node that runs its executor once for each item of a list.

Item 3 of the map `M` is the node `M[3]` of the same run, made when the list is known. The graph's
shape has one entry for them all, `M[]`. An item's visit is that of its map.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BRACKETS = "[]"
"""Ids with these belong to the items of maps; users' ids may not have them."""


@dataclass(frozen=True, slots=True)
class MapSpec:
    """What makes a node a map: `kind` is that of its executor, `over` says where its list is from.

    `over` is None, the id of a node before it, or a wrapped function; `concurrency` is how many items
    may be at work at once (None: all), `stops` whether the first failed item stops the map.
    """

    kind: str
    over: Any = None
    concurrency: int | None = None
    stops: bool = True


@dataclass(frozen=True, slots=True)
class MapTopology:
    """What scheduling knows of a map: how many items at once (0: all), and what a failed one does."""

    window: int
    stops: bool


def item_id(node: str, index: int) -> str:
    """Name an item of a map; the first one has index 0."""
    return f"{node}[{index}]"


def map_of(node: str) -> str:
    """Name the map that an item belongs to; "" for a node that is no item."""
    return node[: node.rindex("[")] if node.endswith("]") else ""


def index_of(node: str) -> int | None:
    """Read an item's place in its list; None for a node that is no item."""
    return int(node[node.rindex("[") + 1 : -1]) if node.endswith("]") else None


def shape_name(node: str) -> str:
    """Name the entry of the graph's shape that a node has: items share their map's `M[]`."""
    return node[: node.rindex("[")] + BRACKETS if node.endswith("]") else node


def shape_of(spec: MapSpec | None) -> MapTopology | None:
    """Work out what scheduling must know of a map; None for other nodes."""
    return MapTopology(spec.concurrency or 0, spec.stops) if spec else None


def signature(specs: Iterable[tuple[str, MapSpec | None]]) -> list[object]:
    """Say of maps what a fingerprint covers; nothing where there is none."""
    return [
        [node, isinstance(spec.over, str) and spec.over, spec.concurrency, spec.stops]
        for node, spec in specs
        if spec is not None
    ]
