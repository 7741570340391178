"""Files of the audit: its signing key, exports, and their verification, also without a store."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.approvals.decision_keys import DecisionKeys
from runner.approvals.keys import new_key, write_private
from runner.audit.sealing import (
    Sealing,
    SealingPolicy,
    Signer,
    read_signer,
    sealed,
    sealing_policy,
)
from runner.errors import UsageError, needs_extra
from runner.immutable import immutable
from runner.records.codec import JSON, JSONMapping
from runner.records.run_ids import partition_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from runner.audit.export import Verdict
    from runner.store.shared import AuditLog, Shared


def export_lines(
    audit: AuditLog,
    conditions: SealingPolicy,
    run_id: str = "",
    votes_of: Callable[[Iterable[str]], Iterable[JSON]] | None = None,
) -> Iterator[str]:
    """Write a partition's signed entries, or one run's. With the signing key, new entries are signed first.

    `votes_of` is as for `export`.

    Raises:
        UsageError: nothing is signed. ArchiveError: archived entries can't be read.
        StoreError: the store can't be reached.
    """
    from runner.audit.export import export  # noqa: PLC0415 - needs an extra

    if conditions.signer is not None:
        sealing = Sealing(audit, conditions)
        while sealing.run_once(sign_now=True):
            continue
        if sealing.problem:
            raise UsageError(f"the audit can't be signed: {sealing.problem}")
    head = audit.head()
    if not head.note:
        raise UsageError(
            "nothing of the audit is signed; set RUNNER_AUDIT_KEY for the workers or here."
        )
    leaves: list[bytes] = []
    entries = sealed(audit, head, conditions.archive, leaves)
    return export(entries, [head.note], [head.key], run_id, leaves, votes_of=votes_of)


def own_key(path: Path, name: str) -> Signer:
    """Read the audit's key, or make it: a file that only its owner can read.

    Raises:
        UsageError: the file can't be used.
    """
    if not path.exists():
        public, private_members = new_key()
        write_private(path, {**public, **private_members})
    return read_signer(str(path), name)


def read_public(path_or_key: str) -> Mapping[str, Ed25519PublicKey]:
    """Read public keys: `name+id+key` as `runner audit key` prints it, or a file with such lines, PEM or JWK.

    The result is by `name+id`; a PEM or JWK key has an id but no name: see `checkpoint.read`.

    Raises:
        UsageError: it has none of these forms.
    """
    with needs_extra("audit", "the key of the audit"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415 - as above

    path = Path(path_or_key)
    if not path.is_file():
        if "+" in path_or_key:
            return _by_id([path_or_key])
        raise UsageError(f"no file {path_or_key!r} with a public key was found.")
    data = path.read_bytes()
    try:
        if b"-----BEGIN" in data:
            key: object = load_pem_public_key(data)
        elif data.lstrip().startswith(b"{"):
            key = Ed25519PublicKey.from_public_bytes(
                base64.urlsafe_b64decode(json.loads(data)["x"] + "==")
            )
        else:
            return _by_id(line for line in data.decode().splitlines() if line.strip())
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path_or_key!r} has no Ed25519 public key: {error}.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path_or_key!r} has a key of another kind than Ed25519.")
    return {f"+{key.public_bytes_raw().hex()}": key}


def _by_id(lines: Iterable[str]) -> dict[str, Ed25519PublicKey]:
    from runner.audit.checkpoint import read_verifier_key  # noqa: PLC0415 - needs an extra

    return {line.strip().rpartition("+")[0]: read_verifier_key(line)[1] for line in lines}


def verify_file(
    lines: Iterable[str],
    keys: Mapping[str, Ed25519PublicKey],
    anchored_texts: Iterable[str],
    origin: str = "",
    decision_keys: str | Path = "",
) -> Verdict:
    """Verify an export; `anchored_texts` contain checkpoints that were kept elsewhere.

    `origin` names the tree that the file must belong to; "" for any. `decision_keys` is the file of
    public keys with which to verify signed votes, too.

    Raises:
        UsageError: a checkpoint or a key can't be read.
    """
    from runner.audit import anchors, export  # noqa: PLC0415 - need an extra

    outside = [note for text in anchored_texts for note in anchors.notes(text)]
    public = DecisionKeys(str(decision_keys)).read() if decision_keys else None
    return export.verify(list(lines), keys, outside, origin, public)


@immutable
class RunAudit:
    """The entries of a run, and the result of verifying them.

    `result` is holds, broken or incomplete; unverified if this server has no key, unsigned if no
    worker has signed anything yet.
    """

    entries: list[JSONMapping]
    result: str
    detail: str
    lines: list[str]


def audit_of(shared: Shared, run_id: str) -> RunAudit:
    """Read a run's audit and verify its signed part, with the key from the settings.

    Reading signs nothing. The key in the store isn't used to verify: a client of the store could
    have put it there.
    """
    logs = shared.store.audit_logs
    log = logs[partition_of(run_id) % len(logs)]
    try:
        conditions = replace(sealing_policy(shared.settings, shared.archive), signer=None)
        lines = list(export_lines(log, conditions, run_id))
    except UsageError as error:
        kept = (json.loads(text) for _, text in log.kept())
        of_run = [entry for entry in kept if entry.get("run") == run_id]
        return RunAudit(of_run, "unsigned", str(error), [])
    entries = [entry for entry in map(json.loads, lines) if "type" in entry]
    if not shared.settings.audit_key:
        detail = "this server has no RUNNER_AUDIT_KEY to verify with; export it, then `runner audit verify`."
        return RunAudit(entries, "unverified", detail, lines)
    verdict = verify_file(lines, read_public(shared.settings.audit_key), ())
    return RunAudit(entries, verdict.result.name.lower(), verdict.text, lines)
