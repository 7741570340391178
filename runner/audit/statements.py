"""Approvals as in-toto statements: one for each decided question, in a DSSE envelope a line.

The subject is what was approved: the digest of its effect. The predicate has the audit's entries of the
question, the checkpoint that they are under, and the way up to its root for each; so a statement is verified
by itself. Forms: https://github.com/in-toto/attestation and https://github.com/secure-systems-lab/dsse.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.audit import checkpoint as notes
from runner.audit.checkpoint import Checkpoint
from runner.audit.export import Result, Verdict, foreign, named, unanchored
from runner.audit.signed_votes import BrokenLine
from runner.audit.tree import inclusion_paths, is_included, leaf_of
from runner.errors import RunnerError, needs_extra
from runner.records import codec
from runner.records.codec import JSON

with needs_extra("audit", "a signed audit"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:celery-graph-runner:approval/v1"

NEEDED = frozenset({"asked", "decided"})
"""Types without which there is no approval to state."""


def statements(
    entries: Iterable[Mapping[str, Any]],
    leaves: Sequence[bytes],
    note: str,
    signer: tuple[str, Ed25519PrivateKey],
    run_id: str = "",
) -> Iterator[str]:
    """Write a signed statement for each question that was decided, as lines; with `run_id` those of one run.

    `entries` are all up to the size of the checkpoint `note`, `leaves` their hashes, which are looked at when
    all entries were read.
    """
    questions: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry.get("question") and run_id in {"", entry.get("run")}:
            questions.setdefault(str(entry["question"]), []).append(entry)
    decisions = {
        name: entries_of_question
        for name, entries_of_question in questions.items()
        if NEEDED.issubset(entry["type"] for entry in entries_of_question)
    }
    paths = inclusion_paths(
        leaves,
        [
            int(entry["n"])
            for entries_of_question in decisions.values()
            for entry in entries_of_question
        ],
    )
    for name, entries_of_question in decisions.items():
        yield envelope(_statement(name, entries_of_question, note, paths), *signer)


def _statement(
    name: str,
    entries: Sequence[Mapping[str, Any]],
    note: str,
    paths: Mapping[int, Sequence[bytes]],
) -> dict[str, JSON]:
    decision_entry = next(entry for entry in reversed(entries) if entry["type"] == "decided")
    digests = decision_entry.get("digests", {})
    subject = digests.get("effect") or digests.get("question") or ""
    proofs = {
        str(entry["n"]): [
            base64.b64encode(hash_bytes).decode() for hash_bytes in paths[entry["n"]]
        ]
        for entry in entries
    }
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": subject.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": {
            "run": decision_entry.get("run", ""),
            "question": name,
            "decision": decision_entry.get("outcome", {}).get("decision", ""),
            "entries": [dict(entry) for entry in entries],
            "proofs": proofs,
            "checkpoint": note,
        },
    }


def envelope(statement: Mapping[str, JSON], name: str, key: Ed25519PrivateKey) -> str:
    """Sign a statement, as a line."""
    payload = json.dumps(statement, ensure_ascii=False, separators=(",", ":")).encode()
    signature = {
        "keyid": name,
        "sig": base64.b64encode(key.sign(_signed(PAYLOAD_TYPE, payload))).decode(),
    }
    signed = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [signature],
    }
    return json.dumps(signed, separators=(",", ":")) + "\n"


def _signed(kind: str, payload: bytes) -> bytes:
    """Return what DSSE signs: type and payload, each after its length."""
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)


def is_envelope(line: str) -> bool:
    """Return whether a line of a file is a statement rather than an entry."""
    return '"payloadType"' in line


def verify_statements(
    lines: Iterable[str],
    keys: Mapping[str, Ed25519PublicKey],
    anchored_notes: Sequence[str] = (),
    origin: str = "",
) -> Verdict:
    """Verify statements: their signatures, and that the tree has every entry that they name.

    `origin` and `anchored_notes` are as for `export.verify`: each statement's checkpoint must be among these.
    """
    anywhere = [notes.read(note, keys) for note in anchored_notes]
    number, incomplete, trees = 0, None, {}
    for number, line in enumerate(lines, 1):
        try:
            tree = _tree_of(codec.load_json(line), keys)
            verdict = foreign(tree, anywhere, origin) or unanchored(tree, anywhere)
            trees[named(tree)] = tree
        except (BrokenLine, RunnerError) as error:
            verdict = Verdict(Result.BROKEN, str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            verdict = Verdict(Result.BROKEN, f"malformed ({error!r})")
        if verdict is not None:
            verdict = replace(verdict, text=f"line {number}: {verdict.text}", line=number)
            if verdict.result is Result.BROKEN:
                return verdict
            incomplete = incomplete or verdict
    if not number:
        return Verdict(Result.INCOMPLETE, "the file is empty")
    verdict = incomplete or Verdict(Result.HOLDS, f"all {number} statements hold")
    return replace(verdict, tree=", ".join(trees))


def _tree_of(envelope: Any, keys: Mapping[str, Ed25519PublicKey]) -> Checkpoint:
    """Return the tree that has the entries of a statement.

    Raises:
        BrokenLine: a signature or an entry does not hold, or it says other things than its entries.
        UsageError: its checkpoint can't be read.
    """
    payload = base64.b64decode(envelope["payload"], validate=True)
    message = _signed(envelope["payloadType"], payload)
    if not any(_holds(signature, message, keys) for signature in envelope["signatures"]):
        raise BrokenLine("no signature holds for the keys given")
    statement: Any = codec.load_json(payload)
    predicate = statement["predicate"]
    question, entries, note = (
        predicate[name] for name in ("question", "entries", "checkpoint")
    )
    checkpoint = notes.read(note, keys)
    paths = {
        entry["n"]: [
            base64.b64decode(hash_text, validate=True)
            for hash_text in predicate["proofs"][str(entry["n"])]
        ]
        for entry in entries
    }
    for entry in entries:
        n = entry["n"]
        if not is_included(leaf_of(entry), n, checkpoint.size, paths[n], checkpoint.root):
            raise BrokenLine(f"entry {n} is not the one that was sealed")
    if (
        not NEEDED.issubset(entry["type"] for entry in entries)
        or any(entry["question"] != question for entry in entries)
        or statement != _statement(question, entries, note, paths)
    ):
        raise BrokenLine("it does not say what its entries say")
    return checkpoint


def _holds(
    signature: Mapping[str, str], message: bytes, keys: Mapping[str, Ed25519PublicKey]
) -> bool:
    for key in notes.named(keys, signature["keyid"]):
        try:
            key.verify(base64.b64decode(signature["sig"], validate=True), message)
        except (InvalidSignature, binascii.Error):
            continue
        return True
    return False
