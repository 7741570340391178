"""Consequences of a run's end: the expiry of its keys, its archiving, and the undoing of both."""

from __future__ import annotations

import logging
from typing import Any

from runner.records.run import FINAL, RunRecord, Status
from runner.store.encoding import RECORD, RUN, load, read_status, run_record
from runner.store.redis.keys import run_key, shape_key
from runner.store.redis.transaction.sets import ADDED, CONSTANT, Command, WriteSet

log = logging.getLogger(__name__)

SUFFIXES = ("", ":m", ":e", ":c", ":f", ":b")
"""Suffixes of the keys of a run."""

CHILDREN = ":c"

ARCHIVE, UNARCHIVED = "archive", "unarchived"
"""The place of the archive, if any, and the ended runs that stay until they are archived."""


def in_use(run: RunRecord) -> bool:
    """Return whether a run is still going on, or must still report its end."""
    return not run.is_final or bool(run.unreported)


def follow(write_set: WriteSet, initial: RunRecord, record: RunRecord) -> None:
    """Write the consequences if a run ends, or continues after its end."""
    if initial.is_final and not record.is_final:
        _revive(write_set, initial)
    if in_use(initial) and not in_use(record):
        write_set.released_shapes.append((record.graph_id, record.fingerprint))
        if record.parent:
            if outlived(write_set, record.parent):
                retire(write_set, record)
        elif write_set.exists(ARCHIVE):
            write_set.command(
                "ZADD", UNARCHIVED, write_set.time(write_set.read_set.now), record.run_id
            )
        else:
            retire(write_set, record)


def _revive(write_set: WriteSet, initial: RunRecord) -> None:
    """Keep the keys of a run that continues, and of all its children; its shape is used again."""
    write_set.drop(run_key(initial.run_id), "ended")
    shape = shape_key(initial.fingerprint)
    if not in_use(initial):
        write_set.command("HINCRBY", shape, "runs", 1)
    write_set.command("PERSIST", shape)
    todo = [initial.run_id]
    while todo:
        run_id = todo.pop(0)
        key = run_key(run_id)
        run = read_record(write_set, run_id)
        write_set.read_set.want(key, ("idem", "tags"))
        children: list[bytes] = write_set.read_set.reply("LRANGE", f"{key}:c", 0, -1)
        todo += [child.decode() for child in children]
        if run is not None:
            write_set.command("ZREM", "retired", _entry(write_set, key, run))
        for suffix in SUFFIXES:
            write_set.command("PERSIST", key + suffix)
        idem = _idem(write_set, key)
        if idem:
            write_set.command("PERSIST", idem)


def end_reads(run_id: str) -> list[Command]:
    """Return the commands that read the data for a run's end."""
    return [("EXISTS", ARCHIVE), ("LRANGE", f"{run_key(run_id)}:c", 0, -1)]


def speculation(run_id: str, *, has_archive: bool) -> dict[Command, Any]:
    """Return the replies of those commands for a run without children."""
    children = f"{run_key(run_id)}:c"
    return {
        ("EXISTS", ARCHIVE): int(has_archive),
        ("EXISTS", children): 0,
        ("LRANGE", children, 0, -1): [],
    }


def outlived(write_set: WriteSet, parent: str) -> bool:
    """Return whether a run's parent has ended: a child stays as long as its parent, which may read it."""
    line = write_set.read_unvalidated(run_key(parent), "run", ADDED)
    # Its status must stay: if it continued, expired children would be missing.
    status = read_status(line) if line else ""
    write_set.patterns[run_key(parent), "run"] = (
        RUN.pattern(f"status={status}") if line else "^$"
    )
    return line is None or Status(status) in FINAL


def retire(write_set: WriteSet, run: RunRecord) -> None:
    """Set the expiry of a finished run's keys; its children's keys get theirs in a later sweep."""
    key = run_key(run.run_id)
    retention = write_set.settings.retention_ms
    if not retention:
        return
    children = _children(write_set, key)
    ends_at = write_set.time(write_set.read_set.now + retention)
    keys = [key + suffix for suffix in SUFFIXES if suffix != CHILDREN or children]
    idem = _idem(write_set, key)
    write_set.commands += (("PEXPIRE", name, retention) for name in (*keys, idem) if name)
    write_set.command("ZADD", "retired", ends_at, _entry(write_set, key, run))
    if children:
        write_set.command("RPUSH", "retiring", *children)


def _children(write_set: WriteSet, key: str) -> list[bytes]:
    children: list[bytes] = write_set.read_set.reply("LRANGE", f"{key}:c", 0, -1)
    if write_set.read_set.is_speculative and not children:
        write_set.exists(f"{key}:c")
    return children


def read_record(write_set: WriteSet, run_id: str) -> RunRecord | None:
    """Read a run that this transaction has not changed; None if it is gone."""
    fields = write_set.read_set.fields(run_key(run_id), RECORD)
    return run_record(run_id, fields) if b"run" in fields else None


def remove(write_set: WriteSet, run: RunRecord) -> None:
    """Remove a run's keys and its entries in lists; a later sweep removes its orphaned children."""
    key = run_key(run.run_id)
    children = write_set.read_set.reply("LRANGE", f"{key}:c", 0, -1)
    forget(write_set, _entry(write_set, key, run))
    if children:
        write_set.command("RPUSH", "retiring", *children)
    for suffix in SUFFIXES:
        write_set.command("UNLINK", key + suffix)
    idem = _idem(write_set, key)
    if idem:
        write_set.command("UNLINK", idem)


def forget(write_set: WriteSet, entry: bytes) -> str:
    """Remove a run from its lists, by its entry in `retired`; return its graph, or "" if unknown."""
    write_set.command("ZREM", "retired", entry)
    try:
        run_id, *details = entry.decode().split("\n", 3)
        status, graph_id, tags = details or ("", "", "")
        labels = [f"t:{tag}={value}" for tag, value in load(tags or "{}").items()]
    except (ValueError, AttributeError) as error:
        log.error("retired.malformed: %r names no ended run, and was removed: %s", entry, error)  # noqa: TRY400 - it says all
        return ""
    for name in (f"{status}:{graph_id}", *labels) if details else ():
        write_set.command("ZREM", f"runs:{name}", run_id)
    return graph_id


def _entry(write_set: WriteSet, key: str, run: RunRecord) -> bytes:
    """Write the entry that outlives a run's keys: id, status, graph and tags."""
    tags = write_set.read_unvalidated(key, "tags", CONSTANT) or b""
    return f"{run.run_id}\n{run.status}\n{run.graph_id}\n".encode() + tags


def _idem(write_set: WriteSet, key: str) -> str:
    """Name the key of a run's idempotency key, without the prefix; "" if it has none."""
    return (
        (write_set.read_unvalidated(key, "idem", CONSTANT) or b"").decode().partition("}:")[2]
    )
