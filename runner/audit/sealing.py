"""Sealing the audit: entries get a place and a hash, the tree is signed at intervals, old ones are archived.

Any number of processes may seal at once. An entry's hash depends on the stream alone, and the head
of the tree changes as a whole or not at all, so a worker that is late, crashes or repeats a request
can't make a different tree. Before signing, a process compares the tree with the last anchored
checkpoint: a store that has lost or replaced entries is not signed again.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.approvals.digests import canonical
from runner.audit import entries as audit_entries
from runner.audit.anchors import Anchor, anchors
from runner.audit.head import PAGE, Head, tree_fields
from runner.audit.tree import Frontier, leaf_of
from runner.errors import (
    ArchiveError,
    CorruptDocument,
    UnstorableError,
    UsageError,
    needs_extra,
)
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSONMapping, JSONObject

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from runner.settings import Settings
    from runner.store.archive.interface import Archive
    from runner.store.shared import AuditLog

log = logging.getLogger(__name__)

SIGN_AFTER = 1_000
"""Number of entries after which a checkpoint is signed early."""


@immutable
class Signer:
    """Key that signs checkpoints, and its name in them."""

    name: str
    key: Ed25519PrivateKey

    def public(self) -> str:
        """Return the public key in the form that checkpoint verifiers take."""
        from runner.audit.checkpoint import verifier_key  # noqa: PLC0415 - needs an extra

        return verifier_key(self.name, self.key.public_key())


def read_signer(path: str, name: str) -> Signer:
    """Read the key that RUNNER_AUDIT_KEY names: a file with an Ed25519 key as PEM or as a JSON Web Key.

    Raises:
        UsageError: it can't be read, or the package for it is not installed.
    """
    with needs_extra("audit", "RUNNER_AUDIT_KEY"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - an extra
            Ed25519PrivateKey,
        )
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - as above
    try:
        data = Path(path).expanduser().read_bytes()
        if data.lstrip().startswith(b"{"):
            key: object = Ed25519PrivateKey.from_private_bytes(
                base64.urlsafe_b64decode(str(json.loads(data)["d"]) + "==")
            )
        else:
            key = load_pem_private_key(data, None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"RUNNER_AUDIT_KEY: {path} has no Ed25519 key: {error}.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"RUNNER_AUDIT_KEY: {path} has a key of another kind than Ed25519.")
    return Signer(name, key)


@immutable
class SealingPolicy:
    """The policy for signing and archiving the audit; times in ms. See the settings of the same names."""

    signer: Signer | None = None
    anchors: Sequence[Anchor] = ()
    sign_ms: int = 60_000
    keep_ms: int = 183 * 86_400_000
    archive: Archive | None = None


def sealing_policy(settings: Settings, archive: Archive | None = None) -> SealingPolicy:
    """Read the settings of the audit.

    Raises:
        UsageError: the key or an anchor can't be used.
    """
    return SealingPolicy(
        read_signer(settings.audit_key, settings.namespace) if settings.audit_key else None,
        anchors(settings.audit_anchor),
        round(settings.audit_sign * 1000),
        round(settings.audit_keep * 1000),
        archive,
    )


def sealed_entry(raw: bytes, n: int) -> JSONObject:
    """Return an entry with its place in the tree; an item that isn't an entry is recorded by its hash."""
    try:
        value = codec.load_json(raw)
        if isinstance(value, dict):
            entry = {**value, "n": n}
            canonical(entry, "an entry of the audit")
            return entry
    except (UnstorableError, CorruptDocument):
        pass
    return audit_entries.malformed(n, "sha256:" + hashlib.sha256(raw).hexdigest())


