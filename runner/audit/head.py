"""The head of a partition's audit: how far its entries are sealed, signed and anchored."""

from __future__ import annotations

import base64
from dataclasses import field

from runner.audit.tree import Frontier
from runner.immutable import immutable

BEGINNING = "0-0"
"""Id before any entry's."""

PAGE = 1_000
"""Number of entries or leaves read at once."""


@immutable
class Head:
    """Progress of sealing and signing the audit; `now` is the server's time in ms.

    `last` is the stream id of the last sealed entry. `first` is the number of the first entry still
    in the store, `base` the tree before it, `steps` the number of steps that appended the sealed
    entries since. `note` is the checkpoint of the first `signed` entries, and `key` verifies it;
    all anchors have a checkpoint of `anchored` entries. `problem` says why nothing is signed or
    anchored, or is "". `epoch` counts abandoned trees.
    """

    now: int
    size: int = 0
    last: str = BEGINNING
    frontier: Frontier = field(default_factory=Frontier)
    first: int = 0
    base: Frontier = field(default_factory=Frontier)
    steps: int = 0
    signed: int = 0
    signed_at: int = 0
    note: str = ""
    key: str = ""
    anchored: int = 0
    problem: str = ""
    epoch: int = 0


def tree_fields(name: str, count: str, tree: Frontier) -> dict[str, str | int]:
    """Return a tree as fields of the head."""
    return {
        count: tree.size,
        name: " ".join(base64.b64encode(leaf).decode() for leaf in tree.hashes),
    }


def read_tree(size: int, hashes: str) -> Frontier:
    """Read a tree written by `tree_fields`."""
    return Frontier(size, tuple(base64.b64decode(leaf) for leaf in hashes.split()))
