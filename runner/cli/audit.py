"""`runner audit`: the audit of approvals, exported, verified and signed."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.arguments import flag, option
from runner.cli.context import CommandContext, command, group
from runner.cli.exits import CommandError, Exit
from runner.errors import UsageError
from runner.immutable import immutable
from runner.records.run_ids import partition_of

if TYPE_CHECKING:
    from runner.operations.installation import AuditLog


PATH = click.Path(path_type=Path)

PARTITION = option(
    "--partition", "The partition (default: the only one).", type=click.IntRange(0)
)


@group
def audit() -> None:
    """Export and verify the audit of approvals.

    The audit has an entry for each event of a question with a rule, and of the runs with such questions;
    with RUNNER_AUDIT=all, of every run. Workers seal the entries into a tree of hashes, and sign it
    with the key of RUNNER_AUDIT_KEY.
    """


@immutable
class Exported:
    """A file of exported entries; `run` is "" if it has all runs."""

    file: str
    run: str
    lines: int


@command(audit, "export")
@option("--output FILE", "path", "The new file.", required=True, type=PATH)
@option("--run RUN", "run_id", "Only the entries of this run (default: of all).", default="")
@flag(
    "--votes",
    "Include the votes that people have signed, with comments, and the calls they voted on.",
)
@PARTITION
def export_audit(
    context: CommandContext,
    path: Path,
    run_id: str,
    partition: int | None,
    *,
    votes: bool,
) -> None:
    """Write the signed entries of the audit to a file.

    The file has one entry per line, then the signed checkpoint, the public key and the proofs, so it can
    be verified without the store. If RUNNER_AUDIT_KEY is set, everything up to now is signed first.
    A removed run can be exported too: give its whole id. The audit records every export and its user.
    Without a terminal: file, run and lines, separated by tabs.
    """
    from runner.audit.files import export_lines
    from runner.audit.sealing import sealing_policy
    from runner.audit.signed_votes import signed_votes

    log = _log(context, run_id, partition)
    conditions = sealing_policy(context.settings, context.installation.archive)
    log.note("exported", actor=context.user, outcome={"run": run_id})
    votes_of = functools.partial(signed_votes, context.installation.store) if votes else None
    lines = export_lines(log, conditions, run_id, votes_of)
    written: list[int] = []
    hidden = path.with_name(f".{path.name}.new")
    try:
        with hidden.open("w", encoding="utf-8") as file:
            written.extend(file.write(line) for line in lines)
        hidden.replace(path)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error}.") from error
    finally:
        hidden.unlink(missing_ok=True)
    context.output.write(Exported(str(path), run_id, len(written)))


def _log(context: CommandContext, run_id: str, partition: int | None) -> AuditLog:
    logs = list(context.installation.store.audit_logs)
    if partition is None and not run_id and len(logs) > 1:
        raise UsageError(
            f"the store has {len(logs)} partitions, each with an audit: give --partition."
        )
    number = partition_of(run_id) if partition is None else partition
    if number >= len(logs):
        raise UsageError(
            f"the store has {len(logs)} partitions, and none has the number {number}."
        )
    return logs[number]


@immutable
class Verified:
    """The result of a verification: holds, broken or incomplete; `line` is 0 if no line is to blame.

    `tree` names the tree that the file belongs to, its size then, and the time of the last entry.
    """

    result: str
    line: int
    detail: str
    tree: str


@command(audit)
@click.argument("path", metavar="FILE", type=PATH)
@option("--key KEY", "A public key, or a file with it.", required=True, multiple=True)
@option(
    "--checkpoint FILE",
    "checkpoints",
    "A file with checkpoints that were kept elsewhere, such as an anchor.",
    multiple=True,
    type=PATH,
)
@option("--origin NAME", "The tree it must belong to (default: any).", default="")
@option(
    "--decision-keys FILE",
    "The public keys of decisions, to verify signed votes too (default: do not).",
    default="",
)
def verify(
    context: CommandContext,
    path: Path,
    key: tuple[str, ...],
    checkpoints: tuple[Path, ...],
    *,
    origin: str,
    decision_keys: str,
) -> int:
    """Verify an exported file; no store is needed.

    A checkpoint kept elsewhere also reveals entries that were cut off at the end. Without a terminal:
    result, broken line (0: none), detail and the file's tree, separated by tabs.

    Exit codes: 0 all entries hold; 1 the file is broken; 2 the file or the key can't be read;
    3 something is missing: the beginning, the end, a checkpoint, entries that a checkpoint kept
    elsewhere has, or signed votes; or a passkey has counted backwards.
    """
    from runner.audit.files import read_public, verify_file

    try:
        # A byte that isn't UTF-8 becomes a surrogate, so its line is found broken.
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            lines = list(file)
        checkpoint_texts = [
            checkpoint.read_text(encoding="utf-8") for checkpoint in checkpoints
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(Exit.USAGE, f"A file can't be read: {error}.") from error
    public = (read_public(key_path).items() for key_path in key)
    verdict = verify_file(
        lines, dict(itertools.chain(*public)), checkpoint_texts, origin, decision_keys
    )
    context.output.write(
        Verified(verdict.result.name.lower(), verdict.line, verdict.text, verdict.tree)
    )
    return int(verdict.result)


@immutable
class AuditKey:
    """The public key of the audit, as `runner audit verify` takes it."""

    key: str


@command(audit, "key")
@click.argument("path", metavar="FILE", type=PATH)
def audit_key(context: CommandContext, path: Path) -> None:
    """Print the public key of a private one, or make both.

    A missing file is created with a new private key that only the file's owner can read.

    RUNNER_AUDIT_KEY names the file for the workers. Keep the public key out of reach of anyone who can
    change the store.
    """
    from runner.audit.files import own_key

    context.output.write(AuditKey(own_key(path, context.settings.namespace).public()))


@immutable
class Restarted:
    """A new tree of the audit, by its name in checkpoints."""

    origin: str


@command(audit)
@option("--reason", "Why the tree is given up; the audit keeps its hash.", required=True)
@PARTITION
def restart(context: CommandContext, reason: str, partition: int | None) -> None:
    """Begin a new tree, after the store has lost entries.

    Workers stop signing if an anchor has a checkpoint that the store's entries don't lead to. A new tree
    seals the entries in the store again, under a new name. Checkpoints of the old tree stay valid for
    its exported or archived entries.
    """
    log = _log(context, "", partition)
    head = log.head()
    if not log.restart(head):
        raise CommandError(
            Exit.CONFLICT,
            "A worker has sealed entries meanwhile; nothing was changed. Try again.",
        )
    log.note("restarted", actor=context.user, reason=reason)
    context.output.write(Restarted(log.origin(head.epoch + 1)))