class Sealing:
    """Sealer of one partition's audit: seals, signs and trims some entries in each pass.

    `problem` says why nothing is signed or anchored, or is "".
    """

    def __init__(self, audit: AuditLog, conditions: SealingPolicy) -> None:
        self._log = audit
        self._terms = conditions
        self.problem = ""
        self._idle_at: str | None = None

    def is_idle(self) -> bool:
        """Return whether nothing came since a pass that had nothing to do; this is one small read."""
        return self._idle_at is not None and not self._log.after(self._idle_at, 1)

    def run_once(self, *, sign_now: bool = False) -> bool:
        """Seal up to a thousand entries; return whether more may wait. `sign_now` signs at once.

        Raises:
            StoreError: the store can't be reached.
        """
        head = self._log.head()
        self.problem = head.problem
        rows = self._log.after(head.last)
        if rows and not self._seal(head, rows):
            return True  # another worker sealed them
        if rows:
            head = self._log.head()
        self._sign(head, at_once=sign_now and len(rows) < PAGE)
        if self._terms.archive is not None:
            self._trim(self._log.head())
        is_done = not rows and self._terms.archive is None and not self.problem
        waits = self._terms.signer is not None and (
            head.size > head.signed or head.anchored < head.signed
        )
        self._idle_at = head.last if is_done and not waits else None
        return len(rows) >= PAGE

    def _seal(self, head: Head, rows: Sequence[tuple[str, bytes]]) -> bool:
        leaves = [leaf_of(sealed_entry(raw, n)) for n, (_, raw) in enumerate(rows, head.size)]
        fields = {
            **tree_fields("frontier", "size", head.frontier.extend(leaves)),
            "last": rows[-1][0],
            "steps": head.steps + _steps(rows),
        }
        return self._log.change(head, fields, leaves)

    # Signing

    def _sign(self, head: Head, *, at_once: bool) -> None:
        signer = self._terms.signer
        if signer is None:
            return
        unsigned_count = head.size - head.signed
        since_signing = head.now - head.signed_at
        is_due = unsigned_count > 0 and (
            at_once or unsigned_count >= SIGN_AFTER or since_signing >= self._terms.sign_ms
        )
        if not is_due and (head.anchored >= head.signed or not head.note):
            return
        try:
            self._compare(head, signer)
        except ArchiveError as error:
            self._report(head, str(error))
            return
        if is_due:
            from runner.audit.checkpoint import Checkpoint, sign  # noqa: PLC0415 - needs an extra

            checkpoint = Checkpoint(self._log.origin(head.epoch), head.size, head.frontier.root)
            note = sign(checkpoint, signer.name, signer.key)
            updates: dict[str, str | int] = {
                "signed": head.size,
                "signed_at": head.now,
                "note": note,
                "key": signer.public(),
            }
            if not self._log.change(head, updates):
                return  # sealed further, or signed, by another worker
            if head.key not in {"", signer.public()}:
                self._log.note("key.rotated", outcome={"key": signer.public()})
            head = replace(head, signed=head.size, signed_at=head.now, note=note)
        self._anchor(head)

    def _anchor(self, head: Head) -> None:
        try:
            for anchor in self._terms.anchors:
                anchor.write(head.note)
        except ArchiveError as error:
            self._report(head, str(error))
            return
        self.problem = ""
        if self._log.change(head, {"anchored": head.signed, "problem": ""}) and head.problem:
            log.warning("audit.resumed: the audit is signed and anchored again.")

    def _compare(self, head: Head, signer: Signer) -> None:
        """Check that the tree continues the last anchored checkpoints.

        Raises:
            ArchiveError: it does not, or an anchor can't be read.
        """
        from runner.audit.checkpoint import read  # noqa: PLC0415 - needs an extra

        for anchor in self._terms.anchors:
            note = anchor.last(self._log.origin(head.epoch))
            if not note or note == head.note:
                continue
            try:
                anchored_checkpoint = read(note, {signer.name: signer.key.public_key()})
            except UsageError as error:
                raise ArchiveError(
                    f"The last checkpoint of {anchor.name} can't be used: {error}"
                ) from error
            if anchored_checkpoint.size > head.size:
                raise ArchiveError(
                    f"{anchor.name} has a checkpoint of {anchored_checkpoint.size} entries, and the store "
                    f"has only {head.size}: it has lost some. Nothing is signed until `runner audit restart`."
                )
            if self.tree_at(head, anchored_checkpoint.size).root != anchored_checkpoint.root:
                raise ArchiveError(
                    f"{anchor.name} has a checkpoint of {anchored_checkpoint.size} entries that are not "
                    "those in the store. Nothing is signed until `runner audit restart`."
                )

    def tree_at(self, head: Head, size: int) -> Frontier:
        """Return the tree of the first `size` entries, or of the archived entries if these are more."""
        if size == head.size:
            return head.frontier
        return head.base.extend(self._log.leaves(0, size - head.first))

    def _report(self, head: Head, problem: str) -> None:
        self.problem = problem
        if problem != head.problem:
            log.error("audit.unsigned: %s See `runner doctor`.", problem)
            self._log.change(head, {"problem": problem})

    # Trimming: entries that are sealed, signed if a key is set, and old enough go to the archive.

    def _trim(self, head: Head) -> None:
        archive = self._terms.archive
        sealed_count = (head.signed if self._terms.signer else head.size) - head.first
        if archive is None or sealed_count <= 0:
            return
        cutoff = head.now - self._terms.keep_ms
        rows = self._log.after("0-0")
        old_rows = [
            row for row in rows[:sealed_count] if int(row[0].partition("-")[0]) < cutoff
        ]
        # The entries of the last step read stay: its id says where the stream begins.
        old_rows = [row for row in old_rows if row[0] != rows[-1][0]]
        if not old_rows:
            return
        leaves = list(self._log.leaves(0, len(old_rows)))
        lines = [
            line(sealed_entry(raw, n), leaf)
            for n, (_, raw), leaf in zip(
                range(head.first, head.first + len(old_rows)), old_rows, leaves, strict=False
            )
        ]
        try:
            archive.write_audit(self._log.origin(head.epoch), head.first, lines)
        except ArchiveError as error:
            self._report(head, str(error))
            return
        fields = {
            **tree_fields("base", "first", head.base.extend(leaves)),
            "steps": head.steps - _steps(old_rows),
        }
        self._log.change(head, fields, trimmed=len(old_rows), stays=rows[len(old_rows)][0])


