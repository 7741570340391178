"""What follows from a run's status: its lists, and when it has ended, how long its keys stay."""

from __future__ import annotations

from runner.records.run import FINAL, RunRecord, Status
from runner.store.encoding import dump, load
from runner.store.redis.draft import Draft
from runner.store.redis.keys import run_key, shape_key

PARTS = ("", ":s", ":m", ":e", ":q", ":c", ":f", ":b")
"""The keys of a run."""

ARCHIVE, UNARCHIVED = "archive", "unarchived"
"""Where the archive is, if there is one, and the ended runs that it does not have yet: so long they stay."""


def in_use(run: RunRecord) -> bool:
    """Whether a run goes on, or has still to tell that it has ended."""
    return not run.is_final or bool(run.unreported)


def follow(draft: Draft, before: RunRecord, after: RunRecord) -> None:
    """Write what follows from a change of a run's record."""
    if before.status is not after.status:
        created = draft.peek(run_key(after.run_id), "created") or b"0"
        draft.command("ZREM", f"runs:{before.status}", after.run_id)
        draft.command("ZADD", f"runs:{after.status}", created, after.run_id)
    if in_use(before) and not in_use(after):
        draft.left_shapes.append(shape_key(after.fingerprint))
        if after.parent:
            if _outlived(draft, after.root):
                retire(draft, after.run_id, after.graph_id)
        elif draft.reads.reply("EXISTS", ARCHIVE):
            draft.command("ZADD", UNARCHIVED, draft.reads.now, after.run_id)
        else:
            retire(draft, after.run_id, after.graph_id)


def _outlived(draft: Draft, root: str) -> bool:
    """Whether the outermost run has ended and is in the archive.

    A child stays as long as that run, which may still read it, and which is archived with it.
    """
    draft.reads.ask("ZSCORE", UNARCHIVED, root)
    line = draft.peek(run_key(root), "run")
    goes_on = line is not None and Status(line.partition(b" ")[0].decode()) not in FINAL
    return not goes_on and draft.reads.reply("ZSCORE", UNARCHIVED, root) is None


def listings(graph_id: str, tags: bytes) -> list[str]:
    """Name the lists of runs of a graph and of tags in which a run is."""
    return [f"g:{graph_id}", *(f"t:{name}={value}" for name, value in load(tags).items())]


def retire(draft: Draft, run_id: str, graph_id: str) -> None:
    """Set the expiry of a finished run's keys; those of its children get theirs in a later sweep."""
    key, retention = run_key(run_id), draft.settings.retention_ms
    if not retention:
        return
    draft.reads.want(key, ("idem", "tags"))
    children = draft.reads.reply("LRANGE", f"{key}:c", 0, -1)
    for part in PARTS:
        draft.command("PEXPIRE", key + part, retention)
    idem = (draft.peek(key, "idem") or b"").decode().partition("}:")[2]
    if idem:
        draft.command("PEXPIRE", idem, retention)
    draft.put("listed:runs", run_id, dump(listings(graph_id, draft.peek(key, "tags") or b"{}")))
    draft.command("ZADD", "retired", draft.reads.now + retention, run_id)
    if children:
        draft.command("RPUSH", "retiring", *children)
