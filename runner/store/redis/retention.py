"""What follows from a run's status: its lists, and when it has ended, how long its keys stay."""

from __future__ import annotations

from typing import Any

from runner.records.run import FINAL, RunRecord, Status
from runner.store.encoding import RECORD, load, run_record
from runner.store.redis.draft import Command, Draft
from runner.store.redis.keys import run_key, shape_key

PARTS = ("", ":m", ":e", ":c", ":f", ":b")
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
    if before.is_final and not after.is_final:
        _revive(draft, before)
    if in_use(before) and not in_use(after):
        draft.left_shapes.append((after.graph_id, after.fingerprint))
        if after.parent:
            if outlived(draft, after.parent):
                retire(draft, after)
        elif draft.has(ARCHIVE):
            draft.command("ZADD", UNARCHIVED, draft.moment(draft.reads.now), after.run_id)
        else:
            retire(draft, after)


def _revive(draft: Draft, before: RunRecord) -> None:
    """Keep the keys of a run that goes on, and of all its children; its shape is used again."""
    draft.drop(run_key(before.run_id), "ended")
    shape = shape_key(before.fingerprint)
    if not in_use(before):
        draft.command("HINCRBY", shape, "runs", 1)
    draft.command("PERSIST", shape)
    todo = [before.run_id]
    while todo:
        run_id = todo.pop(0)
        key, run = run_key(run_id), read_record(draft, run_id)
        draft.reads.want(key, ("idem", "tags"))
        children: list[bytes] = draft.reads.reply("LRANGE", f"{key}:c", 0, -1)
        todo += [child.decode() for child in children]
        if run is not None:
            draft.command("ZREM", "retired", _entry(draft, run))
        for part in PARTS:
            draft.command("PERSIST", key + part)
        idem = _idem(draft, key)
        if idem:
            draft.command("PERSIST", idem)


def questions(run_id: str) -> list[Command]:
    """Name the commands that the end of a run needs."""
    return [("EXISTS", ARCHIVE), *_of_children(run_id)]


def presumed(run_id: str, *, has_archive: bool) -> dict[Command, Any]:
    """Return what those commands reply where a run has no children."""
    children: dict[Command, Any] = {command: [] for command in _of_children(run_id)}
    return {
        ("EXISTS", ARCHIVE): int(has_archive),
        ("EXISTS", f"{run_key(run_id)}:c"): 0,
        **children,
    }


def _of_children(run_id: str) -> list[Command]:
    return [("LRANGE", f"{run_key(run_id)}:c", 0, -1)]


def outlived(draft: Draft, parent: str) -> bool:
    """Whether a run's parent has ended: a child stays as long as its parent, which may still read it."""
    line = draft.peek(run_key(parent), "run")
    # Its status must stay: what expires would be gone when it goes on.
    draft.forms[run_key(parent), "run"] = f"^{line.split(b' ')[0].decode()} " if line else "^$"
    return line is None or Status(line.partition(b" ")[0].decode()) in FINAL


def retire(draft: Draft, run: RunRecord) -> None:
    """Set the expiry of a finished run's keys; those of its children get theirs in a later sweep."""
    key, retention = run_key(run.run_id), draft.settings.retention_ms
    if not retention:
        return
    children = _children(draft, key)
    for part in PARTS:
        draft.command("PEXPIRE", key + part, retention)
    idem = _idem(draft, key)
    if idem:
        draft.command("PEXPIRE", idem, retention)
    draft.command("ZADD", "retired", draft.moment(draft.reads.now + retention), _entry(draft, run))
    if children:
        draft.command("RPUSH", "retiring", *children)


def _children(draft: Draft, key: str) -> list[bytes]:
    children: list[bytes] = draft.reads.reply("LRANGE", f"{key}:c", 0, -1)
    if draft.reads.is_presumed and not children:
        draft.has(f"{key}:c")
    return children


def read_record(draft: Draft, run_id: str) -> RunRecord | None:
    """Read a run; None for one that is gone."""
    draft.reads.want(run_key(run_id), RECORD)
    fields = {name.encode(): draft.peek(run_key(run_id), name) for name in RECORD}
    stored = {name: value for name, value in fields.items() if value is not None}
    return run_record(run_id, stored) if b"run" in stored else None


def remove(draft: Draft, run: RunRecord) -> None:
    """Remove a run's keys and its entries in lists; its children go in a later sweep: they have no parent."""
    key = run_key(run.run_id)
    children = draft.reads.reply("LRANGE", f"{key}:c", 0, -1)
    forget(draft, _entry(draft, run))
    if children:
        draft.command("RPUSH", "retiring", *children)
    for part in PARTS:
        draft.command("UNLINK", key + part)
    idem = _idem(draft, key)
    if idem:
        draft.command("UNLINK", idem)


def forget(draft: Draft, entry: bytes) -> None:
    """Take a run off its lists, by what `retired` has of it."""
    draft.command("ZREM", "retired", entry)
    run_id, *rest = entry.decode().split("\n", 3)
    if rest:
        status, graph_id, tags = rest
        for name in (
            f"{status}:{graph_id}",
            *(f"t:{tag}={value}" for tag, value in load(tags or "{}").items()),
        ):
            draft.command("ZREM", f"runs:{name}", run_id)


def _entry(draft: Draft, run: RunRecord) -> bytes:
    """Write what is left of a run when its keys are gone: id, status, graph and tags."""
    tags = draft.peek(run_key(run.run_id), "tags") or b""
    return f"{run.run_id}\n{run.status}\n{run.graph_id}\n".encode() + tags


def _idem(draft: Draft, key: str) -> str:
    """Name the key of a run's idempotency key, without the prefix; "" where it has none."""
    return (draft.peek(key, "idem") or b"").decode().partition("}:")[2]
