"""The audit ledger of one partition: a stream to which transitions append, and a tree over it.

Entries are appended by the commits that make them true. Their place in the tree, and their hashes, are
computed later, outside of the server: the head records the progress, and changes as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.approvals import digests
from runner.audit import entries as audit_entries
from runner.audit.entries import Mode
from runner.audit.head import BEGINNING, PAGE, Head, read_tree, tree_fields
from runner.records.codec import JSONMapping
from runner.records.run import RunRecord
from runner.store.encoding import dump
from runner.store.redis.connection import Argument, RedisConnection
from runner.store.redis.keys import Keys, run_key
from runner.store.redis.transaction.sets import WriteSet


def append(write_set: WriteSet, entry: JSONMapping) -> None:
    """Append an entry in a transaction."""
    document = {**entry, "partition": write_set.settings.partition}
    text = dump(document)
    if not document["at"]:
        text = b"\1" + write_set.dump_with_time(document)
    write_set.audit_entries.append(text)


def note_removal(write_set: WriteSet, run: RunRecord) -> None:
    """Append the last entry of a run that is removed, if it was audited."""
    if write_set.settings.audit == "off":
        return
    number = int(write_set.read(run_key(run.run_id), "audit") or 0)
    if number:
        append(
            write_set, {**audit_entries.removed(run, write_set.read_set.now), "run_n": number}
        )


@dataclass
class AuditLog:
    """The entries of a partition, and the head of their tree; `_name` is the partition's in checkpoints."""

    _redis: RedisConnection
    _keys: Keys
    _call: Callable[..., list[Any]]
    _name: str
    _mode: Mode = "approvals"

    def origin(self, epoch: int = 0) -> str:
        """Name the tree in checkpoints."""
        return f"{self._name}/{epoch}" if epoch else self._name

    def head(self) -> Head:
        # The clock is read on the thread's connection: the pool would open another one.
        now = self._redis.now()
        texts = self._redis.texts(self._keys.audit_head)
        numbers = {
            name: int(texts.get(name, 0))
            for name in ("size", "first", "steps", "signed", "signed_at", "anchored", "epoch")
        }
        return Head(
            now=now,
            last=texts.get("last", BEGINNING),
            frontier=read_tree(numbers["size"], texts.get("frontier", "")),
            base=read_tree(numbers["first"], texts.get("base", "")),
            note=texts.get("note", ""),
            key=texts.get("key", ""),
            problem=texts.get("problem", ""),
            **numbers,
        )

    def after(self, last: str, limit: int = PAGE) -> list[tuple[str, bytes]]:
        """Read the entries of `limit` steps after an id, as they were appended, each with its step's id."""
        rows: list[tuple[bytes, list[bytes]]] = self._redis.call(
            "XRANGE", self._keys.audit, f"({last}", "+", "COUNT", limit
        )
        return [(name.decode(), text) for name, fields in rows for text in fields[1::2]]

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """Read all entries that are still here, oldest first."""
        last = BEGINNING
        while page := self.after(last):
            yield from page
            last = page[-1][0]

    def leaves(self, start: int, end: int) -> Iterator[bytes]:
        """Read the hashes of a range of the entries that are still here."""
        for first in range(start, end, PAGE):
            rows: list[bytes] = self._redis.call(
                "LRANGE", self._keys.audit_leaves, first, min(first + PAGE, end) - 1
            )
            yield from rows

    def change(
        self,
        head: Head,
        fields: Mapping[str, Argument],
        leaves: Sequence[bytes] = (),
        *,
        trimmed: int = 0,
        stays: str = "",
    ) -> bool:
        """Set fields of the head, add leaves, and trim; return False if the head has changed since."""
        known = (head.size, head.first, head.signed, head.epoch)
        pairs = (part for pair in fields.items() for part in pair)
        reply = self._call(
            "seal", *known, len(fields), *pairs, len(leaves), *leaves, trimmed, stays
        )
        return bool(reply[0] == b"sealed")

    def restart(self, head: Head) -> bool:
        """Replace the tree by a new one, of another origin, over all entries that are still here."""
        fresh = Head(head.now)
        fields = {
            **tree_fields("frontier", "size", fresh.frontier),
            **tree_fields("base", "first", fresh.base),
            "last": BEGINNING,
            "steps": 0,
            "signed": 0,
            "signed_at": 0,
            "note": "",
            "anchored": 0,
            "problem": "",
            "epoch": head.epoch + 1,
        }
        return self.change(head, fields, trimmed=head.size - head.first, stays=BEGINNING)

    def note(
        self,
        type_: str,
        *,
        actor: str = "",
        reason: str = "",
        outcome: JSONMapping | None = None,
    ) -> None:
        """Append an entry outside of any run's step; a repeat after a lost reply appends another.

        Nothing is appended if the audit is off.
        """
        if self._mode == "off":
            return
        hashes = {"payload": digests.payload_digest(reason)} if reason else None
        entry = audit_entries.entry(
            type_, at=self.head().now, actor=actor, hashes=hashes, outcome=outcome
        )
        partition = self._keys.partition
        self._redis.call(
            "XADD", self._keys.audit, "*", "e", dump({**entry, "partition": partition})
        )

    def unsealed(self, head: Head) -> tuple[int, int]:
        """Return the number of steps whose entries aren't sealed yet, and the oldest one's wait in ms."""
        waiting = max(0, int(self._redis.call("XLEN", self._keys.audit)) - head.steps)
        oldest = self.after(head.last, 1) if waiting else []
        return waiting, head.now - int(oldest[0][0].partition("-")[0]) if oldest else 0
