"""What follows from a run's status: its lists, and when it has ended, how long its keys stay."""

from __future__ import annotations

from runner.records.run import FINAL, RunRecord, Status
from runner.store.redis.draft import Draft
from runner.store.redis.keys import run_key, shape_key

PARTS = ("", ":m", ":e", ":q", ":c", ":f", ":b")
"""The keys of a run."""

ARCHIVE, UNARCHIVED = "archive", "unarchived"
"""Where the archive is, if there is one, and the ended runs that it does not have yet: so long they stay."""


def in_use(run: RunRecord) -> bool:
    """Whether a run goes on, or has still to tell that it has ended."""
    return not run.is_final or bool(run.unreported)


def follow(draft: Draft, before: RunRecord, after: RunRecord) -> None:
    """Write what follows from a change of a run's record."""
    was, now = (f"runs:{run.status}:{run.graph_id}" for run in (before, after))
    if was != now:
        created = draft.peek(run_key(after.run_id), "created") or b"0"
        draft.command("ZREM", was, after.run_id)
        draft.command("ZADD", now, created, after.run_id)
    if in_use(before) and not in_use(after):
        draft.left_shapes.append(shape_key(after.fingerprint))
        if after.parent:
            if _outlived(draft, after.parent):
                retire(draft, after)
        elif draft.reads.reply("EXISTS", ARCHIVE):
            draft.command("ZADD", UNARCHIVED, draft.reads.now, after.run_id)
        else:
            retire(draft, after)


def _outlived(draft: Draft, parent: str) -> bool:
    """Whether a run's parent has ended: a child stays as long as its parent, which may still read it."""
    line = draft.peek(run_key(parent), "run")
    return line is None or Status(line.partition(b" ")[0].decode()) in FINAL


def retire(draft: Draft, run: RunRecord) -> None:
    """Set the expiry of a finished run's keys; those of its children get theirs in a later sweep."""
    key, retention = run_key(run.run_id), draft.settings.retention_ms
    if not retention:
        return
    draft.reads.want(key, ("idem", "tags"))
    children = draft.reads.reply("LRANGE", f"{key}:c", 0, -1)
    for part in PARTS:
        draft.command("PEXPIRE", key + part, retention)
    idem = (draft.peek(key, "idem") or b"").decode().partition("}:")[2]
    if idem:
        draft.command("PEXPIRE", idem, retention)
    # What is left of it when its keys are gone, to find its lists.
    parts = (
        run.run_id.encode(),
        run.status.encode(),
        run.graph_id.encode(),
        draft.peek(key, "tags") or b"",
    )
    draft.command("ZADD", "retired", draft.reads.now + retention, b"\n".join(parts))
    if children:
        draft.command("RPUSH", "retiring", *children)
