"""Trees of hashes: their roots and proofs are those of RFC 9162, and prove nothing that is not so."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.audit.tree import (
    EMPTY,
    Frontier,
    inclusion_paths,
    is_included,
    leaf_hash,
    root_of,
)

# The entries and roots that the logs of Certificate Transparency test with.
ENTRIES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")
]
ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
}


def naive(entries):
    """The definition of the RFC, word for word."""
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\0" + entries[0]).digest()
    split = 1
    while split * 2 < len(entries):
        split *= 2
    return hashlib.sha256(b"\1" + naive(entries[:split]) + naive(entries[split:])).digest()


def leaves(number):
    return [leaf_hash(str(index).encode()) for index in range(number)]


@pytest.mark.parametrize("size", ROOTS)
def test_roots_are_those_of_known_logs(size):
    """A tree of the same entries has the root that other programs compute."""
    assert root_of([leaf_hash(entry) for entry in ENTRIES[:size]]).hex() == ROOTS[size]


@given(st.lists(st.binary(max_size=3), max_size=40))
def test_a_root_is_that_of_the_definition(entries):
    """Leaf by leaf the frontier comes to the root that the recursive definition gives."""
    tree = Frontier()
    for entry in entries:
        tree = tree.append(leaf_hash(entry))

    assert tree.root == naive(entries)
    assert tree.size == len(entries)
    assert len(tree.hashes) == len(entries).bit_count()
    assert bool(entries) or tree.root == EMPTY


@given(st.integers(1, 70), st.data())
def test_an_entry_is_proved_at_its_place_and_nowhere_else(size, data):
    """A path holds for its leaf, index, size and root, and not once one of them is another."""
    index = data.draw(st.integers(0, size - 1))
    tree = leaves(size)
    path, root = inclusion_paths(tree, [index])[index], root_of(tree)

    assert is_included(tree[index], index, size, path, root)
    assert not is_included(leaf_hash(b"other"), index, size, path, root)
    assert not is_included(tree[index], index, size, path, leaf_hash(b"other"))
    assert not is_included(tree[index], size, size, path, root)
    assert not is_included(tree[index], index, size, [*path, root], root)
    for other in range(size):
        assert is_included(tree[index], other, size, path, root) is (other == index)
    for place in range(len(path)):
        assert not is_included(tree[index], index, size, path[:place] + path[place + 1 :], root)
