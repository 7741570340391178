"""Large values: each is stored once for a run and all runs inside it, under a digest of its bytes.

In its place stands a reference, `@root digest`, which no JSON looks like; scripts pass it on unread. So
one value that goes through many nodes, or up from a graph inside, is written once, and whoever needs it
asks once more for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runner.errors import CorruptDocument
from runner.store.keys import Keys
from runner.store.layout import LARGE, digest
from runner.store.link import Link

MARK = b"@"


class Blobs:
    """The large values of one partition."""

    def __init__(self, link: Link, keys: Keys, run: Callable[..., list[Any]]) -> None:
        """`run` calls a script by its name."""
        self._link, self._keys, self._run = link, keys, run

    def put(self, run_id: str, data: bytes) -> bytes:
        """Return what to write for a value: the value itself, or a reference where it is large."""
        if len(data) <= LARGE:
            return data
        name = digest(data)
        word, *root = self._run("shelve", run_id, name, data)
        # A run that is gone refuses what comes next, too.
        return MARK + root[0] + b" " + name.encode() if word == b"shelved" else data

    def get(self, found: Sequence[bytes | None]) -> list[bytes | None]:
        """Give values with those in the place of references.

        Raises:
            CorruptDocument: a value is gone.
        """
        wanted = {each for each in found if each is not None and each.startswith(MARK)}
        if not wanted:
            return list(found)
        large = self._read(wanted)
        return [large.get(each, each) if each is not None else None for each in found]

    def whole(self, own: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Give the fields of a run's hash with the values in the place of references.

        Raises:
            CorruptDocument: a value is gone.
        """
        places = {field: _place(field, value) for field, value in own.items()}
        refers = {f: place for f, place in places.items() if place >= 0 and own[f].startswith(MARK, place)}
        if not refers:
            return dict(own)
        large = self._read({own[field][place:] for field, place in refers.items()})
        return {**own, **{f: own[f][:place] + large[own[f][place:]] for f, place in refers.items()}}

    def _read(self, wanted: Iterable[bytes]) -> dict[bytes, bytes]:
        wanted = list(wanted)
        with self._link.translated(), self._link.client.pipeline(transaction=False) as pipe:
            for each in wanted:
                root, _, digest = each[1:].decode().partition(" ")
                pipe.hget(self._keys.run(root, ":b"), digest)
            found = dict(zip(wanted, pipe.execute(), strict=True))
        gone = [each.decode() for each, data in found.items() if data is None]
        if gone:
            raise CorruptDocument(f"the stored value {gone[0]} is gone, though a run refers to it.")
        return found


def _place(field: bytes, value: bytes) -> int:
    """Say where in a field a reference would begin: an entry comes after its place in the order."""
    if field.startswith(b"x:"):
        return value.find(b" ") + 1
    return 0 if field in {b"task", b"given"} or field.startswith((b"o:", b"h:")) else -1
