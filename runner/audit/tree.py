"""Merkle trees as in RFC 9162, section 2.1: a root for any number of entries, and proofs of few hashes.

For a reader who has a root, a proof shows that an entry is in the tree, without the other entries.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence

from runner.approvals.digests import canonical
from runner.immutable import immutable
from runner.records.codec import JSONMapping

EMPTY = hashlib.sha256().digest()
"""Root of a tree without entries."""


def leaf_hash(entry: bytes) -> bytes:
    """Hash an entry; the zero byte distinguishes it from a pair of hashes."""
    return hashlib.sha256(b"\0" + entry).digest()


def leaf_of(entry: JSONMapping) -> bytes:
    """Return the leaf hash of an entry, over its canonical JSON."""
    return leaf_hash(canonical(dict(entry), "an entry of the audit"))


def parent_hash(left_hash: bytes, right: bytes) -> bytes:
    """Hash two subtrees into their parent."""
    return hashlib.sha256(b"\1" + left_hash + right).digest()


@immutable
class Frontier:
    """A tree that can grow, without its leaves: the roots of its full subtrees, largest first.

    There are as many as `size` has bits set, at most 64; nothing else must be stored to go on.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def append(self, leaf: bytes) -> Frontier:
        """Return the tree with one more leaf hash."""
        hashes = [*self.hashes, leaf]
        size = self.size
        while size & 1:  # two full subtrees of the same size become one
            right = hashes.pop()
            hashes[-1] = parent_hash(hashes[-1], right)
            size >>= 1
        return Frontier(self.size + 1, tuple(hashes))

    def extend(self, leaves: Iterable[bytes]) -> Frontier:
        """Return the tree with more leaf hashes."""
        return functools.reduce(Frontier.append, leaves, self)

    @property
    def root(self) -> bytes:
        """The root: the subtrees joined from the smallest to the largest."""
        if not self.hashes:
            return EMPTY
        *larger, root = self.hashes
        for subtree in reversed(larger):
            root = parent_hash(subtree, root)
        return root


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes."""
    return Frontier().extend(leaves).root


def inclusion_paths(leaves: Sequence[bytes], indexes: Sequence[int]) -> dict[int, list[bytes]]:
    """Return the sibling hashes on the paths from leaves to the root, the lowest first, by their places.

    Each subtree is hashed once.
    A place outside the tree gets an empty path, which proves nothing.
    """
    paths: dict[int, list[bytes]] = {index: [] for index in indexes}

    def root(start: int, end: int, indexes: Sequence[int]) -> bytes:
        if not indexes or end - start < 2:
            return leaves[start] if end - start == 1 else root_of(leaves[start:end])
        middle = start + _split(end - start)
        left_indexes = [index for index in indexes if index < middle]
        right = [index for index in indexes if index >= middle]
        hashes = root(start, middle, left_indexes), root(middle, end, right)
        for index in left_indexes:
            paths[index].append(hashes[1])
        for index in right:
            paths[index].append(hashes[0])
        return parent_hash(*hashes)

    root(0, len(leaves), sorted({index for index in indexes if 0 <= index < len(leaves)}))
    return paths


def is_included(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Return whether a path proves that the tree of that root and size has this leaf at that index."""
    if not 0 <= index < size:
        return False
    position = index
    last_index = size - 1
    value = leaf
    for sibling in path:
        if last_index == 0:
            return False
        if position & 1 or position == last_index:
            value = parent_hash(sibling, value)
            while not position & 1 and position:
                position = position >> 1
                last_index = last_index >> 1
        else:
            value = parent_hash(value, sibling)
        position = position >> 1
        last_index = last_index >> 1
    return last_index == 0 and value == root


def _split(size: int) -> int:
    """Return the largest power of two below a size: the number of leaves in the left subtree."""
    return 1 << (size - 1).bit_length() - 1