def _steps(rows: Sequence[tuple[str, bytes]]) -> int:
    """Count the steps that appended these entries: entries of one step share its id."""
    return len({name for name, _ in rows})


def line(entry: JSONMapping, leaf: bytes) -> str:
    """Format an entry with its hash as a line of an archive."""
    return json.dumps(
        {"entry": dict(entry), "leaf": base64.b64encode(leaf).decode()},
        ensure_ascii=False,
        separators=(",", ":"),
    )


def read_line(text: str) -> tuple[JSONObject, bytes]:
    """Read an entry with its hash.

    Raises:
        ValueError: the line has another form.
    """
    value = json.loads(text)
    try:
        return value["entry"], base64.b64decode(value["leaf"], validate=True)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no entry of the audit: {text:.80}") from error


def sealed(
    audit: AuditLog, head: Head, archive: Archive | None, leaves: list[bytes]
) -> Iterator[JSONObject]:
    """Read the signed entries, from the archive and then from the store; `leaves` gets their hashes.

    Raises:
        UsageError: some were archived, but no archive is set here. ArchiveError: it lacks some.
    """
    if head.first:
        if archive is None:
            raise UsageError(
                f"the first {head.first} entries are in the archive; set RUNNER_ARCHIVE."
            )
        origin = audit.origin(head.epoch)
        n = 0
        for text in archive.read_audit(origin):
            entry, leaf = read_line(text)
            if entry.get("n") == n < head.first:
                n += 1
                leaves.append(leaf)
                yield entry
        if n < head.first:
            raise ArchiveError(f"The archive {archive.place} lacks entry {n} of the audit.")
    leaves += audit.leaves(0, head.signed - head.first)
    here = itertools.islice(audit.kept(), max(0, head.signed - head.first))
    yield from (sealed_entry(raw, n) for n, (_, raw) in enumerate(here, head.first))
