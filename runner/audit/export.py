"""An exported audit: a file of JSON lines that can be verified without any server.

First come the entries, then one line each of `checkpoints`, `keys` and `proofs`. An export of all
entries has the hash of every leaf in its proofs, so that a changed entry can be located. An export
of one run has each entry's path to the root, and its entries are numbered (`run_n`), so that a
removed entry is found, too. If asked for, a line of `votes` has the messages that people signed.
"""

from __future__ import annotations

import base64
import enum
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.approvals.proofs import VerificationKeys
from runner.audit import checkpoint as notes
from runner.audit.checkpoint import Checkpoint
from runner.audit.signed_votes import BrokenLine, is_signed, verify_votes
from runner.audit.tree import inclusion_paths, is_included, leaf_of, root_of
from runner.errors import UnstorableError, UsageError, needs_extra
from runner.immutable import immutable
from runner.records import codec
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.json_form import stamp

with needs_extra("audit", "a signed audit"):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PARTS = ("checkpoints", "keys", "proofs", "votes")

ENDS = frozenset({"run.ended", "run.removed"})
"""Types of a run's last entry: without one, entries missing at the end go unnoticed."""


class Result(enum.IntEnum):
    """Result of verifying; the numbers are exit codes."""

    HOLDS = 0
    BROKEN = 1
    INCOMPLETE = 3


@immutable
class Verdict:
    """The result, its text, and the line (from 1) at which the file is broken; 0 if no line can be named.

    `tree` names the file's tree, its size, and the time of the file's last entry.
    """

    result: Result
    text: str
    line: int = 0
    tree: str = ""


def export(
    entries: Iterable[JSONMapping],
    checkpoints: Sequence[str],
    keys: Sequence[str],
    run_id: str = "",
    leaves: Sequence[bytes] | None = None,
    *,
    votes_of: Callable[[Iterable[str]], Iterable[JSON]] | None = None,
) -> Iterator[str]:
    """Write all sealed entries, or with `run_id` one run's entries, as lines that end with a newline.

    `entries` are all entries up to the size of the last checkpoint, in order, from number 0.
    `leaves` are the sealed hashes, which locate an entry that has changed since; they are read
    after all entries. `votes_of` reads the signed votes of questions, if the file should contain
    them.
    """
    questions: list[str] = []
    leaves_of_run: list[bytes] = []
    indexes: list[int] = []
    for entry in entries:
        if leaves is None:
            leaves_of_run.append(leaf_of(entry))
        if not run_id or entry.get("run") == run_id:
            indexes.append(int(entry["n"]))
            if is_signed(entry):
                questions.append(str(entry["question"]))
            yield _line(dict(entry))
    yield _line({"checkpoints": list(checkpoints)})
    yield _line({"keys": list(keys)})
    leaves = leaves_of_run if leaves is None else leaves
    if run_id:
        paths = {str(n): _texts(path) for n, path in inclusion_paths(leaves, indexes).items()}
        yield _line({"proofs": {"run": run_id, "paths": paths}})
    else:
        yield _line({"proofs": {"leaves": _texts(leaves)}})
    if votes_of is not None:
        yield _line({"votes": list(votes_of(questions))})


