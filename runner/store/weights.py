"""How many bytes a run in memory has with all runs inside it, counted as lua/parts/size.lua counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from runner import sizes
from runner.migrating import Renamed
from runner.outcomes import Saved
from runner.store.layout import LARGE, digest, dump

JSON = Any

Piece = tuple[str | int, ...]
"""What is written anew or goes again: its kind, then where it is."""


class Lengths(NamedTuple):
    """What a node keeps, in bytes: its document, how many messages stay, those after them."""

    document: int
    stay: int
    messages: list[int]


class Weights:
    """The bytes of a run and of all inside it. A large value counts once, for all that refer to it."""

    def __init__(self, root: str) -> None:
        """`root` is the outermost run."""
        self.root, self.total = root, 0
        self._large: set[str] = set()
        self._pieces: dict[Piece, int] = {}
        self._messages: dict[tuple[str, str], list[int]] = {}
        self._weighed: tuple[Saved | None, Lengths | None] = (None, None)

    def room(self, more: int, most: int) -> None:
        """Refuse so many bytes more.

        Raises:
            PayloadTooLarge: the run would have more than `most`.
        """
        if more > 0 and self.total + more > most:
            raise sizes.no_room(self.total, more, most)

    def add(self, size: int) -> None:
        """Count what stays."""
        self.total += size

    def put(self, piece: Piece, size: int) -> None:
        """Count what may be written anew; what it was before counts no more."""
        self.total += size - self._pieces.get(piece, 0)
        self._pieces[piece] = size

    def drop(self, piece: Piece) -> int:
        """Count no more what is gone; return what it had."""
        size = self._pieces.pop(piece, 0)
        self.total -= size
        return size

    def exchange(self, names: Sequence[tuple[Piece, Piece]]) -> None:
        """Count pieces under other names: all are taken away before one is put."""
        taken = [(new, self.drop(old)) for old, new in names if old in self._pieces]
        for new, size in taken:
            self.put(new, size)

    def knows(self, data: bytes) -> bool:
        """Tell whether a value is written where it belongs, or lies apart already."""
        return len(data) <= LARGE or digest(data) in self._large

    def shelve(self, data: bytes) -> bytes:
        """Put a large value apart, once; return what is written in its place."""
        if len(data) <= LARGE:
            return data
        if not self.knows(data):
            self._large.add(digest(data))
            self.total += len(data)
        return self.reference(data)

    def reference(self, data: bytes) -> bytes:
        """Give what is written for a value: a reference where it is large."""
        return data if len(data) <= LARGE else f"@{self.root} {digest(data)}".encode()

    # -- what nodes keep ---------------------------------------------------------------------------

    def more(self, run_id: str, node: str, saved: Saved | None) -> int:
        """Tell by how much a run grows when a node keeps something else."""
        if saved is None:
            return 0
        kept, gone = self._lengths(saved), self._messages.get((run_id, node), [])[saved.keep :]
        return kept.document - self._pieces.get(("s", run_id, node), 0) + sum(kept.messages) - sum(gone)

    def keep(self, run_id: str, node: str, saved: Saved) -> None:
        """Count what a node keeps now."""
        self.total += self.more(run_id, node, saved)
        kept = self._lengths(saved)
        self._pieces["s", run_id, node] = kept.document
        self._messages.setdefault((run_id, node), [])[kept.stay :] = kept.messages

    def forget(self, run_id: str, node: str) -> None:
        """Count no more what a node kept."""
        self.drop(("s", run_id, node))
        self.total -= sum(self._messages.pop((run_id, node), []))

    def kept(self, run_id: str, node: str) -> tuple[int, list[int]]:
        """Return the bytes of a node's document and messages."""
        return self._pieces.get(("s", run_id, node), 0), list(self._messages.get((run_id, node), []))

    def exchange_kept(self, run_id: str, renamed: Sequence[Renamed]) -> None:
        """Count what nodes keep under other names, with other documents or none."""
        taken = [((run_id, each.today), self._messages.pop((run_id, each.node), [])) for each in renamed]
        for each in renamed:
            self.drop(("s", run_id, each.node))
        for each in renamed:
            if each.document is not None:
                self.put(("s", run_id, each.today), len(dump(each.document)))
        self._messages |= {at: sizes for at, sizes in taken if sizes}

    def take_over(self, at: tuple[str, str], kept: tuple[int, list[int]]) -> None:
        """Count what another node kept as this one's."""
        self.put(("s", *at), kept[0])
        self.total += sum(kept[1]) - sum(self._messages.get(at, []))
        self._messages[at] = kept[1]

    def _lengths(self, saved: Saved) -> Lengths:
        """Weigh what is asked about twice once."""
        known, lengths = self._weighed
        if known is not saved or lengths is None:
            lengths = Lengths(
                len(dump(saved.document)), saved.keep, [len(dump(each)) for each in saved.messages]
            )
            self._weighed = (saved, lengths)
        return lengths