def _line(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _texts(hashes: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(value).decode() for value in hashes]


@dataclass
class _File:
    """Content of an export: entries with their line numbers, and the parts after them."""

    entries: list[tuple[int, JSONObject]] = field(default_factory=list)
    parts: JSONObject = field(default_factory=dict)
    end: int = 0


def verify(
    lines: Iterable[str],
    keys: Mapping[str, Ed25519PublicKey],
    anchored_notes: Sequence[str] = (),
    origin: str = "",
    decision_keys: VerificationKeys | None = None,
) -> Verdict:
    """Verify an export with public keys, see `checkpoint.read`, that do not come from the file itself.

    `origin` names the tree that the file must belong to; "" for any. `anchored_notes` are
    checkpoints kept elsewhere: each one of the file's tree must be a beginning of the file's
    entries. An anchor also has checkpoints of other partitions and of abandoned trees. With
    `decision_keys` the signed votes are verified, too.
    """
    try:
        file = _read(lines)
        if not file.entries and not file.parts:
            return Verdict(Result.INCOMPLETE, "the file is empty")
        checkpoints = _checkpoints(file, keys)
        if "proofs" not in file.parts or not checkpoints:
            return Verdict(
                Result.INCOMPLETE,
                "the end of the file is missing: it has no checkpoint or no proofs",
            )
        anywhere = [notes.read(note, keys) for note in anchored_notes]
        tree = checkpoints[-1]
        if (refusal := foreign(tree, anywhere, origin)) is not None:
            return refusal
        outside = _of_tree(tree, anywhere)
        verify_part = _verify_run if "paths" in file.parts["proofs"] else _verify_all
        verdict = verify_part(file, checkpoints, outside)
        if decision_keys is not None:
            verdict = _with_votes(verdict, file, decision_keys)
        last_at = file.entries[-1][1].get("at") if file.entries else None
        until = f", the last of {stamp(last_at)}" if isinstance(last_at, int) else ""
        return replace(verdict, tree=f"{named(tree)}{until}")
    except BrokenLine as error:
        return Verdict(Result.BROKEN, str(error), error.line)


def named(tree: Checkpoint) -> str:
    """Describe a tree by its origin and size."""
    return f"the tree {tree.origin!r} of {tree.size} entries"


def _of_tree(tree: Checkpoint, anywhere: Iterable[Checkpoint]) -> list[Checkpoint]:
    return [checkpoint for checkpoint in anywhere if checkpoint.origin == tree.origin]


def foreign(tree: Checkpoint, anywhere: Sequence[Checkpoint], origin: str) -> Verdict | None:
    """Refuse a tree that isn't `origin`, or isn't among the trees with a checkpoint elsewhere."""
    if origin and tree.origin != origin:
        return Verdict(
            Result.BROKEN, f"the file is of the tree {tree.origin!r}, not of {origin!r}"
        )
    if anywhere and not _of_tree(tree, anywhere):
        text = f"no checkpoint that was kept elsewhere is of this tree, {tree.origin!r}"
        return Verdict(Result.INCOMPLETE, text)
    return None


def unanchored(tree: Checkpoint, anywhere: Iterable[Checkpoint]) -> Verdict | None:
    """Refuse a checkpoint that isn't among those kept elsewhere, if any of these are of its tree.

    Raises:
        BrokenLine: one of them has signed other entries.
    """
    outside = _of_tree(tree, anywhere)
    roots = {checkpoint.root for checkpoint in outside if checkpoint.size == tree.size}
    if roots - {tree.root}:
        raise BrokenLine("a checkpoint that was kept elsewhere has signed other entries")
    if outside and not roots:
        return Verdict(
            Result.INCOMPLETE,
            f"the checkpoint of the file, of {tree.size} entries, isn't among those that were kept "
            "elsewhere: get newer ones, or export again",
        )
    return None


def _with_votes(verdict: Verdict, file: _File, keys: VerificationKeys) -> Verdict:
    """Return a verdict that includes the signed votes."""
    try:
        valid, missing, copied = verify_votes(file.entries, file.parts.get("votes", ()), keys)
    except codec.READ_ERRORS as error:
        raise BrokenLine(f"the votes are malformed: {error!r:.200}") from error
    text = f"{verdict.text}; {valid} signed vote{'s' if valid != 1 else ''} hold{'s' if valid == 1 else ''}"
    if missing:
        text += f", {missing} more {'is' if missing == 1 else 'are'} not in the file: export with --votes"
    if copied:
        text += f"; the passkey {copied!r} has counted backwards, so there may be a copy of it"
    result = verdict.result or (Result.INCOMPLETE if missing or copied else Result.HOLDS)
    return replace(verdict, result=result, text=text)


def _read(lines: Iterable[str]) -> _File:
    file = _File()
    for number, line in enumerate(lines, 1):
        file.end = number
        try:
            value = codec.load_json(line.encode())
        except Exception as error:
            raise BrokenLine(f"line {number} is not JSON: {error}", number) from error
        if not isinstance(value, dict):
            raise BrokenLine(f"line {number} is not an object", number)
        part_name = next((name for name in PARTS if name in value), "")
        if part_name:
            if part_name in file.parts or len(value) != 1:
                raise BrokenLine(
                    f"line {number} has a second {part_name}, or more than that", number
                )
            if part_name == "proofs" and not isinstance(value[part_name], dict):
                raise BrokenLine("the proofs are malformed", number)
            file.parts[part_name] = value[part_name]
        elif file.parts:
            raise BrokenLine(f"line {number} is an entry behind the end of the entries", number)
        else:
            file.entries.append((number, value))
    return file


def _checkpoints(file: _File, keys: Mapping[str, Ed25519PublicKey]) -> list[Checkpoint]:
    notes_in_file = file.parts.get("checkpoints", [])
    if not isinstance(notes_in_file, list) or not all(
        isinstance(note, str) for note in notes_in_file
    ):
        raise BrokenLine("the checkpoints are malformed")
    try:
        checkpoints = [notes.read(note, keys) for note in notes_in_file]
    except UsageError as error:
        raise BrokenLine(str(error)) from error
    if any(later.size < earlier.size for earlier, later in itertools.pairwise(checkpoints)):
        raise BrokenLine("the checkpoints are out of order")
    return checkpoints


def _hash(text: object, subject: str) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise BrokenLine(f"{subject} is not a hash")


def _leaf(number: int, entry: JSONMapping) -> bytes:
    try:
        return leaf_of(entry)
    except UnstorableError as error:
        raise BrokenLine(f"line {number}: {error}", number) from error


def _verify_all(
    file: _File, checkpoints: Sequence[Checkpoint], outside: Sequence[Checkpoint]
) -> Verdict:
    begin = file.entries[0][1].get("n") if file.entries else 0
    begin = begin if type(begin) is int and begin > 0 else 0
    leaves = _leaves(file, begin)
    sealed_count = _check_roots(file, checkpoints, leaves)
    if sealed_count < len(leaves):
        return Verdict(
            Result.INCOMPLETE,
            f"entries from {sealed_count} on are not signed by a checkpoint yet",
        )
    verdict = _against(outside, leaves, f"all {len(leaves)} entries hold")
    if begin and verdict.result is Result.HOLDS:
        text = f"the entries from {begin} on hold, but the first part of the file is missing"
        return Verdict(Result.INCOMPLETE, text)
    return verdict


def _leaves(file: _File, begin: int) -> list[bytes]:
    """Return the leaf hashes of the tree after comparing them with the entries, from number `begin` on."""
    leaf_texts = file.parts["proofs"].get("leaves")
    if not isinstance(leaf_texts, list):
        raise BrokenLine("the proofs are malformed")
    for index, (number, entry) in enumerate(file.entries, begin):
        if entry.get("n") != index:
            raise BrokenLine(
                f"line {number} should be entry {index}, but is {entry.get('n')!r}", number
            )
    leaves = [_hash(text, f"the hash of entry {n}") for n, text in enumerate(leaf_texts)]
    for (number, entry), leaf in zip(file.entries, leaves[begin:], strict=False):
        if leaf != _leaf(number, entry):
            raise BrokenLine(f"line {number} is not the entry that was sealed", number)
    if begin + len(file.entries) != len(leaves):
        raise BrokenLine(
            f"{len(leaves)} entries were sealed, but the file ends with entry "
            f"{begin + len(file.entries) - 1}",
            file.end,
        )
    return leaves


def _check_roots(
    file: _File, checkpoints: Sequence[Checkpoint], leaves: Sequence[bytes]
) -> int:
    """Compare the entries with the roots of the file's checkpoints; return how many are signed."""
    sealed_count = 0
    for checkpoint in checkpoints:
        if checkpoint.size > len(leaves):
            raise BrokenLine(
                f"the checkpoint has {checkpoint.size} entries, but the file has {len(leaves)}",
                file.end,
            )
        if root_of(leaves[: checkpoint.size]) != checkpoint.root:
            raise BrokenLine(
                f"entries {sealed_count} to {checkpoint.size - 1} are not those that "
                "the checkpoint has signed",
                file.entries[sealed_count][0] if sealed_count < len(file.entries) else 0,
            )
        sealed_count = checkpoint.size
    return sealed_count


def _against(outside: Sequence[Checkpoint], leaves: Sequence[bytes], text: str) -> Verdict:
    for checkpoint in outside:
        if checkpoint.size > len(leaves):
            return Verdict(
                Result.INCOMPLETE,
                f"a checkpoint kept elsewhere has {checkpoint.size} entries, the file has {len(leaves)}",
            )
        if root_of(leaves[: checkpoint.size]) != checkpoint.root:
            raise BrokenLine("a checkpoint that was kept elsewhere has signed other entries")
    return Verdict(Result.HOLDS, text)


def _check_paths(
    entries: Sequence[tuple[int, JSONObject]],
    proofs: JSONMapping,
    checkpoint: Checkpoint,
) -> None:
    """Check that the entries belong to the run, in order, and to the checkpoint's tree."""
    for index, (number, entry) in enumerate(entries):
        if entry.get("run") != proofs.get("run"):
            raise BrokenLine(f"line {number} is of another run", number)
        if entry.get("run_n") != index:
            raise BrokenLine(
                f"line {number} should be entry {index} of the run, but is {entry.get('run_n')!r}",
                number,
            )
        n = entry.get("n")
        path = proofs["paths"].get(str(entry.get("n")))
        if not isinstance(n, int) or not isinstance(path, list):
            raise BrokenLine(f"line {number} has no proof", number)
        hashes = [_hash(text, f"a proof of line {number}") for text in path]
        if not is_included(_leaf(number, entry), n, checkpoint.size, hashes, checkpoint.root):
            raise BrokenLine(f"line {number} is not the entry that was sealed", number)


def _verify_run(
    file: _File, checkpoints: Sequence[Checkpoint], outside: Sequence[Checkpoint]
) -> Verdict:
    proofs = file.parts["proofs"]
    last_checkpoint = checkpoints[-1]
    paths = proofs["paths"]
    if not isinstance(paths, dict):
        raise BrokenLine("the proofs are malformed")
    _check_paths(file.entries, proofs, last_checkpoint)
    if len(paths) != len(file.entries):
        raise BrokenLine(
            f"{len(paths)} entries were exported, but the file has {len(file.entries)}",
            file.end,
        )
    newer = max((checkpoint.size for checkpoint in outside), default=0)
    if newer > last_checkpoint.size:
        return Verdict(
            Result.INCOMPLETE,
            f"a checkpoint that was kept elsewhere has {newer} entries, "
            f"the file's own {last_checkpoint.size}",
        )
    if (refusal := unanchored(last_checkpoint, outside)) is not None:
        return refusal
    last_type = file.entries[-1][1].get("type") if file.entries else ""
    text = "" if last_type in ENDS else "; the end of the run is not among them"
    return Verdict(Result.HOLDS, f"all {len(file.entries)} entries of the run hold{text}")
